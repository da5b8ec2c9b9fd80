package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"mtagd/store"
)

// shard is the destinations of some merchants, and a reader of the feed for those of them that are attached.
type shard struct {
	s    *Service
	ctx  context.Context
	name string

	flushing sync.Mutex
	runners  sync.WaitGroup
	reads    chan struct{} // slots of runners that read the feed
	working  chan struct{} // slots of runners that work
	probes   chan struct{} // slots of destinations that fail
	wake     chan struct{} // the set of attached destinations has changed, or one wants to be attached

	mu      sync.Mutex
	of      map[store.MerchantID][]*runner
	head    store.Cursor // attached destinations have everything up to here, or have it pending
	flushed headState
	dirty   map[*runner]bool
	joining []*runner // have caught up, perhaps
	erasing map[store.MerchantID]erasing
	waiting int // bytes of pending events of attached destinations
}

const (
	concurrentReads  = 8
	concurrentWork   = 512
	concurrentProbes = 512
	maxWaiting       = 16 << 20 // bytes; destinations that would exceed it are detached
)

func decodeDestination(doc store.Document) (d Destination, err error) {
	if doc.Content != nil {
		err = json.Unmarshal(doc.Content, &d)
	}
	return d, err
}

// openShard loads the destinations of a shard.
func (s *Service) openShard(ctx context.Context, i int) (*shard, error) {
	sh := &shard{
		s: s, ctx: ctx, name: fmt.Sprintf("%d/%d", i, s.count()), of: map[store.MerchantID][]*runner{}, dirty: map[*runner]bool{},
		reads: make(chan struct{}, concurrentReads), working: make(chan struct{}, concurrentWork), probes: make(chan struct{}, concurrentProbes), wake: make(chan struct{}, 1),
		erasing: map[store.MerchantID]erasing{},
	}
	docs, err := s.Engine.Destinations(ctx, "")
	if err != nil {
		return nil, err
	}
	states, err := s.Engine.Documents(ctx, store.DeliveryStates, "")
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
	if sh.flushed = (headState{sh.head}); !hasHead {
		if sh.head, err = s.Engine.Latest(ctx); err != nil {
			return nil, err
		}
	}
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
		r.attached = has && st.Attached && hasHead && len(st.Replays) == 0 && r.route != nil && !d.Paused
		if !r.attached && st.Attached && hasHead {
			r.st.Cursor, r.read = sh.head, sh.head // it had everything up to there
		}
	}
	for key := range known {
		if m, id, _ := strings.Cut(key, "/"); m != "" && s.shardOf(store.MerchantID(m)) == i {
			sh.runners.Go(func() { sh.forget(store.MerchantID(m), id) })
		}
	}
	return sh, nil
}

// add adds a destination. The caller holds mu, or nobody else has the shard yet.
func (sh *shard) add(d Destination, st state) *runner {
	r := &runner{sh: sh, merchant: d.Merchant, id: d.ID, st: st}
	r.configure(d)
	sh.of[d.Merchant] = append(sh.of[d.Merchant], r)
	return r
}

// run runs the shard until its context ends, and writes the last states unless the lease was lost.
func (sh *shard) run() {
	sh.mu.Lock()
	for _, of := range sh.of {
		for _, r := range of {
			r.kick()
		}
	}
	sh.mu.Unlock()
	var running sync.WaitGroup
	running.Go(sh.readHead)
	running.Go(sh.flushAll)
	running.Wait()
	sh.runners.Wait()
	if sh.s.Shared == nil || errors.Is(context.Cause(sh.ctx), errStopping) { // else another node may have written newer states
		ctx, cancel := context.WithTimeout(context.WithoutCancel(sh.ctx), 5*time.Second)
		defer cancel()
		if err := sh.flush(ctx); err != nil {
			sh.s.Log.Warn("the last deliveries could not be noted: their events are sent again", "error", err)
		}
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, of := range sh.of {
		for _, r := range of {
			r.stopTimer()
		}
	}
}

func (sh *shard) flushAll() {
	failed := time.Time{}
	pause := flushInterval
	for sh.sleep(pause) {
		began := time.Now()
		if err := sh.flush(sh.ctx); err != nil && sh.ctx.Err() == nil && time.Since(failed) > time.Minute {
			failed = time.Now()
			sh.s.Log.Error("how far deliveries are cannot be written: after a restart, more events would be sent again", "error", err)
		}
		pause = max(flushInterval, 10*time.Since(began)) // thousands of states take a while, and events come first
	}
}

// sleep waits, and returns false when the shard ends.
func (sh *shard) sleep(d time.Duration) bool {
	select {
	case <-sh.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (sh *shard) nudge() {
	select {
	case sh.wake <- struct{}{}:
	default:
	}
}

// readHead reads the feed for the attached destinations.
func (sh *shard) readHead() {
	var watched []store.MerchantID
	news, stop := sh.s.Engine.Watch(nil)
	defer func() { stop() }()
	recheck := time.NewTicker(time.Second)
	defer recheck.Stop()
	for sh.ctx.Err() == nil {
		merchants := sh.attachedMerchants()
		if !slices.Equal(merchants, watched) {
			stop()
			news, stop = sh.s.Engine.Watch(merchants)
			watched = merchants
		}
		began := time.Now()
		more, err := sh.readOnce(merchants)
		if err != nil && sh.ctx.Err() == nil {
			sh.s.Log.Warn("events cannot be read for their delivery; it is tried again", "error", err)
			sh.sleep(time.Second)
			continue
		}
		if more {
			continue
		}
		// With many merchants a read costs more: then there are fewer of them.
		if !sh.sleep(min(max(2*time.Millisecond, 4*time.Since(began)), 100*time.Millisecond)) {
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

// attachedMerchants attaches the destinations that have caught up, and returns the merchants of all that are attached.
func (sh *shard) attachedMerchants() []store.MerchantID {
	sh.mu.Lock()
	joining := sh.joining
	sh.joining = nil
	sh.mu.Unlock()
	for _, r := range joining {
		sh.join(r)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var merchants []store.MerchantID
	for m, of := range sh.of {
		if slices.ContainsFunc(of, func(r *runner) bool { return r.attached }) {
			merchants = append(merchants, m)
		}
	}
	slices.Sort(merchants)
	return merchants
}

// join attaches a destination that has read everything up to r.read, if the shard is there or not further than a few events. Otherwise the
// destination reads on. Only the caller moves the head.
func (sh *shard) join(r *runner) {
	sh.mu.Lock()
	if r.running { // it is just about to rest
		sh.joining = append(sh.joining, r)
		sh.mu.Unlock()
		sh.nudge()
		return
	}
	from, rt := r.read, r.route
	if first := !sh.hasAttached(); first {
		sh.head = from // nobody else is there
	}
	head := sh.head
	sh.mu.Unlock()
	var items []*item
	reached := from == head
	if !reached && rt != nil {
		prev, full := from, false
		end, err := sh.s.Engine.Feed(sh.ctx, store.FeedQuery{Merchants: []store.MerchantID{r.merchant}, After: from, UpTo: head}, func(e *store.Received) bool {
			if full = len(items) >= maxPending/4; full {
				return false
			}
			if rt.wants(e) {
				items = append(items, newItem(e, prev))
			}
			prev = e.Cursor
			return true
		})
		if err == nil && !end.More && !full && end.Cursor != head {
			sh.mu.Lock()
			sh.joining = append(sh.joining, r) // it is ahead: the shard must read first
			sh.mu.Unlock()
			sh.nudge()
			return
		}
		reached = err == nil && !end.More && !full
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.joining = false
	if reached && r.route == rt && r.isOn() && len(r.st.Replays) == 0 {
		r.attached = true
		for _, one := range items {
			r.add(one)
		}
		r.markDirty()
	}
	r.kick()
}

// hasAttached reports whether any destination is attached. The caller holds mu.
func (sh *shard) hasAttached() bool {
	for _, of := range sh.of {
		if slices.ContainsFunc(of, func(r *runner) bool { return r.attached }) {
			return true
		}
	}
	return false
}

// readOnce reads what is new for the attached destinations.
func (sh *shard) readOnce(merchants []store.MerchantID) (more bool, err error) {
	if len(merchants) == 0 {
		return false, nil // who is attached next brings its place along
	}
	sh.mu.Lock()
	after := sh.head // only this goroutine changes it
	sh.mu.Unlock()
	end, err := sh.s.Engine.Feed(sh.ctx, store.FeedQuery{Merchants: merchants, After: after}, func(e *store.Received) bool {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		var one *item
		for _, r := range sh.of[e.Merchant] {
			if !r.attached || !r.route.wants(e) {
				continue
			}
			if len(r.pending) >= maxPending || sh.waiting > maxWaiting {
				r.detach()
				continue
			}
			if one == nil {
				one = newItem(e, sh.head)
			}
			r.add(one)
			r.kick()
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
	return end.More, nil
}

// set takes a change of a destination; the zero Destination was deleted.
func (sh *shard) set(m store.MerchantID, id string, d Destination) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i := slices.IndexFunc(sh.of[m], func(r *runner) bool { return r.id == id })
	switch {
	case i < 0 && d.ID == "":
	case i < 0:
		r := sh.add(d, state{Cursor: d.Start})
		r.markDirty()
		r.kick()
	case d.ID == "":
		r := sh.of[m][i]
		if sh.of[m] = slices.Delete(sh.of[m], i, i+1); len(sh.of[m]) == 0 {
			delete(sh.of, m)
		}
		r.remove()
	default:
		sh.of[m][i].configure(d)
		sh.of[m][i].kick()
	}
	sh.nudge()
}
