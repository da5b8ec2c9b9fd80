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
