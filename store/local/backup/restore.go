package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"filippo.io/age"

	"mtagd/store/local/codec"
)

// Target takes what is in a point. It keeps the slices that it gets.
type Target interface {
	Control(part []byte) error                     // the next part of control.db
	Certificate(path string, content []byte) error // a file below the directory of certificates
	Entry(e codec.Entry) error                     // an entry, in the order of the source
}

// Check returns how many events an entry has, and whether it is a chunk. It fails for one that does not decode.
type Check func(e codec.Entry) (events int, chunk bool, err error)

// A DamagedError is why a point cannot be restored although its destination can be read: an older point may be sound.
type DamagedError struct {
	Err    error
	object string // that is damaged; may be empty
}

func (e *DamagedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

// Concerns reports whether another point needs the object that is damaged.
func (e *DamagedError) Concerns(points []*Manifest, m *Manifest) bool {
	if slices.ContainsFunc(slices.Concat(m.Control, m.Certificates), e.isOf) {
		return true
	}
	chain, _ := chainOf(points, m)
	return slices.ContainsFunc(chain, func(part *Manifest) bool { return slices.ContainsFunc(part.Events, e.isOf) })
}

func (e *DamagedError) isOf(p Piece) bool { return p.Name == e.object }

// Restore reads a point and its chain into a target. A *DamagedError says what is wrong with it: every checksum,
// entry and count is checked. It returns what the chain has, chunks that a later point has deleted included.
func Restore(ctx context.Context, d Destination, points []*Manifest, m *Manifest, identities []age.Identity, check Check,
	to Target, progress func(done, total int64)) (Count, error) {
	chain, err := chainOf(points, m)
	if err != nil {
		return Count{}, &DamagedError{Err: err}
	}
	p, err := newPieces(nil, identities)
	if err != nil {
		return Count{}, err
	}
	defer p.close()
	r := &reading{d: d, pieces: p, check: check, to: to, progress: progress}
	for _, part := range chain {
		r.total += part.eventBytes()
	}
	for _, piece := range slices.Concat(m.Control, m.Certificates) {
		r.total += int64(piece.Size)
	}
	if err := r.each(ctx, m, m.Control, to.Control); err != nil {
		return Count{}, err
	}
	if err := r.each(ctx, m, m.Certificates, r.certificates); err != nil {
		return Count{}, err
	}
	var all Count
	for _, part := range chain {
		if err := r.events(ctx, part); err != nil {
			return Count{}, err
		}
		all.add(part.Count)
		all.Live = part.Count.Live
	}
	return all, nil
}

// reading reads points.
type reading struct {
	d        Destination
	pieces   *pieces
	check    Check
	to       Target // nil: only check
	progress func(done, total int64)

	done, total int64
	count       Count // of the point that is being read
}

// each reads pieces, and calls use with what is in each.
func (r *reading) each(ctx context.Context, m *Manifest, pieces []Piece, use func(plain []byte) error) error {
	for _, piece := range pieces {
		plain, err := r.pieces.read(ctx, r.d, piece, len(m.Recipients) > 0)
		if err == nil {
			err = use(plain)
		} else if r.to == nil && errors.Is(err, ErrNoIdentity) {
			err = nil // its checksum is right
		}
		if err != nil {
			return fmt.Errorf("point %s: %w", m.Point, err)
		}
		r.done += int64(piece.Size)
		if r.progress != nil {
			r.progress(r.done, r.total)
		}
	}
	return nil
}

// isSealed reports whether a point cannot be decrypted. Then only checksums are compared.
func (r *reading) isSealed(m *Manifest) bool {
	return len(m.Recipients) > 0 && len(r.pieces.identities) == 0
}

func (r *reading) certificates(plain []byte) error {
	return decode(plain, func(e codec.Entry) error {
		if r.to == nil {
			return nil
		}
		return r.to.Certificate(string(e.Key), e.Value)
	})
}

// events reads the events of one point.
func (r *reading) events(ctx context.Context, m *Manifest) error {
	r.count = Count{}
	if err := r.each(ctx, m, m.Events, r.entries); err != nil {
		return err
	}
	if r.isSealed(m) && r.to == nil {
		return nil
	}
	if c := r.count; c.Entries != m.Count.Entries || c.Chunks != m.Count.Chunks || c.Events != m.Count.Events || c.Deletions != m.Count.Deletions {
		return &DamagedError{Err: fmt.Errorf("point %s: it has %d entries and %d events, but its manifest says %d and %d", m.Point,
			c.Entries, c.Events, m.Count.Entries, m.Count.Events)}
	}
	return nil
}

func (r *reading) entries(plain []byte) error {
	return decode(plain, func(e codec.Entry) error {
		events, chunk, err := r.check(e)
		if err != nil {
			return &DamagedError{Err: err}
		}
		r.count.add(countOf(e, chunk, events))
		if r.to == nil {
			return nil
		}
		return r.to.Entry(e)
	})
}

func decode(plain []byte, use func(codec.Entry) error) error {
	d := codec.Decoder{B: plain}
	for len(d.B) > 0 {
		e := d.Entry()
		if err := d.Err("entry of a backup"); err != nil {
			return &DamagedError{Err: err}
		}
		if err := use(e); err != nil {
			return err
		}
	}
	return nil
}
