package limit

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"
	"time"
	"unsafe"

	"mtagd/store/testenv"
)

var start = time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)

// clock is a bucket and the time.
type clock struct {
	*testing.T
	*Buckets
	key Key
	now time.Time
}

func newClock(t *testing.T) *clock {
	b := NewBuckets()
	return &clock{t, b, b.Key(0, "k"), start}
}

// takes demands that n tokens are there.
func (c *clock) takes(n int64, r Rate) {
	c.Helper()
	if wait := c.Take(c.key, n, r, c.now); wait != 0 {
		c.Fatalf("%d tokens: wait %v, want them now", n, wait)
	}
}

// waits demands that no token is there for so long.
func (c *clock) waits(want time.Duration, r Rate) {
	c.Helper()
	// The level is a float: it may be wrong by a nanosecond.
	if got := c.Take(c.key, 1, r, c.now); got <= 0 || (got-want).Abs() > time.Microsecond {
		c.Fatalf("wait %v, want %v", got, want)
	}
}

func TestABucketGivesItsBurstAndThenItsRate(t *testing.T) {
	c := newClock(t)
	rate := Rate{PerSecond: 10, Burst: 30}
	for range 30 {
		c.takes(1, rate)
	}
	c.waits(1, rate)
	c.now = c.now.Add(99 * time.Millisecond)
	c.takes(1, rate) // the bucket has a part of a token
	c.waits(time.Millisecond, rate)
	c.now = c.now.Add(time.Second)
	for range 10 {
		c.takes(1, rate)
	}
	c.waits(time.Millisecond, rate)
	c.now = c.now.Add(time.Hour)
	for range 30 {
		c.takes(1, rate)
	}
	c.waits(1, rate)
}

// A batch must get through even if it is larger than the burst. It pays in full: the rate is kept.
func TestABucketGivesMoreThanItHasAndWaits(t *testing.T) {
	c := newClock(t)
	rate := Rate{PerSecond: 10, Burst: 30}
	c.takes(29, rate)
	c.takes(1000, rate)
	c.waits(99900*time.Millisecond, rate)
	c.now = c.now.Add(100 * time.Second)
	c.takes(1, rate)
}

func TestARefusedRequestTakesNothing(t *testing.T) {
	c := newClock(t)
	rate := Rate{PerSecond: 1, Burst: 1}
	c.takes(1, rate)
	for range 1000 {
		c.waits(1, rate)
	}
	c.now = c.now.Add(time.Millisecond)
	c.takes(1, rate)
}

// The operator may change a rate while the bucket is in use.
func TestANewRateHoldsAtOnce(t *testing.T) {
	c := newClock(t)
	c.takes(1000, Rate{PerSecond: 1, Burst: 1000})
	c.waits(1, Rate{PerSecond: 1, Burst: 1000})
	c.takes(9000, Rate{PerSecond: 1, Burst: 10_000})
	c.waits(9990*time.Second, Rate{PerSecond: 1, Burst: 10})
}

func TestALowerRateDoesNotHoldForTheTimeBeforeIt(t *testing.T) {
	c := newClock(t)
	c.takes(1000, Rate{PerSecond: 200, Burst: 6000})
	c.now = c.now.Add(5 * time.Second) // the bucket is full
	for range 150 {
		c.takes(1, Rate{PerSecond: 5, Burst: 150})
	}
	c.waits(1, Rate{PerSecond: 5, Burst: 150})
}

// A bucket that was not full again when the rate became lower fills at the lower rate.
func TestALowerRateHoldsForTheTimeAfterIt(t *testing.T) {
	c := newClock(t)
	rate := Rate{PerSecond: 5, Burst: 150}
	c.takes(6000, Rate{PerSecond: 200, Burst: 6000})
	c.now = c.now.Add(time.Second)
	c.waits(1169*time.Second, rate)
	c.now = c.now.Add(40 * time.Second) // at the rate before, it would be full
	c.waits(1129*time.Second, rate)
}

func TestSpendMayTakeMoreThanThereIs(t *testing.T) {
	c := newClock(t)
	rate := Rate{PerSecond: 100, Burst: 100}
	c.takes(0, rate)
	c.change(c.key, 150, 150, rate, c.now)
	c.waits(500*time.Millisecond, rate)
	c.change(c.key, 50, 50, rate, c.now)
	c.waits(time.Second, rate)
}

func TestAllBucketsGiveOrNone(t *testing.T) {
	c := newClock(t)
	rate := Rate{PerSecond: 10, Burst: 10}
	for i := range 3 { // the empty one is the first, in another set, in the same set
		empty := []Key{c.Key(0, "empty"), c.Key(1, "empty"), c.Key(2, "k")}[i]
		c.change(empty, 20, 20, rate, c.now)
		all := []Portion{{c.key, rate, 9, true}, {c.Key(1, "k"), rate, 9, false}, {c.Key(0, "other"), rate, 9, true}}
		all[i].Key = empty
		if wait, which := c.TakeAll(all, c.now); (wait-time.Second).Abs() > time.Microsecond || which != i {
			t.Errorf("wait %v for bucket %d, want a second for bucket %d", wait, which, i)
		}
	}
	full := []Portion{{c.key, rate, 10, true}, {c.Key(1, "k"), rate, 10, false}, {c.Key(0, "other"), rate, 10, true}}
	for range 2 {
		if wait, _ := c.TakeAll(full, c.now); wait != 0 {
			t.Fatalf("wait %v, want all tokens now", wait)
		}
		if wait, _ := c.TakeAll(full, c.now); wait == 0 {
			t.Fatal("the buckets gave more than they have")
		}
		c.GiveBack(full, c.now)
	}
}

func TestAClockThatIsSetBackHarmsNobody(t *testing.T) {
	c := newClock(t)
	rate := Rate{PerSecond: 10, Burst: 10}
	c.takes(11, rate)
	c.now = c.now.Add(-time.Hour)
	c.waits(100*time.Millisecond, rate)
	c.now = c.now.Add(101 * time.Millisecond)
	c.takes(1, rate)
}

// A request's time is when it began: another one may have taken its tokens since.
func TestRequestsOutOfOrderDoNotRefillTwice(t *testing.T) {
	c := newClock(t)
	rate := Rate{PerSecond: 10, Burst: 10}
	c.takes(60, rate)
	for range 10 {
		c.now = c.now.Add(time.Second)
		c.change(c.key, 0, 0, rate, c.now)
		c.now = c.now.Add(-time.Second)
		c.change(c.key, 0, 0, rate, c.now)
	}
	c.waits(4*time.Second, rate)
}

func TestTinyRatesDoNotOverflow(t *testing.T) {
	c := newClock(t)
	rate := Rate{PerSecond: 1.0 / 86400, Burst: 1}
	c.takes(1<<40, rate)
	if wait := c.Take(c.key, 1, rate, c.now); wait < 365*24*time.Hour {
		t.Errorf("wait %v, want years", wait)
	}
}

func TestKindsAndNamesHaveTheirOwnBuckets(t *testing.T) {
	b := NewBuckets()
	one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	rate := Rate{PerSecond: 1, Burst: 1}
	for i, k := range []Key{
		b.Key(0, "m"), b.Key(1, "m"), b.Key(2, "m"), b.Key(0, "n"),
		b.AddressKey(0, one), b.AddressKey(1, one), b.AddressKey(0, other),
		b.PairKey(0, "m", one), b.PairKey(0, "m", other), b.PairKey(0, "n", one), b.PairKey(1, "n", one),
	} {
		if b.Take(k, 1, rate, start) != 0 {
			t.Errorf("key %d has the bucket of an earlier one", i)
		}
	}
}

// A million addresses do not free one that has used up its bucket, and take no more memory than one.
func TestDrillAMillionAddresses(t *testing.T) {
	testenv.Drill(t)
	if size := unsafe.Sizeof(Buckets{}); size > 4<<20 {
		t.Errorf("the table has %d bytes, want at most 4 MiB", size)
	}
	b := NewBuckets()
	rate := Rate{PerSecond: 2000, Burst: 60_000}
	offender := b.AddressKey(0, netip.MustParseAddr("192.0.2.1"))
	b.Take(offender, 100_000, rate, start)
	address := func(i int) Key {
		var bytes [16]byte
		binary.BigEndian.PutUint64(bytes[:], 0x20010db8_00000000+uint64(i))
		return b.AddressKey(0, netip.AddrFrom16(bytes))
	}
	if n := testing.AllocsPerRun(1, func() {
		for i := range 1_000_000 {
			if b.Take(address(i), 1, rate, start) != 0 {
				t.Fatalf("address %d is refused its first request", i)
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if b.Take(offender, 1, rate, start.Add(time.Second)) == 0 {
		t.Error("the offender is forgotten")
	}
}

func TestBucketsAreSafeForConcurrentUse(t *testing.T) {
	b := NewBuckets()
	rate := Rate{PerSecond: 1, Burst: 1000}
	taken := make([]int, 8)
	var callers sync.WaitGroup
	for i := range taken {
		callers.Go(func() {
			for range 500 {
				if b.Take(b.Key(0, "k"), 1, rate, start) == 0 {
					taken[i]++
				}
			}
		})
	}
	callers.Wait()
	sum := 0
	for _, n := range taken {
		sum += n
	}
	if sum != 1000 {
		t.Errorf("%d tokens were taken, want 1000", sum)
	}
}

func TestRetryAfter(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		1: "1", time.Second: "1", time.Second + 1: "2", 90 * time.Second: "90", time.Hour: "3600", 1 << 62: "3600",
	} {
		if got := RetryAfter(wait); got != want {
			t.Errorf("Retry-After of %v is %s, want %s", wait, got, want)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	buckets := NewBuckets()
	address := netip.MustParseAddr("192.0.2.1")
	rate := Rate{PerSecond: 1e12, Burst: 1e12}
	b.ReportAllocs()
	for b.Loop() {
		buckets.Take(buckets.AddressKey(0, address), 1, rate, start)
	}
}
