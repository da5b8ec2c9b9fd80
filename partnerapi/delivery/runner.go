package delivery

import (
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"mtagd/store"
)

// runner is one destination. At rest it is this struct alone: it has no goroutine, no timer, and reads nothing. The shard's mu guards it.
//
// An attached destination is handed each event that the shard reads. Another one has missed some: it reads these by itself, in portions.
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
	read     store.Cursor // what it reads by itself it has read up to here
	joined   store.Cursor // if it is attached: what came in after this place, it is handed. What is between read and joined, it still reads
	pending  []*item      // what it was handed, and has not sent
	flying   bool         // events are being sent that it was handed, or has missed
	flight   store.Cursor // the place before them
	early    bool         // it has missed nothing, and waits for the shard to attach it
	turn     bool         // of the replays
	begun    uint64       // the last Replay that was begun, noted in st or not
	opening  int          // replays that look for their deliveries

	changes         int // how often it was configured
	queued, running bool
	due             time.Time // see schedule
	place           int       // in the schedule, from 1 on; 0: it is not there

	deliveries []Delivery       // not written yet
	dropped    []store.Document // to be deleted
}

// item is an event that waits. Several destinations may share it.
type item struct {
	event store.Received
	after store.Cursor // the place before it
	who   uint32
	since time.Time // it waits
}

func newItem(e *store.Received, after store.Cursor, now time.Time) *item {
	one := &item{event: *e, after: after, since: now}
	one.event.Raw = slices.Clone(e.Raw)
	one.event.MUID = store.MUID(strings.Clone(string(e.MUID)))
	h := fnv.New32a()
	_, _ = h.Write([]byte(e.MUID)) // never fails
	one.who = h.Sum32()
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
	roundBytes = 1 << 20  // of these, about
	probeBytes = 64 << 10 // of those that show whether a destination that fails takes something again
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

// isReady reports whether the destination can be used at once. Otherwise it is opened, and mu is given back meanwhile; or it is tried again
// later, or has a problem.
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
		r.sh.s.Log.Warn("events cannot be read for their delivery; it is tried again", "merchant", r.merchant, "destination", r.id, "error", err)
		r.st.NextTry = r.sh.s.Now().Add(time.Second)
	}
}

func (r *runner) markDirty() {
	if !r.removed {
		r.sh.dirty[r] = true
	}
}

// hasMissed reports whether there may be events that it reads by itself.
func (r *runner) hasMissed() bool { return !r.attached || r.read != r.joined }

// position returns the place up to which everything is done, but for retries and replays.
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

// attach lets the shard hand over what comes in from now on. What came in since the destination has read last, it reads by itself.
func (r *runner) attach() {
	if r.attached || !r.isOn() {
		return
	}
	r.attached, r.joined = true, r.sh.head
	r.markDirty()
}

// detach gives back the events that the destination was handed and has not sent: it reads them again.
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

// sendAt returns when the pending events are sent: some destinations take few large requests.
func (r *runner) sendAt() time.Time {
	if len(r.pending) >= r.batch {
		return time.Time{}
	}
	return r.pending[0].since.Add(r.wait)
}

// portion is events that are sent at once, in the order of the feed.
type portion struct {
	items []*item
	end   store.Cursor // the place after them
	more  bool         // that may follow

	at   store.Cursor // after it was sent: up to here everything is final, or tried again by itself
	down bool         // nothing was taken: nothing more is sent for now
}

// done returns the place up to which everything is final, when the first n events are.
func (p *portion) done(n int) store.Cursor {
	if n < len(p.items) {
		return p.items[n].after
	}
	return p.end
}

// sendPending sends the next events that the destination was handed.
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

// sendMissed reads the next events that the destination has missed, and sends them. Once there are no more, it is attached.
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
		r.pause("its place in the feed is not of this store: send what it has missed by a replay")
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
			r.attach()
		} else { // the shard must come here first, or learn of the merchant
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
	if err != nil && store.KindOf(err) != store.KindInvalid { // with a cursor of another store, the replay makes no sense
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

// readAndSend reads events and sends them. It gives back mu meanwhile.
func (r *runner) readAndSend(rt *route, q store.FeedQuery) (p portion, err error) {
	limit, size := maxRound, roundBytes
	if limits := rt.target.Limits(); r.st.Failures > 0 && !r.expiring(rt) { // one request shows whether it takes something again
		limit, size = max(1, limits.Events/max(1, limits.Lanes)), probeBytes
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

// readPortion reads at most so many events, of about so many bytes. The caller does not hold mu.
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

// expiring reports whether the oldest events of a destination that fails may be too old to be tried.
func (r *runner) expiring(rt *route) bool {
	return !r.st.FailingSince.IsZero() && r.sh.s.Now().Sub(r.st.FailingSince) > rt.target.Limits().MaxAge
}
