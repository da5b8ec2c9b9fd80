package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"mtagd/store"
)

// backing is where an engine stores its data, such as a directory or a database. It is empty at first. Its functions end
// the test when they fail.
type backing struct {
	// open opens an engine on the store, with now as its only clock. To see what is durable, the suite closes the engine
	// and calls open again.
	open func(t *testing.T, now func() time.Time) store.Engine

	// kill is called while an engine is open. The next open must find the store as if the engine had been killed at this
	// moment. The suite closes the engine between the two calls; that must not change what the next open finds.
	kill func(t *testing.T)

	// fail keeps the engine from removing events of some merchants until mend is called.
	fail func(t *testing.T, merchants ...store.MerchantID) (mend func())
}

// test is one sentence of the contract.
type test struct {
	sentence string
	check    func(t *testing.T, b *bed)
}

// bed is one engine under test, with a store and a clock of its own.
type bed struct {
	store.Engine
	t       *testing.T
	clock   *clock
	backing backing
	running bool
}

func newBed(t *testing.T, s backing) *bed {
	b := &bed{t: t, backing: s, clock: &clock{now: start, step: time.Millisecond}}
	b.open()
	t.Cleanup(func() {
		if b.running {
			b.close()
		}
	})
	return b
}

func (b *bed) open() {
	b.t.Helper()
	b.Engine, b.running = b.backing.open(b.t, b.clock.Now), true
}

func (b *bed) close() {
	b.t.Helper()
	b.running = false
	b.verify()
	if err := b.Engine.Close(); err != nil {
		b.t.Errorf("close: %v", err)
	}
}

// verify checks that all data is consistent. The suite's marks have tags and merchants that do not exist.
func (b *bed) verify() {
	b.t.Helper()
	_, err := b.Verify(context.Background(), store.Verification{
		Found: func(f store.Finding) {
			if f.Part != store.PartTags {
				b.t.Errorf("verify: %s: %s %s (%d events)", f.Part, f.Where, f.Problem, f.Events)
			}
		},
		Read: func(store.Part, uint64, uint64) {},
	})
	if err != nil {
		b.t.Errorf("verify: %v", err)
	}
}

// reopen closes the engine and opens its store again.
func (b *bed) reopen() {
	b.t.Helper()
	b.close()
	b.open()
}

// reopened runs the body of a loop at once and again after reopening, and gives it these words.
func (b *bed) reopened(yield func(when string) bool) {
	b.t.Helper()
	if yield("at once") {
		b.reopen()
		yield("after reopening")
	}
}

// kill kills the engine, and opens the store again.
func (b *bed) kill() {
	b.t.Helper()
	b.backing.kill(b.t)
	b.reopen()
}

// start is the clock's time when a test begins. It has microseconds, to find engines that lose them.
var start = time.Date(2026, 3, 1, 12, 0, 0, 123_456_000, time.UTC)

// clock is an engine's clock. Each reading moves it forward by step, so that no two readings are the same.
type clock struct {
	mu   sync.Mutex
	now  time.Time
	step time.Duration
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(c.step)
	return c.now
}

// move sets the clock forward or back.
func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// zone makes the clock show the time of a zone, as that of a process does.
func (c *clock) zone(z *time.Location) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.In(z)
}

// stop stops the clock: from now on only move changes it.
func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step = 0
}

// atOnce makes n calls that start together, and returns their results in the order of i.
func atOnce[T any](n int, call func(i int) T) []T {
	results := make([]T, n)
	begin := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-begin
			results[i] = call(i)
		})
	}
	close(begin)
	all.Wait()
	return results
}
