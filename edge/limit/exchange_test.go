package limit

import (
	"math"
	"net/netip"
	"testing"
	"time"
)

// twoNodes are two nodes, their exchange, and the time.
type twoNodes struct {
	*testing.T
	now  time.Time
	node [2]*Exchange
	own  [2]*Buckets
}

func newTwoNodes(t *testing.T) *twoNodes {
	w := &twoNodes{T: t, now: start}
	for i := range w.node {
		w.node[i] = NewExchange(Seed{1, 2}, func() time.Time { return w.now })
		w.own[i] = w.node[i].NewBuckets(OfTenants)
		w.node[i].others.Store(1)
	}
	return w
}

// exchange lets each node hear the other.
func (w *twoNodes) exchange() {
	w.Helper()
	from := [2][]byte{w.node[0].message(), w.node[1].message()}
	for i, x := range w.node {
		if err := x.hear([][]byte{from[1-i]}); err != nil {
			w.Fatal(err)
		}
	}
}

// Both nodes get far more than a merchant may send: together they let the limit pass, and at most two bursts at once.
func TestTwoNodesKeepOneLimit(t *testing.T) {
	const perSecond, burst, seconds = 10_000, 100_000, 120
	rate := Rate{PerSecond: perSecond, Burst: burst}
	w := newTwoNodes(t)
	passed, most := 0, 0.0
	for ms := range seconds * 1000 {
		w.now = start.Add(time.Duration(ms) * time.Millisecond)
		for _, b := range w.own {
			if b.Take(b.Key(0, "m"), 100, rate, w.now) == 0 {
				passed += 100
			}
		}
		most = max(most, float64(passed)-burst-perSecond*float64(ms)/1000)
		if ms%1000 == 999 {
			w.exchange()
		}
	}
	t.Logf("at most %.0f more than one node would let pass, at the end %.0f", most, float64(passed)-burst-perSecond*seconds)
	if most > burst+perSecond {
		t.Errorf("at one time %.0f too many have passed, want at most another burst, and what is given in a second", most)
	}
	if over := float64(passed) - burst - perSecond*seconds; math.Abs(over) > 2*perSecond {
		t.Errorf("after %d s %.0f too many have passed, want none but for the last seconds", seconds, over)
	}
}

// Each node gets less than the limit, but together they get more.
func TestTwoNodesThatAreBothBelowTheLimitKeepIt(t *testing.T) {
	const perSecond, burst, seconds = 10_000, 100_000, 120
	rate := Rate{PerSecond: perSecond, Burst: burst}
	w := newTwoNodes(t)
	passed := 0
	for ms := range seconds * 1000 {
		w.now = start.Add(time.Duration(ms) * time.Millisecond)
		for _, b := range w.own {
			if b.Take(b.Key(0, "m"), 8, rate, w.now) == 0 { // 8,000 a second
				passed += 8
			}
		}
		if ms%1000 == 999 {
			w.exchange()
		}
	}
	if over := float64(passed) - burst - perSecond*seconds; over > 2*perSecond {
		t.Errorf("%.0f too many have passed", over)
	}
	if passed < perSecond*seconds {
		t.Errorf("%d have passed, want at least the rate", passed)
	}
}

// What is stored is known only afterwards. Both nodes get as much as they take, and hear of each other as late as they may:
// together they do not store more than the limit, and sooner or later all of it.
func TestTwoNodesStoreWhatOneMayStore(t *testing.T) {
	for _, second := range []int{1, 7} { // the second node gets that many times as much
		const burst, size, seconds = 1_000_000, 500, 30
		rate := Rate{PerSecond: burst / (24 * 3600.), Burst: burst}
		w := newTwoNodes(t)
		stored := 0.0
		var sent [2][]byte
		for ms := range seconds * 1000 {
			w.now = start.Add(time.Duration(ms) * time.Millisecond)
			for i, b := range w.own {
				for range []int{1, second}[i] {
					all := []Portion{{b.Key(0, "m"), rate, 2 * size, true}}
					if wait, _ := b.TakeAll(all, w.now); wait == 0 {
						b.Settle(all, size, w.now)
						stored += size
					}
				}
			}
			if ms%1000 == 999 { // a message arrives just too late for the exchange in which it was sent
				mine := [2][]byte{w.node[0].message(), w.node[1].message()}
				for i, x := range w.node {
					if err := x.hear([][]byte{sent[1-i]}); err != nil {
						t.Fatal(err)
					}
				}
				sent = mine
			}
		}
		if given := burst + rate.PerSecond*seconds; stored > given+2*size || stored < 0.98*given {
			t.Errorf("%.0f bytes were stored, want %.0f", stored, given)
		}
	}
}

// A stranger sends a node what is refused: the others must not believe that it was stored.
func TestNodesDoNotTellOfWhatIsGivenBack(t *testing.T) {
	w := newTwoNodes(t)
	b := w.own[0]
	all := []Portion{{b.Key(0, "m"), Rate{PerSecond: 1, Burst: 1000}, 1000, true}}
	for _, giveBack := range []func(){
		func() { b.Settle(all, 0, w.now) },
		func() { b.GiveBack(all, w.now) },
	} {
		if wait, _ := b.TakeAll(all, w.now); wait > 0 {
			t.Fatalf("a full bucket gives nothing for %v", wait)
		}
		giveBack()
		if m := w.node[0].message(); len(m) > 0 {
			t.Errorf("a message of %d bytes", len(m))
		}
	}
	if wait, _ := b.TakeAll(all, w.now); wait > 0 {
		t.Fatalf("a full bucket gives nothing for %v", wait)
	}
	b.Settle(all, 1000, w.now)
	if m := w.node[0].message(); len(m) != entrySize {
		t.Errorf("a message of %d bytes about what was used, want %d", len(m), entrySize)
	}
}

func TestNodesDoNotTellOfSmallAmounts(t *testing.T) {
	w := newTwoNodes(t)
	b := w.own[0]
	rate := Rate{PerSecond: 100, Burst: 1000}
	b.Take(b.Key(0, "m"), 9, rate, w.now)
	if m := w.node[0].message(); len(m) > 0 {
		t.Errorf("a message of %d bytes", len(m))
	}
	b.change(b.Key(0, "m"), 1, 1, rate, w.now)
	if m := w.node[0].message(); len(m) != entrySize {
		t.Errorf("a message of %d bytes, want %d", len(m), entrySize)
	}
}

// However many keys there are, a message is small, and what it leaves out is told of later.
func TestMessagesAreSmall(t *testing.T) {
	w := newTwoNodes(t)
	rate := Rate{PerSecond: 1, Burst: 10}
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	b := w.own[0]
	for i := range 3 * maxTold {
		b.Take(b.AddressKey(0, address(i)), 5, rate, w.now)
	}
	if m := w.node[0].message(); len(m) != maxTold*entrySize {
		t.Errorf("a message of %d bytes", len(m))
	}
	last := b.AddressKey(0, address(3*maxTold-1))
	b.Take(last, 4, rate, w.now)
	if err := w.node[1].hear([][]byte{w.node[0].message()}); err != nil {
		t.Fatal(err)
	}
	w.own[1].Take(last, 1, rate, w.now) // the last of the burst
	if wait := w.own[1].Take(last, 1, rate, w.now); wait == 0 {
		t.Error("the other node gives more than the 10 tokens of the burst")
	}
}

func TestAWrongMessageIsRefused(t *testing.T) {
	w := newTwoNodes(t)
	b := w.own[0]
	b.Take(b.Key(0, "m"), 1000, Rate{PerSecond: 100, Burst: 1000}, w.now)
	right := w.node[0].message()
	for name, m := range map[string][]byte{
		"cut short":     right[:len(right)-1],
		"unknown table": append([]byte{byte(tables)}, right[1:]...),
		"no rate":       append(right[:17:17], make([]byte, 16)...),
	} {
		if err := w.node[1].hear([][]byte{m}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := w.node[1].hear([][]byte{right}); err != nil {
		t.Error(err)
	}
	if w.own[1].Take(b.Key(0, "m"), 1, Rate{PerSecond: 100, Burst: 1000}, w.now) == 0 {
		t.Error("the other node gives what was given already")
	}
}

func TestTakingAllocatesNothingWithOtherNodes(t *testing.T) {
	w := newTwoNodes(t)
	b := w.own[0]
	address := netip.MustParseAddr("2001:db8::1")
	rate := Rate{PerSecond: 1e6, Burst: 1e6}
	if n := testing.AllocsPerRun(1000, func() {
		b.Take(b.Key(0, "1b4e28ba-2fa1-11d2-883f-0016d3cca427"), 1, rate, w.now)
		b.Take(b.PairKey(1, "m", address), 1, rate, w.now)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
