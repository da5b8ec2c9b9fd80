// Package refused remembers the events that tag hosts have refused lately, and odd ones that they have accepted, so that
// partners can find out why an event is missing. It is in memory only, and empty after a restart.
//
// Read in this order:
//
//	memory.go   what is kept, how it is counted, and for how long
//	room.go     which entries are evicted when there is no room
//	redact.go   what of an event may be kept
//
// Events with the same tag, status, code, place and name are one entry with a count, the first and the last time, and the
// structure of the first event. Nothing that could name a person is kept (redact.go).
//
// Anybody who knows a tag id can have events refused. A stranger cannot use that to:
//
//   - Use up the processors. An event of a known entry costs a map look-up. Only the event of a new entry is parsed, and new
//     entries have rates: for each address, for each address at one merchant, and for each merchant.
//   - Evict a shop's entries. A new name evicts another name with the same reason: of the sender that has most of them, the
//     one with the fewest events. From many addresses, a stranger can still evict what came in only once.
//   - Use up the memory. All entries together have a limit in bytes. Beyond it, the merchant that takes most loses entries.
package refused

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"strings"
	"sync"
	"time"

	"mtagd/edge/check"
	"mtagd/edge/clientaddr"
	"mtagd/edge/limit"
	"mtagd/store"
)

const (
	// MaxAge is how long an entry is kept after its first event. Later events make a new entry.
	MaxAge = 24 * time.Hour
	// MaxEntries is how many entries a merchant has at most.
	MaxEntries = 1000

	maxBytes  = 32 << 20 // of all entries together
	maxOthers = 20       // entries with the same tag, status, code and place, and another name
)

// The rates of new entries.
var (
	ofMerchant    = limit.Rate{PerSecond: 5, Burst: 200}
	ofAddress     = limit.Rate{PerSecond: 2, Burst: 200}
	ofAddressHere = limit.Rate{PerSecond: 1.0 / 60, Burst: 20} // of an address for a merchant
)

// The kinds of buckets.
const (
	kindMerchant byte = iota
	kindAddressHere
)

// Event is an event that was refused, or accepted although it is odd. Its strings and bytes may be as the client sent them,
// and may alias the request: Memory keeps what redact.go lets through, as a copy.
type Event struct {
	Merchant store.MerchantID
	Tag      store.TagID
	Status   int
	Code     string // one of a few constants
	Message  string // of the answer; has nothing of the event
	Reason   string // what to do, in words; has nothing of the event
	Path     string // JSON pointer to the place in the event
	Suggests string // a name to use instead; "" for none

	Name        string // as it was sent
	Origin      string
	Object      []byte // JSON; nil when it was not read
	Identifiers [5]string
	Address     netip.Addr // of the sender; the zero value when the addresses of different senders look the same
}

// Entry is events that were refused for the same reason.
type Entry struct {
	Tag        store.TagID
	Status     int
	Code       string
	Message    string
	Reason     string
	Path       string // of the first event
	Name       string // "" when the event has none, or one that might name a person
	Suggestion string
	Origin     string // of the first event; "" when it has none
	Sample     []byte // the structure of the first event as JSON; nil when it was not read
	Count      int
	First      time.Time
	Last       time.Time

	sender uint64 // a hash of the first sender's address; 0 when addresses do not tell senders apart
}

// Memory is what is remembered of all merchants. It is safe for concurrent use. A nil Memory remembers nothing.
type Memory struct {
	now     func() time.Time
	began   time.Time
	buckets *limit.Buckets
	senders *limit.Addresses // new entries of an address
	seed    maphash.Seed     // of hashes of addresses, which are not kept themselves
	most    int              // bytes

	mu        sync.Mutex
	merchants map[store.MerchantID]*merchant
	largest   heap // the merchants, the one with most bytes first
	bytes     int
	sweeping  bool // a timer is running
}

// merchant is the entries of one merchant.
type merchant struct {
	id      store.MerchantID
	entries map[key]*Entry
	bytes   int
	place   int // in Memory.largest

	dropped      int // events that were not kept, or whose entry was evicted
	droppedSince time.Time
}

// key is what the events of an entry have in common. Elements of arrays are all the same place.
type key struct {
	tag    store.TagID
	status int
	code   string
	place  string
	name   string
}

// keyOf returns the key of an event, whose strings alias it.
func keyOf(e *Event) key {
	k := key{tag: e.Tag, status: e.Status, code: e.Code, place: place(e.Path), name: e.Name}
	if !check.IsKnownName(e.Name) { // the common case allocates nothing
		k.name = shownName(e.Name, identifiersOf(e, nil))
	}
	return k
}

// clone returns a copy that aliases nothing.
func (k key) clone() key {
	k.tag = store.TagID(strings.Clone(string(k.tag)))
	k.place, k.name = strings.Clone(k.place), strings.Clone(k.name)
	return k
}

// New returns an empty memory.
func New(now func() time.Time) *Memory {
	return &Memory{
		now: now, began: now(), buckets: limit.NewBuckets(), senders: limit.NewAddresses(limit.NewBuckets(), ofAddress),
		seed: maphash.MakeSeed(), most: maxBytes, merchants: map[store.MerchantID]*merchant{},
	}
}

// Add remembers an event.
func (m *Memory) Add(e *Event) {
	if m == nil {
		return
	}
	now := m.now()
	k := keyOf(e)
	if m.count(e.Merchant, k, now) {
		return
	}
	if !m.mayBegin(e, now) {
		m.drop(e.Merchant, 1, now)
		return
	}
	k = k.clone()
	entry := newEntry(e, k) // without the lock: it parses the event
	k.name = entry.Name     // the event may have more identifiers than the service reads
	entry.Count, entry.First, entry.Last = 1, now, now
	if e.Address.IsValid() {
		entry.sender = maphash.Comparable(m.seed, clientaddr.Site(e.Address))
	}
	m.begin(store.MerchantID(strings.Clone(string(e.Merchant))), k, entry, now)
}

// count counts an event if it has an entry already, and reports whether it has.
func (m *Memory) count(id store.MerchantID, k key, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	owner := m.merchants[id]
	if owner == nil {
		return false
	}
	e := owner.entries[k]
	if e == nil {
		return false
	}
	if isOld(e.First, now) {
		m.remove(owner, k)
		return false
	}
	e.Count++
	e.Last = now
	return true
}

// mayBegin takes the tokens for a new entry, and reports whether there were enough.
func (m *Memory) mayBegin(e *Event, now time.Time) bool {
	if e.Address.IsValid() {
		if m.buckets.Take(m.buckets.PairKey(kindAddressHere, string(e.Merchant), clientaddr.Site(e.Address)), 1, ofAddressHere, now) > 0 ||
			m.senders.Take(e.Address, 1, now) > 0 {
			return false
		}
	}
	return m.buckets.TakeOne(kindMerchant, string(e.Merchant), ofMerchant, now) == 0
}

// begin adds an entry, and makes room for it.
func (m *Memory) begin(id store.MerchantID, k key, e *Entry, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	owner := m.merchant(id)
	if same := owner.entries[k]; same != nil { // another goroutine was faster
		same.Count++
		same.Last = now
		return
	}
	m.makeRoom(owner, k, size(e), now)
	owner = m.merchant(id) // makeRoom may have removed it
	owner.entries[k] = e
	m.grow(owner, size(e))
	m.sweepLater()
}

// drop counts events that are not kept. It does so only for a merchant that has entries: a counter takes memory too.
func (m *Memory) drop(id store.MerchantID, n int, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if owner := m.merchants[id]; owner != nil {
		owner.drop(n, now)
	}
}

func (o *merchant) drop(n int, now time.Time) {
	if isOld(o.droppedSince, now) {
		o.dropped, o.droppedSince = 0, now
	}
	o.dropped += n
}

// Listing is what is remembered of a merchant.
type Listing struct {
	Entries []Entry   // those with the latest event first
	Since   time.Time // when the memory begins
	Dropped int       // events since then that are in no entry
}

// List returns at most limit entries of a merchant. tag is empty for all of its tags.
func (m *Memory) List(id store.MerchantID, tag store.TagID, limit int) Listing {
	if m == nil {
		return Listing{}
	}
	now := m.now()
	l := Listing{Since: now.Add(-MaxAge)}
	if m.began.After(l.Since) {
		l.Since = m.began
	}
	m.mu.Lock()
	if owner := m.merchants[id]; owner != nil {
		for _, e := range owner.entries {
			if !isOld(e.First, now) && (tag == "" || e.Tag == tag) {
				l.Entries = append(l.Entries, *e)
			}
		}
		if !isOld(owner.droppedSince, now) {
			l.Dropped = owner.dropped
		}
	}
	m.mu.Unlock()
	store.Sort(l.Entries, func(a, b Entry) int {
		return cmp.Or(b.Last.Compare(a.Last), b.First.Compare(a.First), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Path, b.Path),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.Tag, b.Tag))
	})
	l.Entries = l.Entries[:min(len(l.Entries), limit)]
	return l
}

func isOld(t, now time.Time) bool { return now.Sub(t) >= MaxAge }

// sweepInterval is how often old entries are removed, so that none stays much longer than it may.
const sweepInterval = 10 * time.Minute

// sweepLater starts the timer of the next sweep, unless it runs. The caller holds mu.
func (m *Memory) sweepLater() {
	if !m.sweeping && len(m.merchants) > 0 {
		m.sweeping = true
		time.AfterFunc(sweepInterval, m.sweep)
	}
}

// sweep removes the old entries of all merchants.
func (m *Memory) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweeping = false
	now := m.now()
	for _, owner := range m.merchants {
		for k, e := range owner.entries {
			if isOld(e.First, now) {
				m.remove(owner, k)
			}
		}
	}
	m.sweepLater()
}
