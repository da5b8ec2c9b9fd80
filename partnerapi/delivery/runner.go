package delivery

import (
	"slices"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// runner is one destination. At rest it is this struct alone: it has no goroutine, no timer, and reads nothing. The shard's
// mu guards it.
//
// The shard hands each event that it reads to the attached destinations. A detached destination has missed events, and reads
// them by itself, in portions.
type runner struct {
	sh       *shard
	merchant store.MerchantID
	id       string
	selection
	problem string // why it cannot be used
	off     bool   // paused
	removed bool
	route   *route // nil: opened when it is needed

	st       state
	attached bool
	read     store.Cursor // it has read missed events up to here
	joined   store.Cursor // if attached: it is handed the events after this place, and reads those between read and joined by itself
	pending  []*item      // handed over, not yet sent
	flying   bool         // pending or missed events are being sent
	flight   store.Cursor // the place before those
	early    bool         // it has caught up, and waits for the shard to attach it
	turn     bool         // the replays are next
	begun    uint64       // the last Replay that was begun, noted in st or not
	opening  int          // replays that look for their deliveries

	changes         int // how often it was configured
	queued, running bool
	timer           *time.Timer // see schedule; nil: there is none
	due             time.Time   // when it fires

	asks       bool // it is to look for erasures that it must be told of (asked.go)
	askedLast  bool // its last work was to look for them: events come first now
	failedAsks int  // in a row
	nextAsk    time.Time
	told       int // how many erasures the merchant had when the destination had taken all; used by ask alone

	deliveries []Delivery       // not written yet
	dropped    []store.Document // to be deleted
}

// item is an event that waits. Several destinations may share it.
type item struct {
	event store.Received
	after store.Cursor // the place before it
	who   uint32
	since time.Time // when it began to wait
}

func newItem(e *store.Received, after store.Cursor, now time.Time) *item {
	one := &item{event: *e, after: after, since: now}
	one.event.Raw, one.event.Details = slices.Clone(e.Raw), e.Details.Clone()
	one.event.MUID = store.MUID(strings.Clone(string(e.MUID)))
	one.who = hashOf(string(e.MUID))
	return one
}

func (i *item) size() int { return len(i.event.Raw) + 512 }

func sizeOf(items []*item) (n int64) {
	for _, one := range items {
		n += int64(one.size())
	}
	return n
}

// Bounds of one destination.
const (
	maxPending = 4096     // events
	maxRound   = 2048     // events that are sent at once
	roundBytes = 1 << 20  // of a round, about
	probeBytes = 64 << 10 // of the requests that test whether a failing destination has recovered
	maxProbes  = 128      // events that test it, each in a request of its own
)

// isOn reports whether the destination delivers. The caller holds mu, as for all that follows.
func (r *runner) isOn() bool { return r.problem == "" && !r.off && !r.removed }

// configure takes over settings.
func (r *runner) configure(d Destination) {
	r.changes++
	rt, err := r.sh.s.open(d)
	r.setRoute(rt)
	r.problem, r.off = "", d.Paused
	if err != nil {
		r.setRoute(nil)
		r.problem = err.Error()
		r.st.LastError = r.problem
	} else {
		r.selection = rt.selection
	}
	if !r.isOn() {
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

// setRoute keeps a route for the next time; nil: none.
func (r *runner) setRoute(rt *route) {
	if r.route != nil {
		r.sh.routes--
	}
	if r.route = rt; rt != nil {
		r.sh.routes++
	}
}

// isReady reports whether the destination is open. If it is not, isReady opens it for the next turn, and releases mu
// meanwhile. When that fails, the destination is tried again later, or has a problem.
func (r *runner) isReady() bool {
	sh := r.sh
	if r.route != nil && (r.route.until.IsZero() || !sh.s.Now().After(r.route.until)) {
		return true
	}
	before := r.changes
	sh.mu.Unlock()
	d, err := sh.s.Get(sh.ctx, r.merchant, r.id)
	sh.mu.Lock()
	switch {
	case err != nil:
		r.unread(err)
	case r.changes == before: // else d may be older than what came meanwhile
		r.configure(d)
	}
	return false
}

// unread notes that the store cannot be read.
func (r *runner) unread(err error) {
	if r.sh.ctx.Err() == nil {
		r.sh.s.Log.Warn("events for delivery cannot be read; the read is tried again", "merchant", r.merchant, "destination", r.id, "error", err)
		r.st.NextTry = r.sh.s.Now().Add(time.Second)
	}
}

func (r *runner) markDirty() {
	if !r.removed {
		r.sh.dirty[r] = true
	}
}

// hasMissed reports whether there may be events that the destination must read by itself.
func (r *runner) hasMissed() bool { return !r.attached || r.read != r.joined }

// position returns the place up to which everything is done, except retries and replays.
func (r *runner) position() store.Cursor {
	switch {
	case r.flying:
		return r.flight
	case r.hasMissed():
		return r.read
	case len(r.pending) > 0:
		return r.pending[0].after
	}
	return r.sh.head
}

// current returns the state to store.
func (r *runner) current() state {
	st := r.st
	st.Cursor, st.Attached = r.position(), !r.flying && !r.hasMissed() && len(r.pending) == 0
	st.Retry, st.Replays = slices.Clone(st.Retry), slices.Clone(st.Replays)
	return st
}

// hand hands an event to an attached destination.
func (r *runner) hand(one *item) {
	r.pending = append(r.pending, one)
	r.sh.waiting += one.size()
	r.markDirty()
	r.kick()
}

// detach drops the pending events: the destination reads them again by itself.
func (r *runner) detach() {
	if !r.attached {
		return
	}
	if !r.hasMissed() {
		if r.read = r.sh.head; len(r.pending) > 0 {
			r.read = r.pending[0].after
		}
	}
	r.sh.waiting -= int(sizeOf(r.pending))
	r.pending, r.attached = nil, false
	r.markDirty()
}

func (r *runner) remove() {
	r.removed = true
	r.detach()
	r.setRoute(nil)
	delete(r.sh.dirty, r)
	// What is known of its deliveries goes too.
	sh := r.sh
	sh.runners.Go(func() { sh.forget(r.merchant, r.id) })
}

// next returns what to do now; nil: nothing.
func (r *runner) next() func(rt *route) {
	now := r.sh.s.Now()
	switch {
	case r.sh.ctx.Err() != nil:
		return nil
	case !r.isOn():
		r.detach()
		return nil
	case now.Before(r.st.NextTry):
		r.detach()
		r.sh.schedule(r, r.st.NextTry)
		return nil
	}
	do := r.nextEvents(now)
	if r.askedLast = r.asks && r.limits.Erasures && !now.Before(r.nextAsk) && (do == nil || !r.askedLast); r.askedLast {
		return r.ask
	}
	return do
}

// nextEvents returns what to do now with events; nil: nothing.
func (r *runner) nextEvents(now time.Time) func(rt *route) {
	retries, nextRetry := r.dueRetries(now)
	switch {
	case len(retries) > 0:
		return func(rt *route) { r.retry(rt, retries) }
	case len(r.st.Replays) > 0 && (r.turn || r.early):
		return r.sendReplay
	case r.hasMissed() && !r.early:
		return r.sendMissed
	case len(r.pending) > 0 && !r.sendAt().After(now):
		return r.sendPending
	case len(r.st.Replays) > 0:
		return r.sendReplay
	}
	if len(r.pending) > 0 {
		r.sh.schedule(r, r.sendAt())
	}
	if !nextRetry.IsZero() {
		r.sh.schedule(r, nextRetry)
	}
	return nil
}

// sendAt returns when the pending events are sent. Some destinations want few large requests, so events wait for a full one.
func (r *runner) sendAt() time.Time {
	if len(r.pending) >= r.limits.Events {
		return time.Time{}
	}
	return r.pending[0].since.Add(r.limits.Wait)
}

// portion is a number of events that are sent at once, in the order of the feed.
type portion struct {
	items []*item
	end   store.Cursor // the place after them
	more  bool         // more events may follow

	at   store.Cursor // set by the sending: up to here every event is final or noted as a retry
	down bool         // set by the sending: nothing was taken, so nothing more is sent for now
}

// done returns the place up to which everything is final, given that the first n events are.
func (p *portion) done(n int) store.Cursor {
	if n < len(p.items) {
		return p.items[n].after
	}
	return p.end
}

// sendPending sends the next pending events.
func (r *runner) sendPending(rt *route) {
	n, size := 0, 0
	for n < len(r.pending) && n < maxRound && size < roundBytes {
		size += r.pending[n].size()
		n++
	}
	p := &portion{items: r.pending[:n:n], end: r.pending[n-1].event.Cursor}
	r.pending = r.pending[n:]
	r.flying, r.flight, r.turn = true, p.items[0].after, true
	r.sh.mu.Unlock()
	d := r.send(rt, p.items, false)
	r.sh.mu.Lock()
	r.flying = false
	r.sh.waiting -= size
	if r.note(rt, d, p); p.down {
		r.detach()
		r.read = p.at
	}
}

// sendMissed reads the next missed events and sends them. When there are no more, the destination is attached.
func (r *runner) sendMissed(rt *route) {
	q := store.FeedQuery{After: r.read, UpTo: r.sh.head}
	if r.attached {
		q.UpTo = r.joined
	}
	r.flying, r.flight, r.turn = true, r.read, r.attached
	p, err := r.readAndSend(rt, q)
	r.flying = false
	switch {
	case err != nil && store.KindOf(err) == store.KindInvalid:
		r.detach()
		r.read = r.sh.head
		r.pause("the destination's cursor is from another store: send the missed events with a replay")
	case err != nil:
		r.unread(err)
	case p.down:
		r.detach()
		r.read = p.at
	case p.more:
		r.read = p.at
	case r.attached:
		r.read = r.joined
	default:
		if r.read = p.at; p.end == q.UpTo && r.sh.of[r.merchant] != nil && r.sh.of[r.merchant].listed {
			// The shard hands it new events. Those between its last read and now it reads by itself.
			r.attached, r.joined = r.isOn(), r.sh.head
		} else { // the shard must first read up to here, or learn of the merchant
			r.early = true
			r.sh.early = append(r.sh.early, r)
			r.sh.nudge()
		}
	}
	r.markDirty()
}

// sendReplay sends the next events of the first replay.
func (r *runner) sendReplay(rt *route) {
	job := r.st.Replays[0]
	r.turn = false
	p, err := r.readAndSend(rt, store.FeedQuery{After: job.After, UpTo: job.UpTo, From: job.From, To: job.To})
	if err != nil && store.KindOf(err) != store.KindInvalid { // KindInvalid: the cursor is of another store, and the replay ends
		r.unread(err)
		return
	}
	r.st.Replays[0].After = p.at
	if err != nil || !p.more && !p.down {
		r.st.Replays = slices.Delete(slices.Clone(r.st.Replays), 0, 1)
	}
	if p.down {
		r.detach()
	}
	r.markDirty()
}

// readAndSend reads events and sends them. It releases mu meanwhile.
func (r *runner) readAndSend(rt *route, q store.FeedQuery) (p portion, err error) {
	limit, size := maxRound, roundBytes
	// A request tests whether a failing destination has recovered. Perhaps it always fails on a few events only: after each
	// further failure a request has fewer events, and more events are tested.
	if r.st.Failures > 0 && !r.expiring(rt) {
		limit, size = max(requestEvents(rt.limits, r.st.Failures)/max(1, rt.limits.Lanes), min(1<<min(r.st.Failures-1, 16), maxProbes)), probeBytes
	}
	wants, memory, held := r.selection.wants, r.sh.s.memory, int64(size)
	has := memory.TryAcquire(held)
	if !has {
		r.sh.hungry++
		r.sh.lack()
	}
	r.sh.mu.Unlock()
	var d *round
	if !has {
		err = memory.Acquire(r.sh.ctx, held)
		r.sh.mu.Lock()
		r.sh.hungry--
		r.sh.mu.Unlock()
	}
	if err == nil {
		if p, err = r.readPortion(q, wants, limit, size); err == nil {
			used := min(held, sizeOf(p.items))
			memory.Release(held - used)
			held = used
			d = r.send(rt, p.items, false)
		}
		memory.Release(held)
	}
	r.sh.mu.Lock()
	if err == nil {
		r.note(rt, d, &p)
	}
	return p, err
}

// readPortion reads events up to a number and, approximately, a size. The caller does not hold mu.
func (r *runner) readPortion(q store.FeedQuery, wants func(*store.Received) bool, limit, bytes int) (p portion, err error) {
	sh := r.sh
	select {
	case sh.reads <- struct{}{}:
		defer func() { <-sh.reads }()
	case <-sh.ctx.Done():
		return p, sh.ctx.Err()
	}
	q.Merchants = []store.MerchantID{r.merchant}
	prev, now := q.After, sh.s.Now()
	end, err := sh.s.Engine.Feed(sh.ctx, q, func(e *store.Received) bool {
		if wants(e) {
			one := newItem(e, prev, now)
			p.items = append(p.items, one)
			bytes -= one.size()
		}
		prev = e.Cursor
		return len(p.items) < limit && bytes > 0
	})
	p.end, p.more = end.Cursor, end.More
	return p, err
}

// requestEvents returns how many events a request may have after a number of failures in a row. Each divides them by four.
func requestEvents(l kind.Limits, failures int) int { return max(1, l.Events>>(2*min(failures, 16))) }

// expiring reports whether the oldest events of a destination that fails may be too old to be tried.
func (r *runner) expiring(rt *route) bool {
	return !r.st.FailingSince.IsZero() && r.sh.s.Now().Sub(r.st.FailingSince) > rt.limits.MaxAge
}
