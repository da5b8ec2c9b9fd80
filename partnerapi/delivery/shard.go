package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"mtagd/store"
)

// shard runs the destinations of some merchants. It reads the feed once for all its attached destinations.
type shard struct {
	s    *Service
	ctx  context.Context
	name string

	flushing sync.Mutex
	runners  sync.WaitGroup
	reads    chan struct{} // bounds how many destinations read the feed at once
	wake     chan struct{} // the set of merchants has changed, or a destination waits to be attached

	mu        sync.Mutex
	of        map[store.MerchantID]*group
	changed   bool         // the set of merchants has changed since the last read
	head      store.Cursor // attached destinations were handed everything up to here
	flushed   store.Cursor // head, as it is stored
	dirty     map[*runner]bool
	early     []*runner // destinations that wait to be attached
	erasing   map[store.MerchantID]erasing
	waiting   int // bytes of the events that attached destinations have
	unwritten int // deliveries that are not stored yet

	healthy, failing places
	hungry           int  // destinations that wait for memory
	short            bool // relieve runs, because destinations wait for places or for memory
	calls            map[*call]bool
	usual            time.Duration // moving average of how long a request takes
	routes           int           // open routes
}

// group is the destinations of a merchant.
type group struct {
	runners []*runner
	listed  bool // the shard reads the merchant's events
}

const (
	concurrentReads = 8
	maxWaiting      = 12 << 20 // bytes of all shards; destinations that would exceed it are detached
	maxRoutes       = 1000     // open routes that are kept for the next time
)

func decodeDestination(doc store.Document) (d Destination, err error) {
	if doc.Content != nil {
		err = json.Unmarshal(doc.Content, &d)
	}
	return d, err
}

func (s *Service) shardName(i int) string { return fmt.Sprintf("%d/%d", i, s.count()) }

// openShard loads the destinations of a shard.
func (s *Service) openShard(ctx context.Context, i int) (*shard, error) {
	sh := &shard{
		s: s, ctx: ctx, name: s.shardName(i), of: map[store.MerchantID]*group{}, dirty: map[*runner]bool{},
		reads: make(chan struct{}, concurrentReads), wake: make(chan struct{}, 1),
		erasing: map[store.MerchantID]erasing{}, calls: map[*call]bool{}, changed: true,
		healthy: places{free: healthyPlaces / s.count()}, failing: places{free: failingPlaces / s.count()},
	}
	docs, err := s.Engine.Destinations(ctx, "")
	if err != nil {
		return nil, err
	}
	states, err := s.Engine.Documents(ctx, store.DeliveryStates, "", "")
	if err != nil {
		return nil, err
	}
	known := map[string]state{}
	hasHead := false
	for _, doc := range states {
		var st state
		if err := json.Unmarshal(doc.Content, &st); err != nil {
			return nil, fmt.Errorf("the state of destination %s: %w", doc.ID, err)
		}
		if doc.Merchant == "" && doc.ID == sh.name {
			sh.head, hasHead = st.Cursor, true
		} else {
			known[string(doc.Merchant)+"/"+doc.ID] = st
		}
	}
	if sh.flushed = sh.head; !hasHead {
		if sh.head, err = s.Engine.Latest(ctx); err != nil {
			return nil, err
		}
	}
	sh.mu.Lock() // replays may begin
	defer sh.mu.Unlock()
	for _, doc := range docs {
		if s.shardOf(doc.Merchant) != i {
			continue
		}
		d, err := decodeDestination(doc)
		if err != nil {
			return nil, fmt.Errorf("destination %s: %w", doc.ID, err)
		}
		st, has := known[string(doc.Merchant)+"/"+doc.ID]
		delete(known, string(doc.Merchant)+"/"+doc.ID)
		if !has {
			st.Cursor = d.Start
		}
		r := sh.add(d, st)
		if r.read = st.Cursor; st.Attached && hasHead {
			r.read, r.joined, r.attached = sh.head, sh.head, r.isOn() // it had sent everything up to there
		}
	}
	for key := range known {
		if m, id, _ := strings.Cut(key, "/"); m != "" && s.shardOf(store.MerchantID(m)) == i {
			sh.runners.Go(func() { sh.forget(store.MerchantID(m), id) })
		}
	}
	return sh, nil
}

// add adds a destination. The caller holds mu.
func (sh *shard) add(d Destination, st state) *runner {
	r := &runner{sh: sh, merchant: d.Merchant, id: d.ID, st: st, read: st.Cursor}
	r.configure(d)
	if sh.routes > maxRoutes {
		r.setRoute(nil)
	}
	if sh.of[d.Merchant] == nil {
		sh.of[d.Merchant], sh.changed = &group{}, true
	}
	of := sh.of[d.Merchant]
	of.runners = append(of.runners, r)
	return r
}

// run runs the shard until its context ends, and writes the last states unless the lease was lost.
func (sh *shard) run() {
	sh.mu.Lock()
	for _, of := range sh.of {
		for _, r := range of.runners {
			r.kick()
		}
	}
	sh.mu.Unlock()
	var running sync.WaitGroup
	running.Go(sh.readHead)
	running.Go(sh.flushAll)
	running.Go(sh.askAll)
	running.Wait()
	sh.mu.Lock() // a timer that fires later starts nothing in runners
	for _, of := range sh.of {
		for _, r := range of.runners {
			if r.timer != nil {
				r.timer.Stop() // else it keeps the shard in memory
			}
		}
	}
	sh.mu.Unlock()
	sh.runners.Wait()
	if sh.s.Shared == nil || errors.Is(context.Cause(sh.ctx), errStopping) { // else another node may have written newer states
		ctx, cancel := context.WithTimeout(context.WithoutCancel(sh.ctx), 5*time.Second)
		defer cancel()
		if err := sh.flush(ctx); err != nil {
			sh.s.Log.Warn("the last deliveries could not be noted: their events are sent again", "error", err)
		}
	}
}

func (sh *shard) flushAll() {
	failed := time.Time{}
	interval := cmp.Or(sh.s.Interval, flushInterval)
	pause := interval
	for sh.sleep(pause) {
		began := time.Now()
		if err := sh.flush(sh.ctx); err != nil && sh.ctx.Err() == nil && time.Since(failed) > time.Minute {
			failed = time.Now()
			sh.s.Log.Error("the cursors of destinations cannot be written: after a restart, more events would be sent again", "error", err)
		}
		pause = max(interval, 10*time.Since(began)) // thousands of states take a while, and events come first
	}
}

// sleep waits, and returns false when the shard ends.
func (sh *shard) sleep(d time.Duration) bool { return store.Sleep(sh.ctx, d) == nil }

func (sh *shard) nudge() {
	select {
	case sh.wake <- struct{}{}:
	default:
	}
}

// readHead reads the feed for the attached destinations.
func (sh *shard) readHead() {
	merchants := []store.MerchantID{}
	news, stop := sh.s.Engine.Watch(nil)
	defer func() { stop() }()
	recheck := time.NewTicker(time.Second)
	defer recheck.Stop()
	for sh.ctx.Err() == nil {
		var changed bool
		var err error
		if merchants, changed, err = sh.merchants(merchants); changed {
			stop()
			news, stop = sh.s.Engine.Watch(merchants)
		}
		began, more := time.Now(), false
		if err == nil {
			more, err = sh.readOnce(merchants)
		}
		if err != nil && sh.ctx.Err() == nil {
			sh.s.Log.Warn("events for delivery cannot be read; the read is tried again", "error", err)
			sh.sleep(time.Second)
			continue
		}
		if more {
			continue
		}
		// With many merchants a read costs more: then there are fewer of them.
		if !sh.sleep(min(max(2*time.Millisecond, 15*time.Since(began)), 200*time.Millisecond)) {
			return
		}
		select {
		case <-sh.ctx.Done():
		case <-news:
		case <-sh.wake:
		case <-recheck.C:
		}
	}
}

// merchants returns the merchants that have destinations. From the next read on, their destinations can be attached.
func (sh *shard) merchants(before []store.MerchantID) (all []store.MerchantID, changed bool, err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.changed {
		return before, false, nil
	}
	hasAttached := func(of *group) bool {
		return slices.ContainsFunc(of.runners, func(r *runner) bool { return r.attached })
	}
	if len(before) == 0 && !slices.ContainsFunc(slices.Collect(maps.Values(sh.of)), hasAttached) {
		// No destination needs what came in before.
		sh.mu.Unlock()
		head, err := sh.s.Engine.Latest(sh.ctx)
		sh.mu.Lock()
		if err != nil {
			return before, false, err
		}
		sh.head = head
	}
	for m, of := range sh.of {
		of.listed = true
		all = append(all, m)
	}
	sh.changed = false
	return all, true, nil
}

// readOnce reads the new events for the attached destinations. Only its caller moves head.
func (sh *shard) readOnce(merchants []store.MerchantID) (more bool, err error) {
	if len(merchants) == 0 {
		return false, nil
	}
	now := sh.s.Now()
	end, err := sh.s.Engine.Feed(sh.ctx, store.FeedQuery{Merchants: merchants, After: sh.head}, func(e *store.Received) bool {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		var one *item
		if of := sh.of[e.Merchant]; of != nil && of.listed {
			for _, r := range of.runners {
				switch {
				case !r.attached || !r.wants(e):
				case len(r.pending) >= maxPending || sh.waiting > maxWaiting/sh.s.count():
					r.detach()
				case one == nil:
					one = newItem(e, sh.head, now)
					fallthrough
				default:
					r.hand(one)
				}
			}
		}
		sh.head = e.Cursor
		return true
	})
	if err != nil {
		return false, err
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.head = end.Cursor
	for _, r := range sh.early {
		r.early = false
		r.kick()
	}
	sh.early = nil
	return end.More, nil
}

// set takes a change of a destination; the zero Destination was deleted.
func (sh *shard) set(m store.MerchantID, id string, d Destination) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i, of := -1, sh.of[m]
	if of != nil {
		i = slices.IndexFunc(of.runners, func(r *runner) bool { return r.id == id })
	}
	switch {
	case i < 0 && d.ID == "":
	case i < 0:
		sh.add(d, state{Cursor: d.Start}).kick()
	case d.ID == "":
		r := of.runners[i]
		if of.runners = slices.Delete(of.runners, i, i+1); len(of.runners) == 0 {
			delete(sh.of, m)
			sh.changed = true
		}
		r.remove()
	default:
		of.runners[i].configure(d)
		of.runners[i].kick()
	}
	sh.nudge()
}
