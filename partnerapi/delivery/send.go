package delivery

import (
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

	fates // how many there are
)

// isFinal reports whether nothing is left to do for the event.
func (f fate) isFinal() bool { return f != unsent && f != again }

// round sends some events, and notes what becomes of each.
type round struct {
	r        *runner
	isRetry  bool
	failures int       // in a row, before the round
	since    time.Time // when the first of these was
	isProbe  bool      // the events test whether the destination has recovered: they are few
	items    []*item
	fates    []fate // each lane sets those of its own events
	reasons  []string

	mu         sync.Mutex // guards all that follows, while lanes send
	erasing    erasing    // as of the last refresh
	deliveries []Delivery
	responded  bool // the destination has taken or refused something: it is there
	answered   bool // it is there, or something answers in its place
	gone       bool // it wants no more
	retryAfter time.Duration
	reason     string // of the last failure
}

// send sends events, each visitor's in order. It changes nothing of the runner. The caller does not hold mu.
func (r *runner) send(rt *route, items []*item, isRetry bool) *round {
	d := &round{r: r, isRetry: isRetry, items: items, fates: make([]fate, len(items)), reasons: make([]string, len(items))}
	if !d.refresh() {
		for i := range d.fates {
			d.fates[i] = again
		}
		return d
	}
	r.sh.mu.Lock()
	d.failures, d.since = r.st.Failures, r.st.FailingSince
	d.isProbe = d.failures > 0 && !r.expiring(rt)
	blocked := map[uint32]bool{}
	if !isRetry {
		blocked = r.blocked()
	}
	r.sh.mu.Unlock()
	lanes := make([][]int, max(1, rt.limits.Lanes))
	// A failed request ends its lane. The next pass of the loop sends the events of the lane's other visitors, because the
	// destination may fail on a few events only. There is a next pass if the destination responded, or if this is a test of
	// whether it has recovered.
	for left, before := true, -1; left && before != d.final(); {
		left, before = false, d.final()
		clear(lanes)
		for i, one := range items {
			switch {
			case d.fates[i].isFinal():
			case blocked[one.who]:
				d.judge(rt, i, new(kind.Event))
			default:
				left = true
				lane := int(one.who) % len(lanes)
				lanes[lane] = append(lanes[lane], i)
			}
		}
		d.sendLanes(lanes)
		for i, f := range d.fates {
			if f == again {
				blocked[items[i].who] = true
			}
		}
		left = left && (d.responded || d.isProbe && d.answered && d.retryAfter == 0) && r.routeNow() != nil
	}
	return d
}

// routeNow returns the destination as it is now; nil when nothing more may be sent. During a long round the destination may be
// changed, paused or deleted.
func (r *runner) routeNow() *route {
	r.sh.mu.Lock()
	defer r.sh.mu.Unlock()
	if r.sh.ctx.Err() != nil || !r.isOn() {
		return nil
	}
	return r.route
}

// final returns how many events have a fate other than unsent.
func (d *round) final() (n int) {
	for _, f := range d.fates {
		if f != unsent {
			n++
		}
	}
	return n
}

// sendLanes sends the events of several lanes, at the same time while places are free.
func (d *round) sendLanes(lanes [][]int) {
	var sending sync.WaitGroup
	for i, places := range lanes {
		if len(places) == 0 {
			continue
		}
		one := &lane{round: d}
		if i < len(lanes)-1 && d.r.sh.alongside(&sending, func() { one.run(places) }) {
			continue
		}
		one.run(places)
	}
	sending.Wait()
}

// lane sends events in order: a request must be taken before the next one is sent.
type lane struct {
	*round
	stopped bool // a request has failed: later events must not overtake it
}

func (l *lane) run(places []int) {
	for len(places) > 0 && !l.stopped {
		rt := l.r.routeNow()
		if rt == nil {
			l.stopped = true
			return
		}
		withBrowser := l.r.sh.s.takesNow(l.r.sh.ctx, rt)
		n := min(len(places), requestEvents(rt.limits, l.failures))
		memory, events := make([]kind.Event, n), make([]*kind.Event, 0, n)
		for ; len(places) > 0 && len(events) < n; places = places[1:] {
			e := &memory[len(events)]
			if !l.judge(rt, places[0], e) {
				continue
			}
			if withBrowser {
				e.Browser = l.r.sh.s.Browser(e.Merchant, e.Client)
			}
			events = append(events, e)
		}
		l.send(rt, events)
	}
}

// judge makes e an event that is to be sent. For any other event it notes the fate, and returns false.
func (d *round) judge(rt *route, i int, e *kind.Event) bool {
	now, limits := d.r.sh.s.Now(), rt.limits
	*e = kind.Event{Received: d.items[i].event, Place: i}
	fate, reason := rt.judge(e, d.isErased(e), now)
	if fate == unsent && !d.isRetry && !d.since.IsZero() && limits.GivesUp(e.ReceivedAt, now) && limits.GivesUp(d.since, now) {
		fate, reason = expired, fmt.Sprintf("the destination did not take it for %d hours", int(limits.MaxAge.Hours()))
	}
	if fate != unsent {
		d.fates[i], d.reasons[i] = fate, reason
		return false
	}
	e.Delivery = rt.deliveryID(e.ID)
	return true
}

// judge reads the fields of an event if they are needed. It returns why the event is not sent; unsent: it is.
func (rt *route) judge(e *kind.Event, isErased bool, now time.Time) (f fate, why string) {
	limits := rt.limits
	if !limits.Raw || len(rt.consent) > 0 || rt.filter != nil {
		if e.Parse() != nil {
			return dead, "the event cannot be read"
		}
	}
	switch {
	case isErased:
		return erased, "it is being erased"
	case !rt.wants(&e.Received):
		return filtered, "the destination does not want events of this name or of bots"
	case !kind.HasConsent(e.Fields, rt.consent):
		return noConsent, "it needs consent to " + strings.Join(rt.consent, ", ")
	case !rt.filter.Matches(e.Fields):
		return filtered, "the filter leaves it out"
	case limits.TooOld(e.Time, now):
		return expired, fmt.Sprintf("it is older than %d hours, the limit of the platform", int(limits.MaxAge.Hours()))
	}
	return unsent, ""
}

// isErased reports whether an event is erased, as far as known at the last refresh.
func (d *round) isErased(e *kind.Event) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.erasing.has(e)
}

const notKnown = "it is not known now which events are being erased"

// refresh reads the erasures. It reports whether they are known.
func (d *round) refresh() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, err := d.r.sh.erasingOf(d.r.merchant)
	if err != nil {
		d.reason = notKnown
		return false
	}
	d.erasing = now
	return true
}

// send sends events that judge has passed for this route.
func (l *lane) send(rt *route, events []*kind.Event) {
	if l.stopped || len(events) == 0 {
		return
	}
	requests, refusals := rt.target.Requests(events, l.r.sh.s.Now())
	for _, refusal := range refusals {
		at := refusal.Event.Place
		if l.fates[at], l.reasons[at] = dead, refusal.Reason; refusal.Skipped {
			l.fates[at] = filtered
		}
	}
	for n, request := range requests {
		now := l.r.routeNow()
		if l.stopped || now == nil || !l.refresh() {
			l.stopped = true
			return
		}
		hasBrowser := slices.ContainsFunc(request.Events, func(e *kind.Event) bool { return e.Browser != (kind.Browser{}) })
		if now != rt || hasBrowser && !l.r.sh.s.takesNow(l.r.sh.ctx, rt) { // it was changed: judge the rest again
			var places []int
			for _, later := range requests[n:] {
				for _, e := range later.Events {
					places = append(places, e.Place)
				}
			}
			l.run(places)
			return
		}
		var left []*kind.Event
		for _, e := range request.Events {
			if l.isErased(e) { // erased since it was judged
				l.fates[e.Place] = erased
			} else {
				left = append(left, e)
			}
		}
		if len(left) < len(request.Events) {
			l.send(rt, left)
			continue
		}
		l.request(rt, request)
	}
}

// request sends one request.
func (l *lane) request(rt *route, request kind.Request) {
	sh, of := l.r.sh, request.Events
	sent := sh.request(request, l.failures)
	if sh.ctx.Err() != nil {
		l.stopped = true
		return
	}
	v := kind.Verdict{Outcome: kind.Again}
	if sent.err == nil {
		v = rt.target.Read(request, sent.answer)
	}
	if v.Reason == "" {
		v.Reason = reasonOf(sent)
	}
	masked := mask(of)
	sent.answer.Body, v.Reason = []byte(masked(string(sent.answer.Body))), first(masked(v.Reason), keptReason)
	l.mu.Lock()
	state := Failed
	for i := range of {
		if v.Took(i) {
			state = Delivered
		}
	}
	if v.Outcome != kind.Done {
		l.reason = v.Reason
	}
	l.responded = l.responded || v.Outcome == kind.Done || v.Outcome == kind.Refused && len(of) == 1 // a larger request is sent again in halves
	l.answered = l.answered || sent.err == nil
	l.retryAfter = max(l.retryAfter, sent.retryAfter(sh.s.Now()))
	l.gone = l.gone || v.Outcome == kind.Gone
	l.deliveries = append(l.deliveries, l.describe(state, sent, v.Reason, of))
	if n := len(l.deliveries); n > keptDeliveries {
		l.deliveries = slices.Delete(l.deliveries, 0, n-keptDeliveries)
	}
	l.mu.Unlock()
	sh.s.metrics.requests.WithLabelValues(rt.Type, string(state)).Inc()
	sh.s.metrics.took.Observe(sent.took.Seconds())
	set := func(at int, f fate, reason string) { l.fates[of[at].Place], l.reasons[of[at].Place] = f, reason }
	switch {
	case v.Outcome == kind.Refused && len(of) > 1: // perhaps one event is the reason
		l.send(rt, of[:len(of)/2])
		l.send(rt, of[len(of)/2:])
	case v.Outcome == kind.Refused:
		set(0, dead, v.Reason)
	case v.Outcome != kind.Done:
		for i := range of {
			set(i, again, v.Reason)
		}
		l.stopped = true
	default:
		for i := range of {
			reason, refused := v.Refused[i]
			switch {
			case refused:
				set(i, dead, first(masked(reason), keptReason))
			case v.Again[i]:
				set(i, again, v.Reason)
				l.stopped = true
			default:
				set(i, delivered, "")
			}
		}
	}
}

func (l *lane) describe(state DeliveryState, sent sent, reason string, of []*kind.Event) Delivery {
	items := make([]*item, len(of))
	for i, one := range of {
		items[i] = l.items[one.Place]
	}
	d := describe(items, l.r.sh.s.Now())
	d.State, d.Status, d.Took, d.Answer = state, sent.answer.Status, sent.took, first(sent.answer.Body, keptAnswer)
	if state != Delivered {
		d.Reason = reason
	}
	return d
}

// describe returns a delivery's description of its events.
func describe(items []*item, now time.Time) Delivery {
	d := Delivery{At: now.UTC(), Events: len(items), After: items[0].after, UpTo: items[len(items)-1].event.Cursor}
	for _, one := range items[:min(len(items), maxEventIDs)] {
		d.EventIDs = append(d.EventIDs, one.event.ID)
	}
	return d
}

// first returns the first n bytes of an answer as a text.
func first[T string | []byte](answer T, n int) string {
	return strings.ToValidUTF8(string(answer[:min(len(answer), n)]), "\uFFFD")
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
