// Package limit protects tenants and clients from each other: token buckets for rates, and a count of what is refused.
//
// Read in this order:
//
//	clients.go    the buckets of client addresses, and the limit of an address that all ports and hosts share
//	buckets.go    a token bucket for each key, in bounded memory
//	exchange.go   tells other nodes what was taken, so that limits hold over all nodes
//	refusals.go   counts and logs what is refused, by cause
//
// The other rules are with the protocols: package tag limits events of merchants, package partnerapi limits requests.
//
// golang.org/x/time/rate has a bucket for one key: 80 bytes and a lock each, in a map that somebody must sweep. Here the
// keys are clients, and a stranger chooses how many there are. So the buckets are in a table of a fixed size. It needs no
// sweep, because a bucket that is full again says nothing: the next key takes its place.
package limit

import (
	"hash/maphash"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"github.com/dchest/siphash"
)

// Rate is what a key may take.
type Rate struct {
	PerSecond float64 // tokens that are added to the bucket; more than 0
	Burst     float64 // tokens of a full bucket
}

// RateFor returns the rate of a bucket that holds what comes in a time. It is negative, as store.NoLimit is, when perSecond is.
func RateFor(perSecond float64, burst time.Duration) Rate {
	return Rate{perSecond, perSecond * burst.Seconds()}
}

// Buckets has a token bucket for each key. Every bucket begins full. It is safe for concurrent use. Nothing is allocated.
//
// Memory is fixed. A bucket needs a place only until it is full again, so the keys that need one are those that take
// more than they may. When there are too many of them, the bucket that will be full soonest is forgotten: its key may
// take a little more than it should. No key ever gets less.
type Buckets struct {
	sets  [numSets]set // first, so that cache lines begin where sets begin
	own   maphash.Seed // of keys, without other nodes: this hash is faster than that with share.seed
	share *Exchange    // nil: there are no other nodes
	table Table        // among those that are shared
}

// Seed makes keys of names. It is secret: strangers must not choose which keys share a set. Nodes share it.
type Seed [2]uint64

// The size of the table: 57,344 buckets in 2.5 MiB.
const (
	numSets   = 8192
	setPlaces = 7
)

// set is the buckets of the keys with the same index. A key can be at any place of its set. The lock and the keys are
// one cache line, and each level is in one: when processors take turns with a bucket, they wait for nothing else.
type set struct {
	mu     sync.Mutex
	keys   [setPlaces]Key
	levels [setPlaces]level
	_      [32]byte
}

// level is how much of a bucket is taken. Times are in nanoseconds since 1970.
type level struct {
	taken float64 // tokens, at the time at; more than the burst when the last request took more than was left
	at    int64
	full  int64   // when taken will have fallen to 0, at the rate of the last request
	mine  float64 // tokens that were taken here, and that the other nodes were not told of
}

// Key is whose bucket it is: the hash of a name and its kind.
type Key uint64

// NewBuckets returns buckets that are all full, and of this node alone.
func NewBuckets() *Buckets {
	b := new(Buckets) // a literal that leaves out fields may write zeros to its 2.5 MiB once more
	b.own = maphash.MakeSeed()
	return b
}

// Key returns the key of a name. Names of different kinds have different keys.
func (b *Buckets) Key(kind byte, name string) Key {
	return b.hash(bytesOf(name)).of(kind)
}

func (b *Buckets) AddressKey(kind byte, address netip.Addr) Key {
	bytes := address.As16()
	return b.hash(bytes[:]).of(kind)
}

// PairKey returns the key of a name together with an address.
func (b *Buckets) PairKey(kind byte, name string, address netip.Addr) Key {
	return b.AddressKey(kind, address) ^ b.hash(bytesOf(name))
}

func (b *Buckets) hash(name []byte) Key {
	if b.share == nil {
		return Key(maphash.Bytes(b.own, name))
	}
	return Key(siphash.Hash(b.share.seed[0], b.share.seed[1], name))
}

// bytesOf returns the bytes of a name, which must not be changed. A copy would be allocated.
func bytesOf(name string) []byte { return unsafe.Slice(unsafe.StringData(name), len(name)) }

// of makes the key of one kind. The kinds of a name are in the same set.
func (k Key) of(kind byte) Key {
	const odd = 0x9e3779b97f4a7c15 // spreads the kinds over all other bits
	return k ^ Key(kind)*odd*numSets
}

// Take takes n tokens from a bucket and returns 0. When the bucket is empty, it takes none, and returns how long it is
// until there are tokens again. One that has any tokens gives n, even if it has fewer: it then owes the rest. So a batch
// that is larger than the burst gets through, and the rate is kept in the long run.
func (b *Buckets) Take(k Key, n int64, r Rate, now time.Time) (wait time.Duration) {
	s := &b.sets[k%numSets]
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.find(k, r, now.UnixNano())
	if wait := l.wait(r); wait > 0 {
		return wait
	}
	l.take(float64(n), r)
	b.tell(k, l, n, r)
	return 0
}

// TakeOne takes a token from the bucket of a name, as Take does. Nil Buckets have no limit, and neither has a negative rate.
func (b *Buckets) TakeOne(kind byte, name string, r Rate, now time.Time) (wait time.Duration) {
	if b == nil || r.PerSecond < 0 {
		return 0
	}
	return b.Take(b.Key(kind, name), 1, r, now)
}

// Portion is what a request takes from one of several buckets.
type Portion struct {
	Key    Key
	Rate   Rate
	Tokens int64
	Strict bool // other nodes may not give the same tokens; how many are used is known only when Settle is called
}

// TakeAll takes from several buckets as Take does. When one of them is empty, it takes nothing, and returns which one,
// and how long until it has tokens again. Portions of one name should follow each other: their buckets share a lock.
//
// For a strict portion each other node may have given as many tokens as this one since they heard of each other: these count
// as taken. So what nodes give together stays within the bucket, but the last tokens come slowly. Other nodes hear of strict
// portions from Settle: they cannot be told that tokens were given back.
func (b *Buckets) TakeAll(all []Portion, now time.Time) (wait time.Duration, empty int) {
	var locked *set
	for i := range all {
		p := &all[i]
		if s := &b.sets[p.Key%numSets]; s != locked {
			if locked != nil {
				locked.mu.Unlock()
			}
			s.mu.Lock()
			locked = s
		}
		l := locked.find(p.Key, p.Rate, now.UnixNano())
		if wait = l.wait(p.Rate); wait == 0 && p.Strict && b.mayBeEmpty(p, l) {
			wait = exchangeEvery
		}
		if wait > 0 {
			locked.mu.Unlock()
			b.GiveBack(all[:i], now)
			return wait, i
		}
		l.take(float64(p.Tokens), p.Rate)
		if !p.Strict {
			b.tell(p.Key, l, p.Tokens, p.Rate)
		}
	}
	if locked != nil {
		locked.mu.Unlock()
	}
	return 0, 0
}

// GiveBack puts back what TakeAll has taken.
func (b *Buckets) GiveBack(all []Portion, now time.Time) {
	b.Settle(all, 0, now)
	for _, p := range all {
		if !p.Strict {
			b.change(p.Key, -p.Tokens, -p.Tokens, p.Rate, now)
		}
	}
}

// Settle takes as many tokens as were used from the bucket of each strict portion, instead of those that TakeAll has taken.
func (b *Buckets) Settle(all []Portion, used int64, now time.Time) {
	for _, p := range all {
		if p.Strict && (used != p.Tokens || b.share != nil) {
			b.change(p.Key, used-p.Tokens, used, p.Rate, now)
		}
	}
}

// mayBeEmpty reports whether other nodes may have given what is left in a bucket. The caller holds the lock of its set.
func (b *Buckets) mayBeEmpty(p *Portion, l *level) bool {
	if b.share == nil {
		return false
	}
	others := float64(b.share.others.Load())
	left := p.Rate.Burst - l.taken
	return l.taken*others >= left && (l.mine+b.share.untold(b.table, p.Key))*others >= left
}

// change takes n tokens from a bucket even if it is empty, or puts some back. It notes for the other nodes what was taken.
func (b *Buckets) change(k Key, n, taken int64, r Rate, now time.Time) {
	s := &b.sets[k%numSets]
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.find(k, r, now.UnixNano())
	l.take(float64(n), r)
	b.tell(k, l, taken, r)
}

// tell notes what was taken for the other nodes, once it is worth it. The caller holds the lock of the level's set.
func (b *Buckets) tell(k Key, l *level, n int64, r Rate) {
	if b.share == nil {
		return
	}
	if l.mine += float64(n); l.mine >= r.Burst*tellShare && b.share.note(spent{spentKey{b.table, k}, l.mine, r}) {
		l.mine = 0
	}
}

// hear takes what another node has given from the same bucket.
func (b *Buckets) hear(other spent, now time.Time) {
	k := other.Bucket.Key
	s := &b.sets[k%numSets]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.find(k, other.Rate, now.UnixNano()).take(other.Tokens, other.Rate)
}

// find returns the level of a key, as of now. A new key gets the place of the bucket which is full, or will be soonest.
func (s *set) find(k Key, r Rate, now int64) *level {
	if i := slices.Index(s.keys[:], k); i >= 0 {
		l := &s.levels[i]
		l.refill(r, now)
		return l
	}
	soonest := 0
	for i := range s.levels {
		if s.levels[i].full < s.levels[soonest].full {
			soonest = i
		}
	}
	s.keys[soonest], s.levels[soonest] = k, level{at: now, full: now}
	return &s.levels[soonest]
}

// refill adds the tokens of the time since the last request. A bucket that was full again at the rate of the last request is
// full: a lower rate does not count for the time before it. Requests may come a little out of order, because a request's
// time is when it began. A clock that was set back by more than that starts again.
func (l *level) refill(r Rate, now int64) {
	const outOfOrder = int64(time.Minute)
	if elapsed := now - l.at; elapsed > 0 || elapsed < -outOfOrder {
		l.taken = max(0, l.taken-r.PerSecond*float64(max(0, elapsed))/1e9)
		if now >= l.full {
			l.taken = 0
		}
		l.at = now
		l.full = now + int64(seconds(l.taken/r.PerSecond))
	}
}

// wait returns how long it is until there are tokens; 0 when there are some.
func (l *level) wait(r Rate) time.Duration {
	if over := l.taken - r.Burst; over >= 0 && r.Burst > 0 {
		return max(seconds(over/r.PerSecond), 1)
	}
	return 0
}

func (l *level) take(n float64, r Rate) {
	l.taken = max(0, l.taken+n)
	l.full = l.at + int64(seconds(l.taken/r.PerSecond))
}

// seconds converts a number of seconds. It is at most 30 years, to stay within the range of times.
func seconds(s float64) time.Duration {
	return time.Duration(math.Ceil(min(s, 1e9) * float64(time.Second)))
}

// RetryAfter returns the value of a Retry-After header: the wait in whole seconds, rounded up, from 1 to 3600.
func RetryAfter(wait time.Duration) string {
	const longest = time.Hour // a client should not believe that the service is gone for good
	rounded := (min(wait, longest) + time.Second - 1) / time.Second
	return strconv.Itoa(int(max(rounded, 1)))
}
