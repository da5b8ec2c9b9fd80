package refused

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"mtagd/store"
)

// world is a memory whose clock the test sets.
type world struct {
	*testing.T
	*Memory
	now time.Time
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, now: time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)}
	w.Memory = New(func() time.Time { return w.now })
	return w
}

// refuse adds an event of a name.
func (w *world) refuse(m store.MerchantID, name string, change ...func(*Event)) {
	e := Event{Merchant: m, Tag: "cs_x", Status: 404, Code: "no_muid", Message: "No muid found", Path: "", Name: name,
		Object: []byte(`{"event":"` + name + `","value":1}`)}
	for _, c := range change {
		c(&e)
	}
	w.Add(&e)
}

func from(address string) func(*Event) {
	return func(e *Event) { e.Address = netip.MustParseAddr(address) }
}

// count returns how many events the entry of a name has, 0 when there is none.
func (w *world) count(m store.MerchantID, name string) int {
	for _, e := range w.List(m, "", MaxEntries).Entries {
		if e.Name == name {
			return e.Count
		}
	}
	return 0
}

// check demands that the bytes that are counted are those of the entries.
func (w *world) check() {
	w.Helper()
	total := 0
	for _, owner := range w.merchants {
		bytes := merchantBytes
		for _, e := range owner.entries {
			bytes += size(e)
		}
		if bytes != owner.bytes || len(owner.entries) == 0 {
			w.Errorf("%d bytes of %d entries, counted %d", bytes, len(owner.entries), owner.bytes)
		}
		total += bytes
	}
	if total != w.bytes || total > w.most || len(w.largest) != len(w.merchants) {
		w.Errorf("%d bytes, counted %d, at most %d; %d of %d merchants", total, w.bytes, w.most, len(w.largest), len(w.merchants))
	}
}

func TestEventsWithTheSameReasonAreCounted(t *testing.T) {
	w := newWorld(t)
	w.refuse("a", "Purchase")
	first := w.now
	w.now = w.now.Add(time.Minute)
	w.refuse("a", "Purchase")
	w.refuse("a", "Login")
	w.refuse("a", "Purchase", func(e *Event) { e.Tag = "ss_x" })
	w.refuse("b", "Purchase")
	got := w.List("a", "", 10).Entries
	if len(got) != 3 {
		t.Fatalf("%d entries", len(got))
	}
	for _, e := range got {
		if e.Name == "Purchase" && e.Tag == "cs_x" && (e.Count != 2 || !e.First.Equal(first) || !e.Last.Equal(w.now)) {
			t.Errorf("%+v", e)
		}
	}
	if n := len(w.List("a", "ss_x", 10).Entries); n != 1 {
		t.Errorf("%d entries of the other tag", n)
	}
	if n := len(w.List("a", "", 1).Entries); n != 1 {
		t.Errorf("%d entries, although the limit is 1", n)
	}
	w.check()
}

// Places that differ in the index of an array are one entry, and so are fields of any name.
func TestPlaces(t *testing.T) {
	w := newWorld(t)
	at := func(path string) func(*Event) {
		return func(e *Event) { e.Path = path }
	}
	w.refuse("a", "Purchase", at("/products/0/price"))
	w.refuse("a", "Purchase", at("/products/17/price"))
	w.refuse("a", "Purchase", at("/curency"))
	w.refuse("a", "Purchase", at("/currrency"))
	w.refuse("a", "Purchase", at("/value"))
	got := map[string]int{}
	for _, e := range w.List("a", "", 10).Entries {
		got[e.Path] = e.Count
	}
	if want := map[string]int{"/products/0/price": 2, "/curency": 2, "/value": 1}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestEntriesAreKeptForADay(t *testing.T) {
	w := newWorld(t)
	began := w.now
	w.refuse("a", "Purchase")
	w.now = began.Add(MaxAge - time.Second)
	w.refuse("a", "Purchase")
	if got := w.List("a", "", 10); len(got.Entries) != 1 || !got.Since.Equal(began) {
		t.Errorf("%+v", got)
	}
	w.now = began.Add(MaxAge)
	if got := w.List("a", "", 10); len(got.Entries) != 0 {
		t.Errorf("%+v", got)
	}
	w.refuse("a", "Purchase")
	if n := w.count("a", "Purchase"); n != 1 {
		t.Errorf("the new entry counts %d", n)
	}
	w.now = w.now.Add(MaxAge)
	w.sweep()
	if len(w.merchants) != 0 || w.bytes != 0 || len(w.largest) != 0 {
		t.Errorf("%d merchants and %d bytes are left", len(w.merchants), w.bytes)
	}
	if since := w.List("a", "", 10).Since; !since.Equal(w.now.Add(-MaxAge)) {
		t.Errorf("since %v", since)
	}
}

// A stranger sends events with names that it makes up, from one address. The shop's entry stays, and is found.
func TestAStrangerCannotPushOutTheShop(t *testing.T) {
	w := newWorld(t)
	w.refuse("shop", "Purchase", from("10.0.0.1"))
	w.refuse("shop", "Purchase", from("10.0.0.1"))
	for i := range 10_000 {
		w.refuse("shop", fmt.Sprintf("Junk%c%c%c", 'A'+i%26, 'a'+i/26%26, 'a'+i/676), from("10.0.0.2"))
		w.now = w.now.Add(time.Second)
	}
	w.refuse("shop", "Refund", from("10.0.0.1"))
	for _, name := range []string{"Purchase", "Refund"} {
		if w.count("shop", name) == 0 {
			t.Errorf("no entry of %s", name)
		}
	}
	l := w.List("shop", "", MaxEntries)
	if len(l.Entries) > maxOthers || l.Dropped < 9_000 {
		t.Errorf("%d entries, %d dropped", len(l.Entries), l.Dropped)
	}
	w.check()
}

// One address makes 20 entries of a merchant at once, and then one a minute. Others are not affected.
func TestNewEntriesOfAnAddressAreLimited(t *testing.T) {
	w := newWorld(t)
	try := func(address, code string) {
		w.refuse("shop", "Purchase", from(address), func(e *Event) { e.Code = code })
	}
	for i := range 50 {
		try("10.0.0.2", fmt.Sprint("code", i))
	}
	if l := w.List("shop", "", MaxEntries); len(l.Entries) != 20 || l.Dropped != 30 {
		t.Errorf("%d entries, %d dropped", len(l.Entries), l.Dropped)
	}
	try("10.0.0.1", "another")
	w.now = w.now.Add(time.Minute)
	try("10.0.0.2", "later")
	if n := len(w.List("shop", "", MaxEntries).Entries); n != 22 {
		t.Errorf("%d entries", n)
	}
	w.check()
}

// What an event aliases may change when Add has returned.
func TestEntriesAliasNothing(t *testing.T) {
	w := newWorld(t)
	request := []byte("shop cs_x Bought https://shop.example /value")
	of := func(part string) string {
		at := strings.Index(string(request), part)
		return unsafe.String(&request[at], len(part))
	}
	e := Event{Merchant: store.MerchantID(of("shop")), Tag: store.TagID(of("cs_x")), Name: of("Bought"), Origin: of("https://shop.example"), Path: of("/value")}
	w.Add(&e)
	before := fmt.Sprint(w.List("shop", "", 1).Entries)
	clear(request)
	if after := fmt.Sprint(w.List("shop", "", 1).Entries); after != before || !strings.Contains(after, "Bought") {
		t.Errorf("%q became %q", before, after)
	}
	w.refuse("shop", "Bought", func(e *Event) { e.Path, e.Status, e.Code = "/value", 0, "" })
	if n := w.count("shop", "Bought"); n != 2 {
		t.Errorf("the entry counts %d", n)
	}
}

// A merchant has at most MaxEntries.
func TestEntriesOfAMerchantAreLimited(t *testing.T) {
	w := newWorld(t)
	for i := range 2 * MaxEntries {
		w.refuse("shop", "Purchase", func(e *Event) { e.Code = fmt.Sprint("code", i) })
		w.now = w.now.Add(time.Second)
	}
	if n := len(w.List("shop", "", 10*MaxEntries).Entries); n != MaxEntries {
		t.Errorf("%d entries", n)
	}
	w.check()
}

// When the memory is used up, the merchant that uses most of it loses entries.
func TestMerchantsShareTheMemory(t *testing.T) {
	w := newWorld(t)
	w.most = 100 * entryBytes
	w.refuse("small", "Purchase")
	for i := range 500 {
		w.refuse("large", "Purchase", func(e *Event) { e.Code = fmt.Sprint("code", i) })
		w.now = w.now.Add(time.Second)
		w.check()
	}
	if w.count("small", "Purchase") != 1 {
		t.Error("the small merchant has lost its entry")
	}
	if n := len(w.List("large", "", MaxEntries).Entries); n < 20 {
		t.Errorf("the large merchant has %d entries", n)
	}
	for i := range 500 { // more merchants than there is room for
		w.refuse(store.MerchantID(fmt.Sprint("m", i)), "Purchase")
		w.check()
	}
}

func TestANilMemory(t *testing.T) {
	var m *Memory
	m.Add(&Event{Merchant: "a"})
	if l := m.List("a", "", 1); len(l.Entries) != 0 {
		t.Errorf("%+v", l)
	}
}

func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	w.most = 40 * entryBytes
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 500 {
				m := store.MerchantID(fmt.Sprint("m", (g+i)%5))
				w.refuse(m, "Purchase", func(e *Event) { e.Code = fmt.Sprint("code", i%40) })
				if i%50 == 0 {
					w.List(m, "", 10)
					w.sweep()
				}
			}
		})
	}
	all.Wait()
	w.check()
}

// An event of a known entry costs little: it is not parsed, and nothing is allocated.
func TestCountingAllocatesNothing(t *testing.T) {
	w := newWorld(t)
	e := Event{Merchant: "shop", Tag: "cs_x", Status: 404, Code: "no_muid", Name: "Purchase", Object: []byte(`{}`), Address: netip.MustParseAddr("10.0.0.1")}
	w.Add(&e)
	if n := testing.AllocsPerRun(100, func() { w.Add(&e) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
