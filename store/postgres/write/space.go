package write

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"mtagd/store"
	"mtagd/store/postgres/count"
)

// defaultSize is how many bytes events and links may take when Options.Size is 0. If twice their size when the engine opens
// is more, that is the limit, so that a service with more data does not stop after an upgrade.
const defaultSize = 100 << 30

const (
	// eventCost is about what an event takes besides its bytes in usage: its rows and indexes, an event_id. Plain events
	// take less.
	eventCost = 1 << 10

	// LinkCost is about how many bytes a row of link, held_link or linked_muid takes, with its indexes.
	LinkCost = 256

	spaceInterval = 5 * time.Second
	SpaceLooks    = 4 // number of looks after which usage includes what was recorded
)

// space knows how many bytes events and links may still take. usage includes recorded events only after a while. So a node
// adds its own events of the last looks: at worst they count twice, but they always count. Events of other nodes count late.
type space struct {
	recorded atomic.Int64 // bytes that this node has recorded since it opened
	limit    atomic.Int64 // of recorded

	looking sync.Mutex // guards what follows
	size    int64
	looked  [SpaceLooks]int64 // recorded at the last looks, the oldest first
	full    bool
}

// noteRecorded adds the size of recorded events and rows of links.
func (s *space) noteRecorded(t count.Deltas, links int) {
	bytes := int64(links) * LinkCost
	for _, a := range t {
		bytes += a.Bytes + a.N*eventCost
	}
	s.recorded.Add(bytes)
}

// countLinks counts the rows of links, about: by the server's statistics, or as the last VACUUM or ANALYZE has found them if
// these are more. After a crash the server has no statistics. A distributed database has both on the workers: there only
// those links count that the node itself has just made.
const countLinks = `SELECT coalesce(sum(greatest(reltuples, pg_stat_get_live_tuples(oid), 0)), 0)::bigint FROM pg_class
	WHERE oid = ANY('{link,held_link,linked_muid}'::regclass[])`

func (s *space) bytesLeft() int64 { return max(0, s.limit.Load()-s.recorded.Load()) }

// FreeSpace implements store.Engine.
func (w *Writer) FreeSpace() uint64 { return uint64(w.space.bytesLeft()) }

// LookAtSpace reads how much space events take, and logs when refusals begin or end.
func (w *Writer) LookAtSpace(ctx context.Context) error {
	s := &w.space
	s.looking.Lock()
	defer s.looking.Unlock()
	recorded := s.recorded.Load()
	var stored, links int64
	if err := w.db.Pool.QueryRow(ctx, "SELECT coalesce(sum(bytes + events * $1), 0)::bigint FROM usage", eventCost).Scan(&stored); err != nil {
		return err
	}
	if err := w.db.Pool.QueryRow(ctx, countLinks).Scan(&links); err != nil {
		return err
	}
	stored += links * LinkCost
	if s.size == 0 {
		s.size = max(defaultSize, 2*stored)
	}
	s.limit.Store(s.size - stored + s.looked[0])
	copy(s.looked[:], s.looked[1:])
	s.looked[SpaceLooks-1] = recorded
	if full := s.bytesLeft() == 0; full != s.full {
		s.full = full
		message := "events are accepted: there is space again"
		if full {
			message = "events are refused: they and links take as much of the database as they may. Let it take more with --store-size, or keep events for less time"
		}
		w.db.Log.Warn(message, "accepting_events", !full, "stored_bytes", stored, "store_size", s.size)
	}
	return nil
}

// watchSpace looks until Close.
func (w *Writer) watchSpace() {
	w.db.Repeat(spaceInterval, w.LookAtSpace, func(err error) {
		if err != nil {
			w.db.Log.Error("the size of the stored events cannot be read: limits use the last known size", "error", err)
		}
	})
}

var errFull = store.Unavailable("the database is nearly full")
