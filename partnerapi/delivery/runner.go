package delivery

import (
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"mtagd/store"
)

// runner is one destination. It has a goroutine only while it has something to do. Everything is guarded by the shard's mu.
type runner struct {
	sh       *shard
	merchant store.MerchantID
	id       string
	route    *route // nil: it cannot be used, because of problem
	off      bool   // paused
	removed  bool
	problem  string

	st       state
	attached bool
	joining  bool         // waits to be attached
	read     store.Cursor // if it is detached: everything up to here was read
	pending  []*item      // read, and not taken up yet
	flight   []*item      // under way
	replayed bool         // pending and flight belong to the first of st.Replays
	turn     bool         // of the replays
	begun    uint64       // the last Replay that was begun, noted in st or not
	running  bool
	timer    *time.Timer

	deliveries []Delivery       // not written yet
	dropped    []store.Document // to be deleted
}

// item is an event that waits. Several destinations may share it.
type item struct {
	event store.Received
	after store.Cursor // the place before it
	who   uint32
	read  time.Time // what was erased later may be in it
}

func newItem(e *store.Received, after store.Cursor) *item {
	one := &item{event: *e, after: after, read: time.Now()}
	one.event.Raw = slices.Clone(e.Raw)
	one.event.MUID = store.MUID(strings.Clone(string(e.MUID)))
	h := fnv.New32a()
	_, _ = h.Write([]byte(e.MUID)) // never fails
	one.who = h.Sum32()
	return one
}

func (i *item) size() int { return len(i.event.Raw) + 512 }

// Bounds of one destination.
const (
	maxPending = 4096    // events
	maxRound   = 2048    // events of one round
	roundBytes = 1 << 20 // of one round, about
	readEvents = 1024
)

// memory bounds the events that are under way.
type memory struct{ *semaphore.Weighted }

const maxMemory = 32 << 20

func newMemory() *memory { return &memory{semaphore.NewWeighted(maxMemory)} }

// isOn reports whether the destination delivers. The caller holds mu, as for all that follows.
func (r *runner) isOn() bool { return r.route != nil && !r.off && !r.removed }

// configure takes over settings.
func (r *runner) configure(d Destination) {
	rt, err := r.sh.s.open(d)
	r.route, r.problem, r.off = rt, "", d.Paused
	if err != nil {
		r.route, r.problem = nil, err.Error()
		r.st.LastError = r.problem
	}
	if r.read == "" && !r.attached {
		r.read = r.st.Cursor
	}
	if !r.isOn() && r.attached {
		r.detach()
	}
	for _, replay := range d.Replays {
		if replay.ID > max(r.st.Replayed, r.begun) {
			r.begun = replay.ID
			r.beginReplay(replay)
		}
	}
	r.st.NextTry = time.Time{} // the change may have helped
	r.markDirty()
}

func (r *runner) markDirty() {
	if !r.removed {
		r.sh.dirty[r] = true
	}
}

// current returns the state to store.
func (r *runner) current() state {
	st := r.st
	switch {
	case len(r.flight) > 0 && !r.replayed:
		st.Cursor, st.Attached = r.flight[0].after, false
	case len(r.pending) > 0 && !r.replayed:
		st.Cursor, st.Attached = r.pending[0].after, false
	case r.attached:
		st.Cursor, st.Attached = r.sh.head, true
	default:
		st.Cursor, st.Attached = r.read, false
	}
	st.Retry, st.Replays = slices.Clone(st.Retry), slices.Clone(st.Replays)
	return st
}

// add adds an event to an attached destination.
func (r *runner) add(one *item) {
	r.pending = append(r.pending, one)
	r.sh.waiting += one.size()
	r.markDirty()
}

// detach lets an attached destination go on by itself from the first event that it has not taken up.
func (r *runner) detach() {
	r.dropPending(r.sh.head)
	r.attached = false
	r.markDirty()
	r.sh.nudge()
	r.kick()
}

// dropPending gives memory back: the events are read again, from the first one on, or from a place when there is none.
func (r *runner) dropPending(otherwise store.Cursor) {
	if r.read = otherwise; len(r.pending) > 0 {
		r.read = r.pending[0].after
	}
	if r.attached {
		for _, one := range r.pending {
			r.sh.waiting -= one.size()
		}
	}
	r.pending = nil
}

func (r *runner) remove() {
	r.removed = true
	if r.attached {
		r.detach()
	}
	r.stopTimer()
	delete(r.sh.dirty, r)
	// What is known of its deliveries goes too.
	sh := r.sh
	sh.runners.Go(func() { sh.forget(r.merchant, r.id) })
}

// forget deletes what is stored of a destination that was deleted. The state goes too, so openShard finds what a kill has left.
func (sh *shard) forget(m store.MerchantID, id string) {
	s, ctx := sh.s, sh.ctx
	sh.flushing.Lock() // a flush may be about to write it
	defer sh.flushing.Unlock()
	gone := []store.Document{{Kind: store.DeliveryStates, Merchant: m, ID: id}}
	for _, kind := range []store.DocumentKind{store.Deliveries, store.DeadLetters} {
		docs, err := s.Engine.Documents(ctx, kind, m)
		if err != nil {
			s.Log.Warn("deliveries of a destination that was deleted stay until the next start", "error", err)
			return
		}
		for _, doc := range docs {
			if strings.HasPrefix(doc.ID, id+"/") {
				doc.Content = nil
				gone = append(gone, doc)
			}
		}
	}
	if err := s.Engine.PutDocuments(ctx, gone); err != nil {
		s.Log.Warn("deliveries of a destination that was deleted stay", "error", err)
	}
}

func (r *runner) stopTimer() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// kickAt lets the destination run at a time.
func (r *runner) kickAt(at time.Time) {
	r.stopTimer()
	r.timer = time.AfterFunc(max(at.Sub(r.sh.s.Now()), time.Millisecond), func() {
		r.sh.mu.Lock()
		defer r.sh.mu.Unlock()
		r.kick()
	})
}

// kick lets the destination run, unless it does.
func (r *runner) kick() {
	if r.running || r.joining || !r.isOn() || r.sh.ctx.Err() != nil {
		return
	}
	r.running = true
	r.sh.runners.Go(r.run)
}

// run works until there is nothing to do.
func (r *runner) run() {
	sh := r.sh
	for {
		sh.mu.Lock()
		work := r.next()
		if work == nil {
			r.running = false
		}
		sh.mu.Unlock()
		if work == nil {
			return
		}
		// Thousands may have something to do at once. Those that wait here have small stacks.
		select {
		case sh.working <- struct{}{}:
		case <-sh.ctx.Done():
			continue
		}
		release := sync.OnceFunc(func() { <-sh.working })
		soon := time.AfterFunc(time.Second, release) // who waits for an answer keeps nobody else waiting
		work()
		soon.Stop()
		release()
	}
}

// next returns what to do now; nil: nothing.
func (r *runner) next() func() {
	sh, now := r.sh, r.sh.s.Now()
	r.stopTimer()
	switch {
	case sh.ctx.Err() != nil, r.joining: // join goes on with it
		return nil
	case !r.isOn():
		r.rest()
		return nil
	case !r.route.until.IsZero() && now.After(r.route.until):
		r.configure(r.route.Destination)
		return r.next()
	case now.Before(r.st.NextTry):
		r.rest()
		r.kickAt(r.st.NextTry)
		return nil
	}
	if due := r.dueRetries(now); len(due) > 0 && len(r.flight) == 0 {
		return func() { r.retry(due) }
	}
	switch {
	case len(r.pending) > 0:
		return r.sendPending
	case len(r.st.Replays) > 0 && (r.attached || r.turn):
		if r.attached {
			r.detach()
		}
		r.turn = false
		return func() { r.readNext(true) }
	case r.attached:
		if at, waits := r.nextRetry(); waits {
			r.kickAt(at)
		}
		return nil
	}
	return func() { r.readNext(false) }
}

// rest gives back the memory of a destination that waits.
func (r *runner) rest() {
	switch {
	case r.replayed:
		r.pending, r.replayed = nil, false
	case r.attached:
		r.detach()
	default:
		r.dropPending(r.read)
	}
}

// readNext reads the next events of a detached destination: those that it has missed, or the next ones of a replay. When none are missing,
// it goes on with a replay, or waits to be attached.
func (r *runner) readNext(replay bool) {
	sh := r.sh
	select {
	case sh.reads <- struct{}{}:
	case <-sh.ctx.Done():
		return
	}
	sh.mu.Lock()
	rt, failing := r.route, r.st.Failures > 0
	q := store.FeedQuery{Merchants: []store.MerchantID{r.merchant}, After: r.read}
	if replay {
		job := r.st.Replays[0]
		q.After, q.UpTo, q.From, q.To = job.After, job.UpTo, job.From, job.To
	}
	sh.mu.Unlock()
	limit := readEvents
	if failing && rt != nil {
		limit = max(1, rt.target.Limits().Events/rt.target.Limits().Lanes) // one request shows whether it goes on
		if r.expiring() {
			limit = readEvents
		}
	}
	var items []*item
	prev, size := q.After, 0
	end, err := sh.s.Engine.Feed(sh.ctx, q, func(e *store.Received) bool {
		if rt != nil && rt.wants(e) {
			one := newItem(e, prev)
			items = append(items, one)
			size += one.size()
		}
		prev = e.Cursor
		return len(items) < limit && size < roundBytes
	})
	<-sh.reads
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if err != nil {
		if sh.ctx.Err() == nil {
			sh.s.Log.Warn("events cannot be read for their delivery; it is tried again", "merchant", r.merchant, "error", err)
			r.st.NextTry = sh.s.Now().Add(time.Second)
			if store.KindOf(err) == store.KindInvalid { // a cursor of another engine: a replay that makes no sense
				r.endReplay(replay)
			}
		}
		return
	}
	r.markDirty()
	if replay {
		job := &r.st.Replays[0]
		switch {
		case len(items) > 0:
			r.pending, r.replayed = items, true
		case end.More:
			job.After = end.Cursor
		default:
			r.endReplay(true)
		}
		return
	}
	r.read = end.Cursor
	r.pending = items
	if len(items) > 0 || end.More {
		return
	}
	if r.turn = len(r.st.Replays) > 0; r.turn {
		return
	}
	if r.isOn() && !r.joining {
		r.joining = true
		sh.joining = append(sh.joining, r)
		sh.nudge()
	}
}

func (r *runner) endReplay(is bool) {
	if is && len(r.st.Replays) > 0 {
		r.st.Replays = slices.Delete(slices.Clone(r.st.Replays), 0, 1)
	}
}

// dueRetries returns the retries to be made now, in the order of the feed: only the first one of each visitor.
func (r *runner) dueRetries(now time.Time) (due []retry) {
	seen := map[uint32]bool{}
	for _, e := range r.st.Retry {
		if seen[e.Who] {
			continue
		}
		seen[e.Who] = true
		if !e.Next.After(now) {
			due = append(due, e)
		}
		if len(due) == 64 || len(due) == 1 && r.st.Failures > 0 {
			break
		}
	}
	return due
}

// nextRetry returns when the next retry is due.
func (r *runner) nextRetry() (at time.Time, waits bool) {
	seen := map[uint32]bool{}
	for _, e := range r.st.Retry {
		if !seen[e.Who] && (!waits || e.Next.Before(at)) {
			at, waits = e.Next, true
		}
		seen[e.Who] = true
	}
	return at, waits
}

// retry reads events again that have failed, and sends them.
func (r *runner) retry(due []retry) {
	sh := r.sh
	var items []*item
	gone := map[store.Cursor]bool{}
	for _, e := range due {
		found, err := false, error(nil)
		q := store.FeedQuery{Merchants: []store.MerchantID{r.merchant}, After: e.After, UpTo: e.At}
		for end := (store.FeedEnd{More: true}); err == nil && !found && end.More; q.After = end.Cursor { // many events of others may be before it
			end, err = sh.s.Engine.Feed(sh.ctx, q, func(got *store.Received) bool {
				if found = got.Cursor == e.At; found {
					items = append(items, newItem(got, e.After))
				}
				return !found
			})
		}
		if err != nil {
			sh.mu.Lock()
			r.st.NextTry = sh.s.Now().Add(time.Second)
			sh.mu.Unlock()
			return
		}
		gone[e.At] = !found
	}
	sh.mu.Lock()
	for at, is := range gone {
		if is { // it was erased, or is past its retention
			r.st.Counts.Erased++
			r.dropRetry(at)
		}
	}
	rt := r.route
	r.markDirty()
	sh.mu.Unlock()
	if rt == nil || len(items) == 0 {
		return
	}
	done := r.send(rt, items, true)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.noteRetries(rt, done)
}

func (r *runner) dropRetry(at store.Cursor) {
	r.st.Retry = slices.DeleteFunc(r.st.Retry, func(e retry) bool { return e.At == at })
}

// blocked returns the visitors of whom an event is tried again: their later events wait.
func (r *runner) blocked() map[uint32]bool {
	all := make(map[uint32]bool, len(r.st.Retry))
	for _, e := range r.st.Retry {
		all[e.Who] = true
	}
	return all
}

// sendPending sends the next events.
func (r *runner) sendPending() {
	sh := r.sh
	sh.mu.Lock()
	n, size := 0, 0
	for n < len(r.pending) && n < maxRound && size < roundBytes {
		size += r.pending[n].size()
		n++
	}
	r.flight = r.pending[:n:n]
	r.pending = r.pending[n:]
	rt, wasAttached := r.route, r.attached
	if wasAttached {
		sh.waiting -= size
	}
	sh.mu.Unlock()
	weight := int64(min(size, maxMemory))
	if sh.s.memory.Acquire(sh.ctx, weight) != nil {
		return // flight stays: it is what current stores
	}
	done := r.send(rt, r.flight, false)
	sh.s.memory.Release(weight)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.note(rt, done)
}

// beginReplay notes what a replay sends again.
func (r *runner) beginReplay(replay Replay) {
	switch {
	case replay.DeadLetters || replay.Discard || replay.Delivery != "":
		sh := r.sh
		sh.runners.Go(func() {
			for !sh.replayDeliveries(r, replay) {
				select {
				case <-sh.ctx.Done():
					return
				case <-time.After(time.Second):
				}
			}
		})
	default:
		r.st.Replays = append(slices.Clone(r.st.Replays), replaying{UpTo: replay.UpTo, From: replay.From, To: replay.To})
		r.st.Replayed = replay.ID
	}
}

// replayDeliveries begins to replay the events of dead letters or of one delivery, or discards the dead letters. It returns false when it
// must be tried again.
func (sh *shard) replayDeliveries(r *runner, replay Replay) (begun bool) {
	kinds := []store.DocumentKind{store.DeadLetters}
	if replay.Delivery != "" {
		kinds = append(kinds, store.Deliveries)
	}
	if err := sh.flush(sh.ctx); err != nil { // those that are not written yet
		sh.s.Log.Warn("a replay cannot begin yet", "destination", r.id, "error", err)
		return false
	}
	var ranges []replaying
	var gone []store.Document
	for _, kind := range kinds {
		docs, err := sh.s.deliveries(sh.ctx, kind, r.merchant, r.id)
		if err != nil {
			sh.s.Log.Warn("a replay cannot begin yet", "destination", r.id, "error", err)
			return false
		}
		for _, d := range docs {
			if replay.Delivery != "" && d.ID != replay.Delivery {
				continue
			}
			if !replay.Discard {
				ranges = append(ranges, replaying{After: d.After, UpTo: d.UpTo})
			}
			if d.State == Dead {
				gone = append(gone, store.Document{Kind: kind, Merchant: r.merchant, ID: r.id + "/" + d.ID})
			}
		}
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.st.Replays = append(slices.Clone(r.st.Replays), ranges...)
	r.st.Replayed = max(r.st.Replayed, replay.ID)
	r.dropped = append(r.dropped, gone...)
	r.st.Letters = max(0, r.st.Letters-len(gone))
	r.markDirty()
	r.kick()
	return true
}

// expiring reports whether the oldest events of a destination that fails may be too old to be tried.
func (r *runner) expiring() bool {
	r.sh.mu.Lock()
	defer r.sh.mu.Unlock()
	return r.route != nil && !r.st.FailingSince.IsZero() && r.sh.s.Now().Sub(r.st.FailingSince) > r.route.target.Limits().MaxAge
}
