package delivery

import (
	"context"
	"fmt"
	"time"

	"mtagd/store"
)

// note notes what became of the events in flight. The caller holds mu.
func (r *runner) note(rt *route, d *round) {
	sh, now := r.sh, r.sh.s.Now()
	replayed := r.replayed
	r.flight = nil
	r.markDirty()
	failed, waits := -1, 0
	blocked := r.blocked()
	for i, f := range d.fates {
		if f == again {
			blocked[d.items[i].who] = true
		}
		if !f.isFinal() && failed < 0 && (f == again || !blocked[d.items[i].who]) {
			failed = i
		}
		if f == again || f == unsent && blocked[d.items[i].who] {
			waits++
		}
	}
	cut := sh.ctx.Err() != nil || r.route == nil
	anyAgain := d.reason != ""
	down := anyAgain && !d.responded || d.gone || len(r.st.Retry)+waits > maxRetries
	if down || cut {
		// As a whole it waits at the first event that is left.
		first := 0
		for first < len(d.fates) && d.fates[first].isFinal() {
			first++
		}
		r.finish(rt, d, first, now)
		r.putBack(d.items, first)
		if !cut {
			r.fail(d, now)
		}
		r.keep(d)
		return
	}
	if d.responded {
		r.st.FailingSince, r.st.Failures, r.st.LastError, r.st.LastSuccess = time.Time{}, 0, "", now.UTC()
	}
	r.finish(rt, d, len(d.fates), now)
	var back []*item
	for i, one := range d.items {
		switch f := d.fates[i]; {
		case f == again:
			r.st.Retry = append(r.st.Retry, retry{After: one.after, At: one.event.Cursor, Who: one.who, Tries: 1, First: now.UTC(), Reason: d.reasons[i],
				Next: now.Add(max(sh.s.Backoff(1), d.retryAfter)).UTC()})
		case f == unsent && blocked[one.who]:
			r.st.Retry = append(r.st.Retry, retry{After: one.after, At: one.event.Cursor, Who: one.who, First: now.UTC(), Next: now.UTC()})
		case f == unsent:
			back = append(back, one)
		}
	}
	if r.attached {
		for _, one := range back {
			sh.waiting += one.size()
		}
	}
	r.pending = append(back, r.pending...)
	if replayed && len(r.pending) == 0 {
		r.replayed = false
		if len(r.st.Replays) > 0 && len(d.items) > 0 {
			r.st.Replays[0].After = d.items[len(d.items)-1].event.Cursor
		}
	}
	r.keep(d)
}

// putBack makes the destination read again from an event of a round on.
func (r *runner) putBack(items []*item, first int) {
	if r.replayed {
		if len(r.st.Replays) > 0 && first > 0 {
			r.st.Replays[0].After = items[first-1].event.Cursor
		}
		r.pending, r.replayed = nil, false
		return
	}
	at := r.sh.head
	if !r.attached {
		at = r.read
	}
	r.dropPending(at)
	if first < len(items) {
		r.read = items[first].after
	}
	if r.attached {
		r.attached = false
		r.sh.nudge()
	}
}

// fail notes that a destination takes nothing.
func (r *runner) fail(d *round, now time.Time) {
	if r.st.FailingSince.IsZero() {
		r.st.FailingSince = now.UTC()
	}
	r.st.Failures++
	r.st.LastError = d.reason
	r.st.NextTry = now.Add(max(r.sh.s.Backoff(r.st.Failures), d.retryAfter)).UTC()
	if d.gone {
		r.pause("it has answered 410 Gone: it wants no more events")
	}
}

// pause pauses the destination, and says why.
func (r *runner) pause(why string) {
	if r.off {
		return
	}
	r.off = true
	sh, m, id := r.sh, r.merchant, r.id
	sh.s.metrics.paused.Inc()
	sh.s.Log.Warn("a destination was paused", "merchant", m, "destination", id, "reason", why)
	sh.runners.Go(func() {
		ctx := context.WithoutCancel(sh.ctx)
		merchant, err := sh.s.Engine.Merchant(ctx, m)
		if err == nil {
			err = sh.s.update(ctx, merchant, id, existing(func(d *Destination) (string, error) {
				d.Paused, d.PausedReason = true, why
				return "paused: " + why, nil
			}))
		}
		if err != nil && store.KindOf(err) != store.KindNotFound {
			sh.s.Log.Error("the pause of a destination could not be noted", "destination", id, "error", err)
		}
	})
}

// finish counts the first n events of a round, and makes dead letters.
func (r *runner) finish(rt *route, d *round, n int, now time.Time) {
	c := &r.st.Counts
	for i := 0; i < n; i++ {
		f := d.fates[i]
		r.sh.s.metrics.event(rt.Type, f)
		switch f {
		case delivered:
			c.Delivered++
			r.sh.s.metrics.delivered(now.Sub(d.items[i].event.ReceivedAt))
		case filtered:
			c.Filtered++
		case noConsent:
			c.NoConsent++
		case erased:
			c.Erased++
		case dead:
			r.letter(d, i, i+1, now)
		case expired:
			from := i
			for i+1 < n && d.fates[i+1] == expired && d.reasons[i+1] == d.reasons[i] {
				i++
				r.sh.s.metrics.event(rt.Type, expired)
			}
			r.letter(d, from, i+1, now)
		}
	}
}

// letter makes a dead letter of events that are next to each other.
func (r *runner) letter(d *round, from, to int, now time.Time) {
	first, last := d.items[from], d.items[to-1]
	l := Delivery{At: now.UTC(), State: Dead, Events: to - from, Reason: d.reasons[from], After: first.after, UpTo: last.event.Cursor}
	for _, one := range d.items[from:min(to, from+maxEventIDs)] {
		l.EventIDs = append(l.EventIDs, one.event.ID)
	}
	for _, attempt := range d.deliveries { // the last answer about it
		if attempt.State == Failed && len(attempt.EventIDs) == 1 && attempt.EventIDs[0] == first.event.ID {
			l.Status, l.Answer = attempt.Status, attempt.Answer
		}
	}
	r.st.Counts.Dead += uint64(l.Events)
	r.st.Letters++
	r.noteDelivery(l)
	if r.st.Letters >= maxLetters {
		r.pause(fmt.Sprintf("it has %d dead letters: replay or discard them", r.st.Letters))
	}
}

func (r *runner) noteDelivery(d Delivery) {
	r.st.Sequence++
	d.ID = fmt.Sprintf("%016x", r.st.Sequence)
	r.deliveries = append(r.deliveries, d)
	if r.st.Sequence > maxDeliveries {
		r.dropped = append(r.dropped, store.Document{Kind: store.Deliveries, Merchant: r.merchant, ID: deliveryDocumentID(r.id, r.st.Sequence-maxDeliveries)})
	}
}

// keep notes the last deliveries of a round.
func (r *runner) keep(d *round) {
	const most = 20
	for _, attempt := range d.deliveries[max(0, len(d.deliveries)-most):] {
		r.noteDelivery(attempt)
	}
}

// noteRetries notes what became of retries. The caller holds mu.
func (r *runner) noteRetries(rt *route, d *round) {
	now := r.sh.s.Now()
	r.markDirty()
	if r.sh.ctx.Err() != nil {
		return
	}
	if d.responded {
		r.st.FailingSince, r.st.Failures, r.st.LastError, r.st.LastSuccess = time.Time{}, 0, "", now.UTC()
	}
	limits := rt.target.Limits()
	for i, one := range d.items {
		for j := range r.st.Retry {
			e := &r.st.Retry[j]
			if e.At != one.event.Cursor {
				continue
			}
			switch {
			case d.fates[i] == again && !limits.ByEventTime && now.Sub(e.First) > limits.MaxAge:
				d.fates[i] = dead
			case d.fates[i] == again:
				e.Tries++
				e.Reason = d.reasons[i]
				e.Next = now.Add(max(r.sh.s.Backoff(e.Tries), d.retryAfter)).UTC()
			case d.fates[i] == unsent:
				e.Next = now.Add(time.Second).UTC()
			}
			break
		}
		if d.fates[i].isFinal() {
			r.dropRetry(one.event.Cursor)
			for j := range r.st.Retry { // the next one of the visitor may go now
				if r.st.Retry[j].Who == one.who {
					r.st.Retry[j].Next = now.UTC()
					break
				}
			}
		}
	}
	r.finishRetries(rt, d, now)
	if d.gone {
		r.fail(d, now)
	}
	r.keep(d)
}

// finishRetries counts what is final.
func (r *runner) finishRetries(rt *route, d *round, now time.Time) {
	for i := range d.fates {
		if d.fates[i] == expired {
			d.fates[i] = dead // they are not next to each other
		}
	}
	r.finish(rt, d, len(d.fates), now)
}
