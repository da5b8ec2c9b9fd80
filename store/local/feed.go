package local

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
)

// Bounds of one call of Feed. It ends after about 30,000 events, which takes about 30 ms.
const (
	feedEvents = 30_000

	// Archived events are read in portions. The first one of a call is small, as the caller may want only a few events.
	firstPortion, maxPortion = 512, 8192
)

// Feed implements store.Feed. It reads the archive, and then the journal, until the end of the query. In the journal it
// skips chunks that are known to have no events of the merchants.
func (r *reader) Feed(ctx context.Context, q store.FeedQuery, use func(*store.Received) bool) (store.FeedEnd, error) {
	_, done, err := r.beginReading(ctx) // it ends soon by itself
	if err != nil {
		return store.FeedEnd{}, err
	}
	defer done()
	q.Merchants = r.control.WithoutRemoved(q.Merchants)
	after, ok := store.ParseCursor(q.After)
	if !ok {
		return store.FeedEnd{}, store.Invalid("after", "is not a cursor of this service")
	}
	end := store.EndOf(r.watchers.last.Load())
	if q.UpTo != "" {
		upTo, ok := store.ParseCursor(q.UpTo)
		if !ok {
			return store.FeedEnd{}, store.Invalid("upTo", "is not a cursor of this service")
		}
		end = earlier(end, upTo)
	}
	f := newFeed(q, after, end, r.retainedFrom)
	var event store.Received
	f.use = func(e *journal.Event, of store.MerchantID) bool {
		event = f.received(e, of)
		return use(&event)
	}
	for f.at.Compare(f.end) < 0 && !f.full() {
		if err := r.feedNext(ctx, f); err != nil {
			return store.FeedEnd{}, err
		}
	}
	return store.FeedEnd{Cursor: f.at.Cursor(), More: f.at.Compare(f.end) < 0}, nil
}

// feedNext reads the next portion of the archive or of the journal.
func (r *reader) feedNext(ctx context.Context, f *feed) (err error) {
	if boundary := r.archive.Boundary(); f.nextChunk() <= boundary {
		err = r.feedArchived(ctx, f, store.EndOf(boundary))
	} else {
		err = r.feedJournal(ctx, f)
	}
	if damaged, ok := errors.AsType[journal.DamagedChunks](err); ok {
		err = r.feedPast(ctx, f, damaged)
	}
	return err
}

// beginReading begins a long read, which ends with its context when Close begins. Close waits until done is called.
func (r *reader) beginReading(ctx context.Context) (_ context.Context, done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	r.verifying.RLock()
	if r.opened.Err() != nil {
		r.verifying.RUnlock()
		return nil, nil, store.Unavailable("the service is stopping")
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(r.opened, cancel)
	return ctx, func() {
		stop()
		cancel()
		r.verifying.RUnlock()
	}, nil
}

// feedArchived reads the next portion of the archive, whose end is end.
func (r *reader) feedArchived(ctx context.Context, f *feed, end store.Position) error {
	next, err := r.nextArchived(ctx, f, earlier(end, f.end))
	if err != nil {
		return err
	}
	for _, stored := range next.Events {
		event, err := journal.DecodeBody(stored.Merchant, stored.Position, stored.Body)
		if err != nil {
			return ofEvents("archive/", err)
		}
		f.events++
		if !f.takeEvent(&event) {
			return nil
		}
	}
	f.moveTo(next.UpTo)
	f.portion = min(4*f.portion, maxPortion)
	return nil
}

// nextArchived reads the next portion of the archive, up to end. It leaves out damaged blocks that were noted before. When
// it finds others, it notes them, and fails: nobody may take the answer for complete. The next call goes around them.
func (r *reader) nextArchived(ctx context.Context, f *feed, end store.Position) (archive.Next, error) {
	next, err := r.archive.Next(ctx, f.merchants, f.at, end, f.portion)
	if unreadable, ok := errors.AsType[archive.Unread](err); ok {
		err = unread(ctx, unreadable.Merchant, err)
	}
	if err != nil {
		return archive.Next{}, ofEvents("archive/", err)
	}
	found := slices.DeleteFunc(next.Damaged, r.damage.isNotedBlock)
	if len(found) == 0 {
		return next, nil
	}
	if err := r.index.withIndex(func(x *usedIndex) error { return r.noteBlocks(ctx, x.Index, found) }); err != nil {
		return archive.Next{}, err
	}
	return archive.Next{}, unread(ctx, found[0].Merchant, errors.New(found[0].Err.Error()))
}

// feedJournal reads the next chunks of the journal.
func (r *reader) feedJournal(ctx context.Context, f *feed) error {
	err := r.journal.Scan(ctx, f.nextChunk(), f.end.Seq, f.chunks, func(seq uint64, events []journal.Event) (more bool) {
		return !r.hasMoved(f.nextChunk()) && f.take(seq, events)
	})
	if f.stopped || r.hasMoved(f.nextChunk()) {
		return nil
	}
	if err == nil && !f.full() {
		f.moveTo(f.end)
	}
	return err
}

// feedPast moves the feed past a damaged chunk that was noted before. It notes another one, and fails: nobody may take
// the answer for complete. If the chunk can be read now, or has moved to the archive, the feed stays where it is.
func (r *reader) feedPast(ctx context.Context, f *feed, damaged journal.DamagedChunks) error {
	seq := damaged[0].Seq
	known := r.damage.isNoted(seq)
	if err := r.index.withIndex(func(x *usedIndex) error { return r.noteChunks(ctx, x.Index, damaged) }); err != nil {
		return err
	}
	if f.events++; r.journal.CheckChunk(seq) == nil || r.hasMoved(seq) {
		return nil
	}
	if !known {
		return store.Unavailable("events were found damaged")
	}
	f.moveTo(store.EndOf(seq))
	return nil
}

// Latest implements store.Feed.
func (r *reader) Latest(context.Context) (store.Cursor, error) {
	return store.EndOf(r.watchers.last.Load()).Cursor(), nil
}

// feed is one call of Feed.
type feed struct {
	store.FeedQuery
	use       func(e *journal.Event, of store.MerchantID) (more bool) // the event is valid until it returns
	merchants []store.MerchantKey
	wanted    map[store.MerchantKey]wantedEvents
	chunks    journal.MerchantSet // of the merchants

	at      store.Position // everything up to here was read
	end     store.Position // the end of the query
	events  int            // how many were read
	portion int            // how many archived events to read next
	stopped bool           // by use

	texts map[string]string
}

// keptForEver is a retainedFrom for all events.
func keptForEver(store.MerchantID) int64 { return math.MinInt64 }

// wantedEvents are a merchant's events from a time on (µs since 1970).
type wantedEvents struct {
	merchant store.MerchantID
	from     int64
}

// newFeed returns the feed of a query after a position and up to another one, without its use.
func newFeed(q store.FeedQuery, after, end store.Position, retainedFrom func(store.MerchantID) int64) *feed {
	f := &feed{FeedQuery: q, at: after, end: end, portion: firstPortion, texts: map[string]string{}}
	f.wanted = make(map[store.MerchantKey]wantedEvents, len(q.Merchants))
	for _, id := range q.Merchants {
		if m, err := store.NewMerchantKey(id); err == nil { // no merchant has an id of another form
			f.merchants = append(f.merchants, m)
			f.wanted[m] = wantedEvents{id, retainedFrom(id)}
		}
	}
	f.chunks = journal.NewMerchantSet(f.merchants...)
	return f
}

// nextChunk returns the first chunk that was not read completely.
func (f *feed) nextChunk() uint64 {
	if f.at == store.EndOf(f.at.Seq) {
		return f.at.Seq + 1
	}
	return f.at.Seq
}

// full reports whether this call reads no more.
func (f *feed) full() bool { return f.stopped || f.events >= feedEvents }

// moveTo moves the feed forward, but not past its end.
func (f *feed) moveTo(at store.Position) {
	if at = earlier(at, f.end); at.Compare(f.at) > 0 {
		f.at = at
	}
}

func earlier(a, b store.Position) store.Position {
	if a.Compare(b) < 0 {
		return a
	}
	return b
}

// take passes the events of a chunk to the caller (journal.Use).
func (f *feed) take(seq uint64, events []journal.Event) (more bool) {
	for i := range events {
		e := &events[i]
		if e.Position.Compare(f.at) <= 0 {
			continue
		}
		if e.Position.Compare(f.end) > 0 {
			break
		}
		if !f.takeEvent(e) {
			return false
		}
	}
	f.moveTo(store.EndOf(seq))
	f.events += len(events)
	return !f.full()
}

// takeEvent passes an event to the caller if the query selects it. It returns false when the caller wants no more.
func (f *feed) takeEvent(e *journal.Event) (more bool) {
	wanted, ok := f.wanted[e.Merchant]
	if !ok || e.Time < wanted.from || !f.selects(e) {
		return true
	}
	f.at = e.Position
	f.stopped = !f.use(e, wanted.merchant)
	return !f.stopped
}

// selects reports whether an event passes the filters of the query.
func (f *feed) selects(e *journal.Event) bool {
	if f.Tag != "" || f.Names != nil {
		tag, name := codec.SplitSeries(e.Series)
		if f.Tag != "" && string(tag) != string(f.Tag) || f.Names != nil && !slices.Contains(f.Names, string(name)) {
			return false
		}
	}
	if f.Bot != nil && codec.IsBot(e.Series) != *f.Bot {
		return false
	}
	if f.From == nil && f.To == nil {
		return true
	}
	at := timeOf(e.Time)
	return (f.From == nil || !at.Before(*f.From)) && (f.To == nil || !at.After(*f.To))
}

// received returns an event for the caller. Its body aliases the chunk.
func (f *feed) received(e *journal.Event, id store.MerchantID) store.Received {
	tag, name := codec.SplitSeries(e.Series)
	return store.Received{
		Event: store.Event{
			ID:      e.EventID(),
			MUID:    store.MUID(e.MUID),
			Name:    f.text(name),
			Time:    timeOf(e.Time),
			Raw:     e.Raw,
			Bot:     codec.IsBot(e.Series),
			Details: e.Details,
		},
		Merchant:   id,
		Tag:        store.TagID(f.text(tag)),
		ReceivedAt: time.UnixMicro(int64(e.Seq)).UTC(),
		Cursor:     e.Cursor(),
	}
}

// text returns a tag or name as a string. Most events have one of a few.
func (f *feed) text(b []byte) string {
	if s, ok := f.texts[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(f.texts) < 1024 {
		f.texts[s] = s
	}
	return s
}
