package delivery

import (
	"slices"
	"time"

	"mtagd/store"
)

// maxDueRetries is how many events are tried again at once.
const maxDueRetries = 64

// dueRetries returns the retries to be made now, in the order of the feed: only the first one of each visitor. When none is
// due, next says when the next one is; zero means never.
func (r *runner) dueRetries(now time.Time) (due []retry, next time.Time) {
	if len(r.st.Retry) == 0 {
		return nil, next
	}
	seen := map[uint32]bool{}
	for _, e := range r.st.Retry {
		switch {
		case seen[e.Who]:
		case !e.Next.After(now):
			due = append(due, e)
		case next.IsZero() || e.Next.Before(next):
			next = e.Next
		}
		seen[e.Who] = true
		if len(due) == maxDueRetries || len(due) == 1 && r.st.Failures > 0 {
			break
		}
	}
	return due, next
}

// retry reads events again that have failed, and sends them.
func (r *runner) retry(rt *route, due []retry) {
	sh := r.sh
	sh.mu.Unlock()
	var items []*item
	var gone, foreign []retry // erased, or past their retention; read from another store
	var failed error
	for _, e := range due {
		one, err := r.readAgain(e)
		switch {
		case store.KindOf(err) == store.KindInvalid:
			foreign = append(foreign, e)
		case err != nil:
			failed = err
		case one == nil:
			gone = append(gone, e)
		default:
			items = append(items, one)
		}
	}
	var d *round
	if failed == nil && len(items) > 0 {
		d = r.send(rt, items, true)
	}
	sh.mu.Lock()
	for _, e := range gone {
		r.st.Counts.Erased++
		r.dropRetry(e.At)
	}
	for _, e := range foreign {
		r.letter(Delivery{At: sh.s.Now().UTC(), Events: 1, Reason: "the event's cursor is from another store", After: e.After, UpTo: e.At})
		r.dropRetry(e.At)
	}
	if failed != nil {
		r.unread(failed)
	}
	if d != nil {
		r.noteRetries(rt, d)
	}
	r.markDirty()
}

// readAgain reads the event of a retry; nil: it no longer exists.
func (r *runner) readAgain(e retry) (*item, error) {
	q := store.FeedQuery{After: e.After, UpTo: e.At}
	for { // the merchant may have many other events before it
		p, err := r.readPortion(q, func(got *store.Received) bool { return got.Cursor == e.At }, 1, 1)
		if err == nil && len(p.items) > 0 {
			return p.items[0], nil
		}
		if q.After = p.end; err != nil || !p.more {
			return nil, err
		}
	}
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

// noteRetries notes what became of retries. The caller holds mu.
func (r *runner) noteRetries(rt *route, d *round) {
	now := r.sh.s.Now()
	if r.sh.ctx.Err() != nil {
		return
	}
	r.succeed(d, now)
	for i, one := range d.items {
		at := slices.IndexFunc(r.st.Retry, func(e retry) bool { return e.At == one.event.Cursor })
		if at < 0 {
			continue
		}
		switch e := &r.st.Retry[at]; {
		case d.fates[i] == expired:
			d.fates[i] = dead // they are not next to each other
		case d.fates[i] == again && rt.limits.GivesUp(e.First, now):
			d.fates[i] = dead
		case d.fates[i] == again:
			e.Tries++
			e.Next = now.Add(max(r.sh.s.Backoff(e.Tries), d.retryAfter)).UTC()
		case d.fates[i] == unsent:
			e.Next = now.Add(time.Second).UTC()
		}
		if d.fates[i].isFinal() {
			r.dropRetry(one.event.Cursor)
			if next := slices.IndexFunc(r.st.Retry, func(e retry) bool { return e.Who == one.who }); next >= 0 {
				r.st.Retry[next].Next = now.UTC() // the visitor's next retry may be made now
			}
		}
	}
	r.finish(rt, d, len(d.fates), now)
	if d.gone {
		r.fail(d, now)
	}
	r.keep(d)
}
