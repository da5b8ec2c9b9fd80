package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// fate is what became of an event in a round.
type fate uint8

const (
	unsent    fate = iota // not tried: an earlier event of its lane has failed, or its visitor waits
	delivered             // taken
	again                 // tried, and to be tried again
	filtered
	noConsent
	erased
	dead
	expired // dead, because it was tried for too long
)

// isFinal reports whether nothing is left to do for the event.
func (f fate) isFinal() bool { return f != unsent && f != again }

// round is what became of some events.
type round struct {
	items      []*item
	fates      []fate
	reasons    []string
	deliveries []Delivery
	responded  bool // the destination has taken or refused something: it is there
	gone       bool // it wants no more
	retryAfter time.Duration
	reason     string // of the last failure
}

// send sends events. It changes nothing of the runner.
func (r *runner) send(rt *route, items []*item, isRetry bool) *round {
	sh := r.sh
	d := &round{items: items, fates: make([]fate, len(items)), reasons: make([]string, len(items))}
	sh.mu.Lock()
	blocked, failingSince := map[uint32]bool(nil), r.st.FailingSince
	if !isRetry {
		blocked = r.blocked()
	}
	failing := r.st.Failures > 0
	sh.mu.Unlock()
	limits, now := rt.target.Limits(), sh.s.Now()
	gone, err := sh.erasingOf(r.merchant)
	if err != nil {
		d.reason = "events that are being erased are not known now"
		for i := range d.fates {
			d.fates[i] = again
		}
		return d
	}
	events := make([]*kind.Event, len(items))
	lanes := make([][]int, max(1, limits.Lanes))
	for i, one := range items {
		e := &kind.Event{Received: one.event, Delivery: rt.deliveryID(one.event.ID)}
		events[i] = e
		age := now.Sub(e.Time)
		tried := now.Sub(later(e.ReceivedAt, failingSince))
		switch err := e.Parse(); {
		case err != nil:
			d.fates[i], d.reasons[i] = dead, "the event cannot be read"
		case gone.has(e, one.read):
			d.fates[i] = erased
		case !kind.HasConsent(e.Fields, rt.consent):
			d.fates[i] = noConsent
		case !rt.filter.Matches(e.Fields):
			d.fates[i] = filtered
		case limits.ByEventTime && age > limits.MaxAge:
			d.fates[i], d.reasons[i] = expired, fmt.Sprintf("it is older than the %d hours that the platform takes", int(limits.MaxAge.Hours()))
		case !limits.ByEventTime && !isRetry && !failingSince.IsZero() && tried > limits.MaxAge:
			d.fates[i], d.reasons[i] = expired, fmt.Sprintf("it was not taken for %d hours", int(limits.MaxAge.Hours()))
		case blocked[one.who]:
		default:
			lane := int(one.who) % len(lanes)
			lanes[lane] = append(lanes[lane], i)
		}
	}
	if failing {
		select {
		case sh.probes <- struct{}{}:
			defer func() { <-sh.probes }()
		case <-sh.ctx.Done():
			return d
		}
	}
	var mu sync.Mutex
	var sending sync.WaitGroup
	for _, lane := range lanes {
		if len(lane) == 0 {
			continue
		}
		l := &sender{r: r, rt: rt, d: d, events: events, mu: &mu, gone: gone, checked: time.Now()}
		run := func() {
			for len(lane) > 0 && !l.stopped {
				n := min(len(lane), limits.Events)
				l.send(lane[:n])
				lane = lane[n:]
			}
		}
		if len(lanes) == 1 {
			run()
		} else {
			sending.Go(run)
		}
	}
	sending.Wait()
	return d
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// sender sends the events of one lane, one request after the other.
type sender struct {
	r       *runner
	rt      *route
	d       *round
	events  []*kind.Event
	mu      *sync.Mutex // guards d, but for fates and reasons of this lane
	stopped bool        // a request has failed: what comes later must not overtake it
	gone    erasing     // as of checked
	checked time.Time
}

// notErased leaves out the events that were erased since the round began, which may take long.
func (l *sender) notErased(places []int) []int {
	if time.Since(l.checked) > time.Second {
		gone, err := l.r.sh.erasingOf(l.r.merchant)
		if err != nil {
			l.stopped = true
			return nil
		}
		l.gone, l.checked = gone, time.Now()
	}
	return slices.DeleteFunc(slices.Clone(places), func(at int) bool {
		is := l.gone.has(l.events[at], l.d.items[at].read)
		if is {
			l.d.fates[at] = erased
		}
		return is
	})
}

// send sends events, by their places in the round.
func (l *sender) send(places []int) {
	if l.stopped || len(places) == 0 {
		return
	}
	part := make([]*kind.Event, len(places))
	for i, at := range places {
		part[i] = l.events[at]
	}
	s := l.r.sh.s
	requests, refusals := l.rt.target.Requests(part, s.Now())
	for _, refusal := range refusals {
		at := places[refusal.Event]
		if l.d.fates[at], l.d.reasons[at] = dead, refusal.Reason; refusal.Skipped {
			l.d.fates[at] = filtered
		}
	}
	for _, request := range requests {
		if l.stopped || l.r.sh.ctx.Err() != nil {
			return
		}
		of := make([]int, len(request.Events))
		for i, at := range request.Events {
			of[i] = places[at]
		}
		if left := l.notErased(of); len(left) < len(of) {
			l.send(left)
			continue
		}
		l.request(request, of)
	}
}

// request sends one request, with the events at these places of the round.
func (l *sender) request(request kind.Request, of []int) {
	s := l.r.sh.s
	sent := s.client.send(l.r.sh.ctx, request)
	if errors.Is(sent.err, context.Canceled) {
		l.stopped = true
		return
	}
	v := kind.Verdict{Outcome: kind.Again}
	if sent.err == nil {
		v = l.rt.target.Read(request, sent.answer)
	}
	if v.Reason == "" {
		v.Reason = reasonOf(sent)
	}
	l.mu.Lock()
	state := Delivered
	if v.Outcome != kind.Done {
		state = Failed
		l.d.reason = v.Reason
	}
	l.d.responded = l.d.responded || v.Outcome == kind.Done || v.Outcome == kind.Refused
	l.d.retryAfter = max(l.d.retryAfter, sent.retryAfter(s.Now()))
	l.d.gone = l.d.gone || v.Outcome == kind.Gone
	l.d.deliveries = append(l.d.deliveries, l.describe(state, sent, v.Reason, of))
	if n := len(l.d.deliveries); n > maxDeliveries {
		l.d.deliveries = l.d.deliveries[n-maxDeliveries:]
	}
	l.mu.Unlock()
	s.metrics.request(l.rt.Type, state, sent.took)
	switch v.Outcome {
	case kind.Done:
		for i, at := range of {
			reason, refused := v.Refused[i]
			switch {
			case refused:
				l.d.fates[at], l.d.reasons[at] = dead, reason
			case v.Again[i]:
				l.d.fates[at], l.d.reasons[at] = again, v.Reason
				l.stopped = true
			default:
				l.d.fates[at] = delivered
			}
		}
	case kind.Refused:
		if len(of) > 1 { // perhaps one event is the reason
			l.send(of[:len(of)/2])
			l.send(of[len(of)/2:])
			return
		}
		l.d.fates[of[0]], l.d.reasons[of[0]] = dead, v.Reason
	default:
		for _, at := range of {
			l.d.fates[at], l.d.reasons[at] = again, v.Reason
		}
		l.stopped = true
	}
}

func (l *sender) describe(state DeliveryState, sent sent, reason string, of []int) Delivery {
	first, last := l.d.items[of[0]], l.d.items[of[len(of)-1]]
	d := Delivery{
		At: l.r.sh.s.Now().UTC(), State: state, Events: len(of), Status: sent.answer.Status, Took: sent.took,
		Answer: answerText(sent.answer.Body), After: first.after, UpTo: last.event.Cursor,
	}
	if state != Delivered {
		d.Reason = reason
	}
	for _, at := range of[:min(len(of), maxEventIDs)] {
		d.EventIDs = append(d.EventIDs, l.d.items[at].event.ID)
	}
	return d
}

// answerText returns the beginning of an answer as a text.
func answerText(body []byte) string {
	return strings.ToValidUTF8(string(body[:min(len(body), keptAnswer)]), "\uFFFD")
}

func reasonOf(s sent) string {
	switch {
	case s.err != nil:
		return s.err.Error()
	case s.answer.Status/100 == 3:
		return fmt.Sprintf("it answered %d: redirects are not followed", s.answer.Status)
	}
	return fmt.Sprintf("it answered %d", s.answer.Status)
}

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

// longestRound is for how long an event may be in memory.
const longestRound = 24 * time.Hour

// erasing is whose events of a merchant are being erased: they may still be in the feed.
type erasing struct {
	at      time.Time
	persons map[store.IdentityKey]time.Time // until when: an event that was read later is another one; zero: it is not done
}

// erasingOf returns whose events must not be sent any more.
func (sh *shard) erasingOf(m store.MerchantID) (erasing, error) {
	const fresh = 200 * time.Millisecond
	sh.mu.Lock()
	known := sh.erasing[m]
	sh.mu.Unlock()
	if time.Since(known.at) < fresh {
		return known, nil
	}
	known, err := sh.s.erasingOf(sh.ctx, m)
	if err != nil {
		return erasing{}, err
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if known.persons == nil {
		delete(sh.erasing, m) // most merchants: asked again, from memory
	} else {
		sh.erasing[m] = known
	}
	return known, nil
}

func (s *Service) erasingOf(ctx context.Context, m store.MerchantID) (erasing, error) {
	const page = 100
	known := erasing{at: time.Now()}
	for offset := 0; ; offset += page {
		list, total, err := s.Engine.Erasures(ctx, m, offset, page)
		if err != nil {
			return erasing{}, err
		}
		open := false
		for _, e := range list {
			until := e.FinishedAt
			if e.State != store.ErasureDone {
				until = time.Time{} // it may be done again
			} else if time.Since(until) > longestRound {
				continue
			}
			open = true
			if known.persons == nil {
				known.persons = map[store.IdentityKey]time.Time{}
			}
			for _, keys := range [][]store.IdentityKey{e.Person.MUIDs, e.Person.Identifiers} {
				for _, k := range keys {
					if was, has := known.persons[k]; !has || !was.IsZero() && (until.IsZero() || until.After(was)) {
						known.persons[k] = until
					}
				}
			}
		}
		if !open || offset+page >= total { // older ones are done
			break
		}
	}
	return known, nil
}

// has reports whether an event that was read at a time is of a person who is being erased, or was erased since.
func (g erasing) has(e *kind.Event, read time.Time) bool {
	if len(g.persons) == 0 {
		return false
	}
	is := func(k store.IdentityKey) bool {
		until, has := g.persons[k]
		return has && (until.IsZero() || until.After(read))
	}
	if is(store.MUIDKey(e.MUID)) {
		return true
	}
	var id store.Identity
	for name, of := range map[string]store.IdentifierKind{"email": store.Email, "phone": store.Phone, "deviceId": store.DeviceID} {
		if text, ok := e.Fields[name].(string); ok {
			id.Add(of, text)
		}
	}
	for _, k := range id.Keys() {
		if is(k) {
			return true
		}
	}
	return false
}
