package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
)

// stored are the events of a data directory: the older ones in the archive, the newer ones in the journal. It knows
// what damage has cost, and keeps events from moving from one to the other, and from being removed.
type stored struct {
	dir    string
	log    *slog.Logger
	opened context.Context // ends when Close begins

	journal *journal.Journal
	archive *archive.Archive
	damage  *damageLog
	shorts  *shorts
	turns   *turns

	moving sync.Mutex // held while events move to the archive, and to keep them from moving
	// Held while events are removed from the index, and to keep them from that. If moving is needed too, lock that first.
	removing sync.Mutex

	changing sync.Mutex
	// Guarded by changing:
	changed map[store.MerchantKey]uint64 // the number of the last change
	changes uint64
	removed map[store.MerchantKey]uint64 // how many events

	expiring map[store.MerchantID]int64 // DIR/expiring; guarded by changing
}

// lastChunk returns the number of the last chunk of the archive and the journal; 0 when there is none.
func (s *stored) lastChunk() (uint64, error) {
	last, err := s.journal.LastChunk()
	return max(last, s.archive.Boundary()), ofEvents("events/", err)
}

// hasMoved reports whether a chunk is in the archive. A reader of the journal asks after it has looked for the next chunk.
// If the chunk where it continues has moved, it may have missed chunks, because the journal deletes those that have moved.
func (s *stored) hasMoved(seq uint64) bool { return seq <= s.archive.Boundary() }

// PauseMoves keeps events from moving until release is called.
func (s *stored) PauseMoves() (release func()) {
	s.moving.Lock()
	return s.moving.Unlock
}

// change is called before events of a merchant are removed, and done afterwards, with their number. In between, the index
// and the archive differ. So a comparison of the two waits, and skips merchants from which events were removed since it
// began (unchanged).
func (s *stored) change(m store.MerchantKey) (done func(events uint64)) {
	s.removing.Lock()
	return func(events uint64) {
		s.changing.Lock()
		s.changes++
		s.changed[m] = s.changes
		s.removed[m] += events
		s.changing.Unlock()
		s.removing.Unlock()
	}
}

// removedOf returns how many events of a merchant were removed since the engine was opened.
func (s *stored) removedOf(m store.MerchantKey) uint64 {
	s.changing.Lock()
	defer s.changing.Unlock()
	return s.removed[m]
}

// moment returns the number of the last change, for unchanged.
func (s *stored) moment() uint64 {
	s.changing.Lock()
	defer s.changing.Unlock()
	return s.changes
}

// unchanged reports whether no events of a merchant were removed since a moment.
func (s *stored) unchanged(m store.MerchantKey, since uint64) bool {
	s.changing.Lock()
	defer s.changing.Unlock()
	return s.changed[m] <= since
}

// readEvents calls use with the events of a merchant at these positions; n is the index of the position in positions.
// An event is valid until use returns. If some events are damaged, use has got only a part of the others, and
// readEvents returns journal.DamagedChunks or archive.Damaged.
func (s *stored) readEvents(ctx context.Context, m store.MerchantKey, positions []store.Position, use func(n int, event journal.Event)) error {
	places := make([]int, len(positions)) // places[i] is the index in positions of sorted[i]
	for i := range places {
		places[i] = i
	}
	slices.SortFunc(places, func(a, b int) int { return positions[a].Compare(positions[b]) })
	sorted := make([]store.Position, len(positions))
	for i, place := range places {
		sorted[i] = positions[place]
	}
	useSorted := func(i int, event journal.Event) { use(places[i], event) }
	archived, err := s.readArchived(ctx, m, sorted, useSorted)
	if err != nil {
		return err
	}
	sorted, places = sorted[archived:], places[archived:]
	for {
		err := s.journal.Read(ctx, sorted, useSorted)
		damaged, ok := errors.AsType[journal.DamagedChunks](err)
		if !ok {
			return err
		}
		// The events may have moved meanwhile: read those that the archive has now.
		moved, err := s.readArchived(ctx, m, sorted, useSorted)
		if err != nil {
			return err
		}
		if moved == 0 {
			return damaged
		}
		sorted, places = sorted[moved:], places[moved:]
	}
}

// readArchived reads the events that the archive has: those at the first n positions, which are sorted.
func (s *stored) readArchived(ctx context.Context, m store.MerchantKey, positions []store.Position, use func(i int, event journal.Event)) (n int, err error) {
	boundary := s.archive.Boundary()
	n, _ = slices.BinarySearchFunc(positions, store.Position{Seq: boundary + 1}, store.Position.Compare)
	if n == 0 {
		return 0, nil
	}
	var damaged archive.Damaged
	err = s.archive.Read(ctx, m, positions[:n], func(i int, stored archive.Event) {
		event, err := journal.DecodeBody(m, stored.Position, stored.Body)
		if err != nil {
			damaged = append(damaged, archive.Damage{Merchant: m, After: store.Position{Seq: stored.Seq - 1}, Last: stored.Position, Err: err})
			return
		}
		use(i, event)
	})
	if err == nil && damaged != nil {
		err = damaged
	}
	return n, unread(ctx, m, err)
}

// unread returns the error of an answer that needs events of a merchant that cannot be read now. Customers see it.
func unread(ctx context.Context, m store.MerchantKey, err error) error {
	if err == nil || ctx.Err() != nil || isDamage(err) || store.KindOf(err) != store.KindInternal {
		return err
	}
	return fmt.Errorf("%w: %v", &store.Error{Kind: store.KindUnavailable, Field: "merchantId",
		Message: string(m.ID()) + ": some of its events cannot be read now. Ask again in a minute, or for other merchants only"}, err)
}

// ofEvents wraps an error of reading events without codec.ErrCorrupt, so that it is not taken for damage of the index.
func ofEvents(dir string, err error) error {
	if errors.Is(err, codec.ErrCorrupt) {
		return fmt.Errorf("%s: %v", dir, err)
	}
	return err
}
