// Package storetest is the suite that every storage engine must pass: the contract of store.Engine
// as sentences that can fail. An engine's own test is one line:
//
//	func TestEngine(t *testing.T) { storetest.Run(t, open) }
//
// Read in this order:
//
//	storetest.go    Run, and the engine under test with its clock
//	partners.go     partners, keys and preverified access
//	merchants.go    merchants and their pages
//	tags.go         generate, update, tags that move
//	directory.go    the in-memory view follows every change
//	marks.go        Record: outcomes, event_id marks, what is kept of a mark
//	identities.go   who an event belongs to
//	listing.go      Events against a plain sorted slice
//	oracle.go       that slice
//	durability.go   close, reopen, concurrent ingest
//
// Random tests print their seed; MTAGD_STORETEST_SEED=n repeats one.
package storetest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"mtagd/store"
)

// Open opens an engine in a directory, with now as its only clock. The suite closes the engine and
// opens the directory again to see what was durable. It must end the test when it fails.
type Open func(t *testing.T, dir string, now func() time.Time) store.Engine

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for _, part := range []struct {
		name  string
		tests []test
	}{
		{"Partners", partnerTests},
		{"Merchants", merchantTests},
		{"Tags", tagTests},
		{"Directory", directoryTests},
		{"Marks", markTests},
		{"Identities", identityTests},
		{"Listing", listingTests},
		{"Durability", durabilityTests},
	} {
		t.Run(part.name, func(t *testing.T) {
			for _, test := range part.tests {
				t.Run(test.sentence, func(t *testing.T) {
					test.check(t, newBed(t, open))
				})
			}
		})
	}
}

// test is one sentence of the contract.
type test struct {
	sentence string
	check    func(t *testing.T, b *bed)
}

// bed is one engine under test, in a directory and at a time of its own.
type bed struct {
	store.Engine
	t       *testing.T
	clock   *clock
	open    Open
	dir     string
	running bool
}

func newBed(t *testing.T, open Open) *bed {
	b := &bed{t: t, open: open, dir: t.TempDir(), clock: &clock{now: start, step: time.Millisecond}}
	b.Engine, b.running = open(t, b.dir, b.clock.Now), true
	t.Cleanup(func() {
		if b.running {
			b.close()
		}
	})
	return b
}

func (b *bed) close() {
	b.t.Helper()
	b.running = false
	if err := b.Engine.Close(); err != nil {
		b.t.Errorf("close: %v", err)
	}
}

// reopen closes the engine and opens its directory again.
func (b *bed) reopen() {
	b.t.Helper()
	b.close()
	b.Engine = b.open(b.t, b.dir, b.clock.Now)
	b.running = true
}

// start is when every test begins. It has microseconds, so that an engine that loses them is found out.
var start = time.Date(2026, 3, 1, 12, 0, 0, 123_456_000, time.UTC)

// clock is the time as an engine sees it. It moves a step at each reading, so that what is made one
// after the other is not made at one time.
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

// stop makes the clock stand still.
func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step = 0
}

// newRandom returns a source of random cases whose seed the test's log tells.
func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("MTAGD_STORETEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("MTAGD_STORETEST_SEED: %v", err)
		}
	}
	t.Logf("MTAGD_STORETEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func expectKind(t *testing.T, err error, want store.Kind) {
	t.Helper()
	if err == nil || store.KindOf(err) != want {
		t.Errorf("error %v is of kind %d, want kind %d", err, store.KindOf(err), want)
	}
}

// expectInvalid wants an error of KindInvalid that names a field.
func expectInvalid(t *testing.T, err error, field string) {
	t.Helper()
	expectKind(t, err, store.KindInvalid)
	if e, ok := err.(*store.Error); ok && e.Field != field {
		t.Errorf("error %v names the field %q, want %q", err, e.Field, field)
	}
}
