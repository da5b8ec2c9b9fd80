package backup

import (
	"context"
	"errors"

	"filippo.io/age"
)

// Report is what Verify has found.
type Report struct {
	Points    int       `json:"points"`
	Objects   int       `json:"objects"`
	Bytes     int64     `json:"bytes"`
	Encrypted int       `json:"encryptedPoints"` // of these only checksums were compared, for lack of an identity
	Problems  []Problem `json:"problems"`
}

// Problem is something that is wrong with a backup.
type Problem struct {
	Point string `json:"point,omitempty"`
	Error string `json:"error"`
}

// Verify checks points: their chains, all checksums, that every entry decodes, and the counts. It reads each object once,
// also when several points have it. Without identities, it cannot look into encrypted objects.
func Verify(ctx context.Context, d Destination, identities []age.Identity, check Check, progress func(done, total int64)) (Report, error) {
	points, unreadable := Points(ctx, d)
	if unreadable != nil && points == nil {
		return Report{}, unreadable
	}
	report := Report{Points: len(points)}
	if unreadable != nil {
		report.Problems = append(report.Problems, Problem{Error: unreadable.Error()})
	}
	p, err := newPieces(nil, identities)
	if err != nil {
		return Report{}, err
	}
	defer p.close()
	r := &reading{d: d, pieces: p, check: check, progress: progress}
	for _, m := range points {
		r.total += m.Written()
	}
	seen := map[string]bool{}
	for _, m := range points {
		if _, err := chainOf(points, m); err != nil {
			report.Problems = append(report.Problems, Problem{m.Point, err.Error()})
		}
		err := r.point(ctx, m, seen)
		if ctx.Err() != nil {
			return report, ctx.Err()
		}
		if err != nil {
			report.Problems = append(report.Problems, Problem{m.Point, err.Error()})
		}
		if r.isSealed(m) {
			report.Encrypted++
		}
	}
	report.Objects, report.Bytes = len(seen), r.done
	return report, nil
}

// point checks what a point has that was not seen yet. A damaged object is reported with each point that has it.
func (r *reading) point(ctx context.Context, m *Manifest, seen map[string]bool) (err error) {
	once := func(pieces []Piece, use func([]byte) error) {
		for _, piece := range pieces {
			if seen[piece.Name] {
				continue
			}
			if failed := r.each(ctx, m, []Piece{piece}, use); failed != nil {
				err = errors.Join(err, failed)
			} else {
				seen[piece.Name] = true
			}
		}
	}
	once(m.Control, func([]byte) error { return nil })
	once(m.Certificates, r.certificates)
	for _, piece := range m.Events {
		seen[piece.Name] = true
	}
	return errors.Join(err, r.events(ctx, m))
}
