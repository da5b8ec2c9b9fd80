package delivery

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"mtagd/partnerapi/delivery/kind"
)

// A destination works only while it has a place. That bounds goroutines, connections and memory. Failing destinations have
// places of their own, so they do not delay healthy ones. When healthy destinations wait, because too many of them hang, the
// oldest requests are cut off.
const (
	healthyPlaces = 384 // in all shards together
	failingPlaces = 128
	patience      = 500 * time.Millisecond // no request is cut off before this time, nor before four times the usual time
	firstProbe    = 2 * time.Second        // how long a failing destination may take to answer; it doubles with each failure
)

// places counts the free places and has the destinations that wait for one. The shard's mu guards it.
type places struct {
	free    int
	waiting []*runner
}

func (r *runner) places() *places {
	if r.st.Failures > 0 {
		return &r.sh.failing
	}
	return &r.sh.healthy
}

// kick queues a destination for a place, where it looks for work. The caller holds mu.
func (r *runner) kick() {
	if r.queued || r.running || !r.isOn() || r.sh.ctx.Err() != nil {
		return
	}
	p := r.places()
	r.queued = true
	if r.st.Failures == 1 { // perhaps cut off by mistake: it goes before those that have hung for long
		p.waiting = slices.Insert(p.waiting, 0, r)
	} else {
		p.waiting = append(p.waiting, r)
	}
	if p.free > 0 {
		p.free--
		r.sh.runners.Go(func() { r.sh.work(p) })
	} else {
		r.sh.lack()
	}
}

// lack starts relieve, unless it runs, because destinations wait for places or memory. The caller holds mu.
func (sh *shard) lack() {
	if !sh.short {
		sh.short = true
		sh.runners.Go(sh.relieve)
	}
}

// work uses one place for the waiting destinations, one after the other, and frees it when none waits.
func (sh *shard) work(p *places) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for len(p.waiting) > 0 {
		r := p.waiting[0]
		p.waiting = p.waiting[1:]
		r.queued, r.running = false, true
		do := r.next()
		if do != nil && r.isReady() {
			do(r.route)
		}
		if r.running = false; do != nil {
			r.kick()
		}
		if !r.queued && sh.routes > maxRoutes {
			r.setRoute(nil)
		}
	}
	p.waiting = nil
	p.free++
}

// alongside runs part of a destination's work in a place of its own. It returns false when none is free.
func (sh *shard) alongside(group *sync.WaitGroup, part func()) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.healthy.free == 0 {
		return false
	}
	sh.healthy.free--
	group.Add(1)
	sh.runners.Go(func() {
		part()
		group.Done()
		sh.work(&sh.healthy)
	})
	return true
}

// call is a request under way.
type call struct {
	began time.Time
	cut   context.CancelFunc
}

var errCut = errors.New("no answer in time, while other destinations waited")

// request sends a request. failures is how often the destination has failed in a row. Only with 0 may the request be cut
// off: a failing destination has a short time limit instead.
func (sh *shard) request(r kind.Request, failures int) sent {
	if failures > 0 {
		return sh.s.client.send(sh.ctx, r, min(firstProbe<<min(failures-1, 10), requestTimeout))
	}
	ctx, cancel := context.WithCancel(sh.ctx)
	defer cancel()
	c := &call{time.Now(), cancel}
	sh.mu.Lock()
	sh.calls[c] = true
	sh.mu.Unlock()
	s := sh.s.client.send(ctx, r, requestTimeout)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.calls, c)
	switch {
	case errors.Is(s.err, context.Canceled):
		s.err = errCut
	case s.err == nil:
		sh.usual += (s.took - sh.usual) / 32
	}
	return s
}

// relieve cuts off the oldest requests, at most a quarter at once, as long as destinations wait for places or memory.
func (sh *shard) relieve() {
	for {
		sh.mu.Lock()
		n := sh.hungry
		if sh.healthy.free == 0 {
			n += len(sh.healthy.waiting)
		}
		oldest := slices.SortedFunc(maps.Keys(sh.calls), func(a, b *call) int { return a.began.Compare(b.began) })
		for _, c := range oldest[:min(n, (len(oldest)+3)/4)] {
			if time.Since(c.began) < max(patience, 4*sh.usual) {
				break
			}
			c.cut()
			delete(sh.calls, c)
		}
		sh.short = n > 0
		sh.mu.Unlock()
		if n == 0 || !sh.sleep(patience/10) {
			return
		}
	}
}

// schedule plans a kick of a destination, unless an earlier one is planned. The caller holds mu.
func (sh *shard) schedule(r *runner, at time.Time) {
	if r.timer != nil {
		if !at.Before(r.due) {
			return
		}
		r.timer.Stop()
	}
	var timer *time.Timer
	timer = time.AfterFunc(at.Sub(sh.s.Now()), func() {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if r.timer == timer { // else it was replaced while it fired
			r.timer = nil
			r.kick()
		}
	})
	r.timer, r.due = timer, at
}
