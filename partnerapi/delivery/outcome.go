package delivery

import (
	"context"
	"fmt"
	"time"

	"mtagd/store"
)

// note notes what became of a portion. The caller holds mu.
func (r *runner) note(rt *route, d *round, p *portion) {
	now := r.sh.s.Now()
	r.markDirty()
	first, waits := len(d.fates), 0
	for i, f := range d.fates {
		if !f.isFinal() {
			first = min(first, i)
			waits++
		}
	}
	stops := r.sh.ctx.Err() != nil
	if stops || d.gone || d.reason != "" && !d.responded || len(r.st.Retry)+waits > maxRetries {
		// As a whole it waits at the first event that is left.
		r.finish(rt, d, first, now)
		r.keep(d)
		if !stops && r.isOn() {
			r.fail(d, now)
		}
		p.at, p.down = p.done(first), true
		return
	}
	r.succeed(d, now)
	r.finish(rt, d, len(d.fates), now)
	for i, one := range d.items {
		e := retry{After: one.after, At: one.event.Cursor, Who: one.who, First: now.UTC(), Next: now.UTC()}
		switch d.fates[i] {
		case again:
			e.Tries, e.Next = 1, now.Add(max(r.sh.s.Backoff(1), d.retryAfter)).UTC()
		case unsent: // it waits for an earlier event of its visitor
		default:
			continue
		}
		r.st.Retry = append(r.st.Retry, e)
	}
	r.keep(d)
	p.at = p.end
}

// succeed notes that a destination has answered.
func (r *runner) succeed(d *round, now time.Time) {
	if d.responded {
		r.st.FailingSince, r.st.Failures, r.st.LastError, r.st.LastSuccess = time.Time{}, 0, "", now.UTC()
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
			err = sh.s.update(ctx, merchant, id, func(d *Destination) (string, error) {
				d.Paused, d.PausedReason = true, why
				return "paused: " + why, nil
			})
		}
		if err != nil && store.KindOf(err) != store.KindNotFound {
			sh.s.Log.Error("the pause of a destination could not be noted", "destination", id, "error", err)
		}
	})
}

// finish counts the first n events of a round, and makes dead letters.
func (r *runner) finish(rt *route, d *round, n int, now time.Time) {
	var counted [fates]uint64
	for i := 0; i < n; i++ {
		counted[d.fates[i]]++
		switch d.fates[i] {
		case delivered:
			r.sh.s.metrics.lag.Observe(now.Sub(d.items[i].event.ReceivedAt).Seconds())
		case dead:
			r.letterOf(d, i, i+1, now)
		case expired:
			from := i
			for ; i+1 < n && d.fates[i+1] == expired && d.reasons[i+1] == d.reasons[i]; i++ {
				counted[expired]++
			}
			r.letterOf(d, from, i+1, now)
		}
	}
	c := &r.st.Counts
	c.Delivered += counted[delivered]
	c.Filtered += counted[filtered]
	c.NoConsent += counted[noConsent]
	c.Erased += counted[erased]
	r.sh.s.metrics.count(rt.Type, counted)
}

// letterOf makes a dead letter of events that are next to each other.
func (r *runner) letterOf(d *round, from, to int, now time.Time) {
	l := describe(d.items[from:to], now)
	l.Reason = d.reasons[from]
	for _, attempt := range d.deliveries { // the last answer about it
		if attempt.State == Failed && len(attempt.EventIDs) == 1 && attempt.EventIDs[0] == l.EventIDs[0] {
			l.Status, l.Answer = attempt.Status, attempt.Answer
		}
	}
	r.letter(l)
}

// letter notes a dead letter.
func (r *runner) letter(l Delivery) {
	l.State = Dead
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
	if r.sh.unwritten++; d.State == Dead || r.sh.unwritten <= maxUnwritten { // deliveries that are not dead letters are only for information
		r.deliveries = append(r.deliveries, d)
	}
	if r.st.Sequence > maxDeliveries {
		r.dropped = append(r.dropped, store.Document{Kind: store.Deliveries, Merchant: r.merchant, ID: fmt.Sprintf("%s/%016x", r.id, r.st.Sequence-maxDeliveries)})
	}
}

// keep notes the last deliveries of a round.
func (r *runner) keep(d *round) {
	for _, attempt := range d.deliveries {
		r.noteDelivery(attempt)
	}
}
