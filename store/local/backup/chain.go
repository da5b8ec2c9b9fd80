package backup

import (
	"slices"
	"strings"
	"time"
)

// The rules of chains. Their reasons:
//   - A new base is made when the increments have more bytes than the base. So a restore reads at most twice what a base
//     would have, and the bases of a data directory that only grows cost no more than it does: each is twice the last.
//     Below minRebase a base for every few increments would cost more than it saves.
//   - A new base is made when the last one is older than points are kept. Else a base, and what was erased since, would stay
//     for as long as increments build on it.
//   - Small points are folded: when the ones since the last larger point have foldBytes or are foldAge old, the next point
//     builds on that larger one, and has all that they have. So a byte travels twice, and chains stay short.
//   - A chain of maxChain larger points is folded into one increment since the base.
const (
	minRebase = 64 << 20
	foldBytes = 16 << 20
	foldAge   = time.Hour
	maxChain  = 500
)

// keepSmall is how long small points are kept after they were folded.
const keepSmall = time.Hour

// garbageAge is how old an object must be that belongs to no point. A younger one may belong to a backup that runs, or to a
// point whose manifest is missing for a moment only, as while a disk is copied back.
const garbageAge = 24 * time.Hour

// parentFor returns the point on which the next one builds. It is nil for a base, and why says why.
func parentFor(points []*Manifest, opt Options, now time.Time) (parent *Manifest, why string) {
	if opt.Full {
		return nil, "asked for"
	}
	if len(points) == 0 {
		return nil, "the first point"
	}
	newest := points[len(points)-1]
	chain, err := chainOf(points, newest)
	switch {
	case err != nil:
		return nil, err.Error()
	case !slices.Equal(newest.Recipients, opt.Recipients):
		return nil, "the recipients have changed"
	}
	large := chain
	var increments, small int64
	for _, m := range chain[1:] {
		increments += m.eventBytes()
		if m.Small {
			small += m.eventBytes()
		}
	}
	for large[len(large)-1].Small {
		large = large[:len(large)-1]
	}
	last := large[len(large)-1]
	switch {
	case increments > max(minRebase, chain[0].eventBytes()):
		return nil, "the increments have become larger than their base"
	case opt.Keep > 0 && now.Sub(chain[0].Time) > opt.Keep:
		return nil, "the base is older than points are kept"
	case len(large) > maxChain:
		return chain[0], ""
	case newest.Small && (!opt.Small || opt.Fold || small > foldBytes || now.Sub(last.Time) > foldAge):
		return last, ""
	}
	return newest, ""
}

// obsolete returns those of one or more points that are no longer wanted: older than keep, or small and folded. The newest
// point always stays, and so do the chains of all points that stay. A keep of 0 keeps all but small ones.
func obsolete(points []*Manifest, keep time.Duration, now time.Time) (gone []*Manifest) {
	newest := points[len(points)-1]
	wanted := map[*Manifest]bool{}
	for _, m := range points {
		age := now.Sub(m.Time)
		if m != newest && (keep > 0 && age > keep || m.Small && age > keepSmall) {
			continue
		}
		wanted[m] = true
		if chain, err := chainOf(points, m); err == nil {
			for _, needed := range chain {
				wanted[needed] = true
			}
		}
	}
	for _, m := range points {
		if !wanted[m] {
			gone = append(gone, m)
		}
	}
	return gone
}

// garbage returns the objects that belong to no point: those of the points that were just removed, and old ones.
func garbage(stored []Stored, points, removed []*Manifest, now time.Time) (names []string) {
	needed, dropped := objectsOf(points), objectsOf(removed)
	for _, object := range stored {
		if !needed[object.Name] && (dropped[object.Name] || now.Sub(timeOf(object.Name)) >= garbageAge) {
			names = append(names, object.Name)
		}
	}
	return names
}

func objectsOf(points []*Manifest) map[string]bool {
	names := map[string]bool{}
	for _, m := range points {
		for _, p := range m.pieces() {
			names[p.Name] = true
		}
	}
	return names
}

// timeOf returns the time in the name of a point's object. A name without one is never garbage: the result is in the far
// future.
func timeOf(name string) time.Time {
	parts := strings.Split(name, "/")
	if len(parts) == 4 {
		if at, _, ok := strings.Cut(parts[2], "-"); ok {
			if t, err := time.Parse(pointTime, at); err == nil {
				return t
			}
		}
	}
	return time.Unix(1<<40, 0)
}
