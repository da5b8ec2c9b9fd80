package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Points returns all points in a destination, by data directory and then the oldest first. Manifests that cannot be read are
// in the error; the points are returned nevertheless, unless the destination cannot be read: then they are nil.
func Points(ctx context.Context, d Destination) ([]*Manifest, error) {
	return catalog{}.load(ctx, d, "")
}

// catalog remembers the manifests of a destination, by object name.
type catalog map[string]*Manifest

// load returns the points of a data directory, or of all when data is empty, in the order of Points.
func (c catalog) load(ctx context.Context, d Destination, data string) ([]*Manifest, error) {
	prefix := ""
	if data != "" {
		prefix = data + "/points/"
	}
	stored, err := d.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	known := maps.Clone(c)
	clear(c)
	points := []*Manifest{} // not nil: the destination can be read
	var errs []error
	for _, object := range stored {
		if !isManifest(object.Name) {
			continue
		}
		m := known[object.Name]
		if m == nil {
			if m, err = readManifest(ctx, d, object.Name); err != nil {
				if ctx.Err() != nil {
					return nil, err
				}
				errs = append(errs, &UnreadableError{pointOf(object.Name), fmt.Errorf("manifest %s: %w", object.Name, err)})
				continue
			}
		}
		c[object.Name] = m
		points = append(points, m)
	}
	slices.SortFunc(points, inOrder)
	return points, errors.Join(errs...)
}

// inOrder compares points: those of one data directory by their numbers. Older ones have none: they are compared by
// what they have. Times do not count first, because a clock may have been wrong.
func inOrder(a, b *Manifest) int {
	return cmp.Or(cmp.Compare(a.Data, b.Data), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Version, b.Version),
		cmp.Compare(a.ControlVersion, b.ControlVersion), a.Time.Compare(b.Time))
}

// An UnreadableError is a point whose manifest cannot be read.
type UnreadableError struct {
	Point string
	Err   error
}

func (e *UnreadableError) Error() string { return e.Err.Error() }

// NewestUnreadable returns the newest of the points that an error of Points names. Points after a time do not count,
// unless that is zero. It returns "" when there is none.
func NewestUnreadable(err error, at time.Time) (newest string) {
	several, _ := err.(interface{ Unwrap() []error })
	if several == nil {
		return ""
	}
	for _, err := range several.Unwrap() {
		e, ok := errors.AsType[*UnreadableError](err)
		if ok && (at.IsZero() || e.Point < at.UTC().Format(pointTime)+"~") {
			newest = max(newest, e.Point)
		}
	}
	return newest
}

// pointOf returns the point whose manifest has this name.
func pointOf(manifest string) string { return strings.TrimSuffix(path.Base(manifest), ".json") }

func isManifest(name string) bool {
	parts := strings.Split(name, "/")
	return len(parts) == 3 && parts[1] == "points" && strings.HasSuffix(parts[2], ".json")
}

// Find returns the points that are not after a time, the newest first; with a zero time all. data is the id of the data
// directory; it may be empty when the destination has points of one only.
func Find(points []*Manifest, data string, at time.Time) (found []*Manifest, err error) {
	ids := map[string]bool{}
	for _, m := range slices.Backward(points) {
		if data != "" && m.Data != data {
			continue
		}
		ids[m.Data] = true
		if at.IsZero() || !m.Time.After(at) {
			found = append(found, m)
		}
	}
	switch {
	case len(ids) > 1:
		return nil, fmt.Errorf("there are points of %d data directories: name one with --from; \"mtagd backup list\" shows them", len(ids))
	case len(ids) == 0:
		return nil, errors.New("there is no point")
	case found == nil:
		return nil, fmt.Errorf("there is no point at or before %s", at.UTC().Format(time.RFC3339))
	}
	return found, nil
}

// chainOf returns the chain of a point, its base first.
func chainOf(points []*Manifest, m *Manifest) ([]*Manifest, error) {
	byName := map[string]*Manifest{}
	for _, p := range points {
		if p.Data == m.Data {
			byName[p.Point] = p
		}
	}
	chain := []*Manifest{m}
	for m.Parent != "" {
		parent := byName[m.Parent]
		if parent == nil {
			return nil, fmt.Errorf("point %s needs %s, which is missing or damaged", m.Point, m.Parent)
		}
		if parent.Version != m.Since || len(chain) > len(points) {
			return nil, fmt.Errorf("point %s does not go on where %s ends", m.Point, parent.Point)
		}
		m = parent
		chain = append(chain, m)
	}
	slices.Reverse(chain)
	return chain, nil
}
