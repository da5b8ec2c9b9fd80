package read

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/merge"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
)

const (
	feedEvents   = 30_000  // that one call of Feed reads, about
	feedBytes    = 4 << 20 // of their bodies that one statement returns, about
	firstPortion = 512     // events that the first statement reads, of all merchants together
	maxPortion   = 4096    // of one merchant

	// With more merchants than this, Feed asks first which of them have events in the last flushes.
	ManyMerchants = 16
)

// Feed implements store.Feed. It reads the events of each merchant in portions, and merges them. Flushes are numbered in the
// order of their commits, so all events up to the last visible flush are visible, too.
func (r *Reader) Feed(ctx context.Context, q store.FeedQuery, use func(*store.Received) bool) (end store.FeedEnd, err error) {
	f := &feed{FeedQuery: q, ready: merge.New(func(a, b *stream) bool { return a.next[0].position.Compare(b.next[0].position) < 0 })}
	var ok bool
	if f.at, ok = store.ParseCursor(q.After); !ok {
		return end, store.Invalid("after", "is not a cursor of this service")
	}
	citus, err := r.beginFeed(ctx, f)
	if err == nil && citus && len(f.empty) > 0 {
		err = r.db.AwaitCommits(ctx)
	}
	if err != nil {
		return end, err
	}
	for read := 0; read < feedEvents; {
		if len(f.empty) > 0 {
			n, err := r.readPortions(ctx, f)
			if err != nil {
				return end, err
			}
			read += n
			continue
		}
		received := f.pop()
		if received == nil {
			if f.at.Compare(f.end) < 0 {
				f.at = f.end
			}
			break
		}
		f.at = received.position
		if received.selected && !use(&received.Received) {
			break
		}
	}
	return store.FeedEnd{Cursor: f.at.Cursor(), More: f.at.Compare(f.end) < 0}, nil
}

// Latest implements store.Feed.
func (r *Reader) Latest(ctx context.Context) (store.Cursor, error) {
	last, err := r.control.LastFlush(ctx)
	return store.EndOf(uint64(last)).Cursor(), err
}

// feed is one call of Feed.
type feed struct {
	store.FeedQuery
	at     store.Position         // everything up to here was read
	end    store.Position         // of the call
	server int64                  // ThisServer of the first read: answers of another server are not confirmed
	empty  []*stream              // whose next events must be read before the feed goes on
	ready  merge.Sources[*stream] // those with events
}

// stream is the events of one merchant, in the order of receipt.
type stream struct {
	merchant uuid.UUID
	id       store.MerchantID
	from     int64      // older events are past the retention
	next     []received // that were read, and are not used yet
	at       store.Position
	portion  int  // how many are read next
	done     bool // there are no more
}

// received is an event for the caller. One that the query does not select has no body: it only moves the feed on.
type received struct {
	store.Received
	position store.Position
	selected bool
}

// beginFeed finds the end of the feed, and the merchants that may have events. citus says whether the database has the
// extension. Without it, there are no workers to wait for.
func (r *Reader) beginFeed(ctx context.Context, f *feed) (citus bool, err error) {
	upTo, ok := store.ParseCursor(f.UpTo)
	if !ok {
		return false, store.Invalid("upTo", "is not a cursor of this service")
	}
	var merchants []uuid.UUID
	ids := map[uuid.UUID]store.MerchantID{}
	for _, id := range f.Merchants {
		if key, ok := conn.KeyOf(id); ok && ids[key] == "" {
			merchants, ids[key] = append(merchants, key), id
		}
	}
	var seen conn.Snapshot
	if err := r.db.Read(ctx, func(tx pgx.Tx) error {
		var oldest int64
		if err := tx.QueryRow(ctx, "SELECT "+conn.ThisServer+", coalesce(max(seq), 0), coalesce(min(seq), 0), "+conn.CitusInstalled+" FROM flush WHERE seq > 0").
			Scan(&seen.Server, &seen.Flush, &oldest, &citus); err != nil {
			return err
		}
		if f.end = store.EndOf(uint64(seen.Flush)); f.UpTo != "" && upTo.Compare(f.end) < 0 {
			f.end = upTo
		}
		f.empty = nil
		if f.at.Compare(f.end) >= 0 {
			return nil
		}
		of := merchants
		if len(of) > ManyMerchants && int64(f.at.Seq) >= oldest {
			lately, err := conn.Column[uuid.UUID](ctx, tx, "SELECT DISTINCT unnest(merchants) FROM flush WHERE seq >= $1", int64(f.at.Seq))
			if err != nil {
				return err
			}
			of = slices.DeleteFunc(lately, func(m uuid.UUID) bool { return ids[m] == "" })
		}
		scopes, err := r.control.Scopes(ctx, tx, of...)
		if err != nil {
			return err
		}
		for i, s := range scopes {
			if !s.Removed {
				f.empty = append(f.empty, &stream{merchant: of[i], id: ids[of[i]], from: s.From, at: f.at,
					portion: max(firstPortion/len(of), 8)})
			}
		}
		return nil
	}); err != nil {
		return false, err
	}
	// What the reader of a feed has got must never be lost, and nothing may come before it later.
	f.server = seen.Server
	return citus, r.db.Confirm(ctx, seen)
}

// selectFeed reads the next events of a merchant. It leaves out the bodies of events that the query does not select.
var selectFeed = `SELECT ` + EventColumns + `, CASE WHEN selected THEN raw END, selected
	FROM (SELECT *, at >= $2 AND at < $3 AND ($4::text IS NULL OR tag = $4) AND ($5::text[] IS NULL OR name = ANY($5))
			AND ($6::boolean IS NULL OR bot = $6) AS selected
		FROM event WHERE merchant = $1 AND (seq, idx::int) > ($7, $8) AND seq >= $7 AND (seq, idx::int) <= ($9, $10) AND seq <= $9
		ORDER BY seq, idx LIMIT $11) AS x ORDER BY seq, idx`

// readPortions reads the next events of the streams that have none, and returns how many it has read.
func (r *Reader) readPortions(ctx context.Context, f *feed) (n int, err error) {
	streams := f.empty
	sel, ok := newSelection(uuid.Nil, f.Tag, f.Names, f.Bot)
	lo, hi := rangeOf(f.From, f.To)
	if !ok {
		lo, hi = control.Latest, control.Latest // nothing is selected
	}
	got := make([][]received, len(streams))
	full := false // not all rows were read
	err = r.db.Read(ctx, func(tx pgx.Tx) error {
		clear(got)
		size := 0
		b := &pgx.Batch{} // a batch remembers the statements of its connection: each attempt needs its own
		b.Queue("SELECT " + conn.ThisServer).QueryRow(func(row pgx.Row) error {
			var server int64
			err := row.Scan(&server)
			if err == nil && server != f.server {
				err = conn.ErrReplaced
			}
			return err
		})
		for i, s := range streams {
			b.Queue(selectFeed, s.merchant, max(lo, s.from), hi, sel.tag, sel.names, sel.bot, int64(s.at.Seq), int32(s.at.Index),
				int64(f.end.Seq), int32(f.end.Index), s.portion).Query(func(rows pgx.Rows) error {
				for size <= feedBytes && rows.Next() {
					var e eventRow
					var selected bool
					if err := rows.Scan(append(e.fields(), &selected)...); err != nil {
						return err
					}
					got[i] = append(got[i], received{store.Received{Event: e.assembled(), Merchant: s.id, Tag: e.Tag,
						ReceivedAt: TimeAt(int64(e.At.Seq)), Cursor: e.At.Cursor()}, e.At, selected})
					size += len(e.Raw)
				}
				return nil
			})
		}
		err := tx.SendBatch(ctx, b).Close()
		full = size > feedBytes
		return err
	})
	if err != nil {
		return 0, err
	}
	f.empty = nil
	for i, s := range streams {
		n += len(got[i])
		// When not all rows were read, the streams after the last one that has rows are read next.
		s.done = len(got[i]) < s.portion && !full
		s.portion = min(4*s.portion, maxPortion)
		if len(got[i]) > 0 {
			s.next, s.at = got[i], got[i][len(got[i])-1].position
			f.ready.Add(s)
		} else if !s.done {
			f.empty = append(f.empty, s)
		}
	}
	return max(n, 1), nil
}

// pop returns the next event of all streams; nil when there is none.
func (f *feed) pop() *received {
	first, ok := f.ready.First()
	if !ok {
		return nil
	}
	r := &first.next[0]
	if first.next = first.next[1:]; len(first.next) > 0 {
		f.ready.Moved()
		return r
	}
	f.ready.RemoveFirst()
	if !first.done {
		f.empty = append(f.empty, first)
	}
	return r
}
