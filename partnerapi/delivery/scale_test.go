package delivery

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

var many = flag.Int("destinations", 500, "destinations of TestDrillManyDestinations; a fifth of them never answers")

// TestDrillManyDestinations has a fifth of all destinations hang. The others must get their events soon, and memory must be
// bounded. The figures for many destinations: go test -run ManyDestinations -destinations 10000 -v
func TestDrillManyDestinations(t *testing.T) {
	testenv.Drill(t)
	b := newBedWith(t, backoff)
	hole := must(net.Listen("tcp", "127.0.0.1:0")) // takes connections, and says nothing
	defer hole.Close()
	var mu sync.Mutex
	sentAt, lags := map[string]time.Time{}, []time.Duration(nil)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			Data struct {
				MUID string `json:"muid"`
			} `json:"data"`
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		mu.Lock()
		defer mu.Unlock()
		lags = append(lags, time.Since(sentAt[m.Data.MUID]))
	}))
	defer s.Close()
	type shop struct {
		m   store.MerchantID
		tag store.TagID
	}
	var shops []shop
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	for i := range *many / 10 { // ten destinations each
		m, tag := b.shop(b.m.Partner)
		shops = append(shops, shop{m.ID, tag})
		_ = i
	}
	before := heap()
	for i := range *many {
		url := s.URL
		if i%5 == 0 {
			url = "http://" + hole.Addr().String()
		}
		b.m = mustMerchant(t, b.engine, shops[i%len(shops)].m)
		b.create(url, nil)
	}
	idle := heap()
	const rounds, step = 5, 100
	arrived := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(lags)
	}
	for round := range rounds {
		for from := 0; from < len(shops); from += step {
			part := shops[from:min(from+step, len(shops))]
			var marks []store.Mark
			for i, of := range part {
				muid := fmt.Sprint(round, "-", from+i)
				marks = append(marks, store.Mark{Merchant: of.m, Tag: of.tag, Identity: store.Identity{MUID: store.MUID(muid)}, Name: "Purchase", Time: time.Now(),
					Raw: fmt.Appendf(nil, `{"event":"Purchase","muid":%q}`, muid)})
				mu.Lock()
				sentAt[muid] = time.Now()
				mu.Unlock()
			}
			before := arrived()
			if err := b.engine.Record(t.Context(), marks); err != nil {
				t.Fatal(err)
			}
			b.until("all that answer have it", func() bool { return arrived() >= before+8*len(part) })
		}
		if round == 0 { // those that hang are found out
			mu.Lock()
			slices.Sort(lags)
			t.Logf("while all of them begin to hang: lag p50 %v, p99 %v; %.1f MiB", lags[len(lags)/2], lags[len(lags)*99/100], float64(int64(heap())-int64(before))/(1<<20))
			lags = nil
			mu.Unlock()
		}
	}
	mib := func(n uint64) float64 { return float64(int64(n)-int64(before)) / (1 << 20) }
	// The first part is for the engine, the receiver of the test, and up to 128 connections, of which a busy machine needs
	// more.
	most := 40 + float64(*many)*32/10_000
	busy := heap()
	for deadline := time.Now().Add(time.Minute); mib(busy) > most && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		busy = heap() // on a busy machine, requests that have an answer still end
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(lags)
	t.Logf("%d destinations: %.1f MiB at rest, %.1f MiB with a fifth hanging; lag p50 %v, p99 %v, max %v", *many, mib(idle), mib(busy),
		lags[len(lags)/2], lags[len(lags)*99/100], lags[len(lags)-1])
	if mib(busy) > most {
		t.Errorf("%.1f MiB are more than %.1f", mib(busy), most)
	}
}

var ingest = flag.Int("ingest", 0, "events of TestIngestBesideIdleDestinations; 0: it is skipped")

// TestIngestBesideIdleDestinations logs the processor time of an event of a shop without destinations. Compare the figures
// of go test -run IngestBeside -ingest 300000 -v with -destinations 0 and 10000, several times in turns.
func TestIngestBesideIdleDestinations(t *testing.T) {
	if *ingest == 0 {
		t.Skip("it only measures: -ingest")
	}
	b := newBedWith(t, backoff)
	busy, tag := b.shop(b.m.Partner)
	for i := range *many {
		if i%10 == 0 {
			b.m, _ = b.shop(b.m.Partner)
		}
		b.create("http://127.0.0.1:1", nil)
	}
	used := func() time.Duration {
		var of syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &of); err != nil {
			t.Fatal(err)
		}
		return time.Duration(of.Utime.Nano() + of.Stime.Nano())
	}
	record := func(n int) {
		marks := make([]store.Mark, 100)
		for range n / len(marks) {
			for i := range marks {
				marks[i] = store.Mark{Merchant: busy.ID, Tag: tag, Identity: store.Identity{MUID: store.MUID(fmt.Sprint("m", i))}, Name: "Purchase", Time: time.Now(),
					Raw: []byte(`{"event":"Purchase","value":89.5,"currency":"EUR","pageUrl":"https://shop.example/thanks","pageTitle":"Thank you"}`)}
			}
			if err := b.engine.Record(t.Context(), marks); err != nil {
				t.Fatal(err)
			}
		}
	}
	record(*ingest / 4)
	runtime.GC()
	before, began := used(), time.Now()
	record(*ingest)
	t.Logf("%d destinations: %v of processor time an event, in %v", *many, (used()-before)/time.Duration(*ingest), time.Since(began))
}

// Destinations that hang take all places. Their requests are cut off, so that another destination gets its events; they get
// theirs later.
func TestHangingRequestsAreCutOff(t *testing.T) {
	b, s := newBed(t), newSink(t)
	hole, release := newSink(t), make(chan struct{})
	open := sync.OnceFunc(func() { close(release) })
	t.Cleanup(open)
	hole.answerWith(func(*http.Request, []byte) int { <-release; return 200 })
	sh := b.shard()
	sh.mu.Lock()
	sh.healthy.free = 2
	sh.mu.Unlock()
	var hanging []Destination
	for range 6 {
		hanging = append(hanging, b.create(hole.URL, nil))
	}
	d := b.create(s.URL, nil)
	b.send("m", "Purchase", "")
	b.until("it is delivered", func() bool { return b.status(d).Delivered == 1 })
	open()
	for _, d := range hanging {
		b.until("it is delivered", func() bool { return b.status(d).Delivered == 1 })
	}
	b.until("all places are free", func() bool {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return sh.healthy.free == 2 && sh.failing.free == failingPlaces
	})
}

// With many destinations, one at rest has no open route. It is opened for each event.
func TestARouteIsOpenedWhenItIsNeeded(t *testing.T) {
	b, s := newBed(t), newSink(t)
	sh := b.shard()
	sh.mu.Lock()
	sh.routes += maxRoutes
	sh.mu.Unlock()
	d := b.create(s.URL, nil)
	for n := range 3 {
		b.send("m", "Purchase", "")
		b.until("it is delivered", func() bool { return len(s.all()) == n+1 })
		b.until("it rests", func() bool {
			sh.mu.Lock()
			defer sh.mu.Unlock()
			return sh.of[d.Merchant].runners[0].route == nil && sh.routes == maxRoutes
		})
	}
}

// A destination that waits for memory makes requests give way that hang.
func TestHangingRequestsGiveBackMemory(t *testing.T) {
	b, s := newBed(t), newSink(t)
	hole, release := newSink(t), make(chan struct{})
	open := sync.OnceFunc(func() { close(release) })
	t.Cleanup(open)
	hole.answerWith(func(*http.Request, []byte) int { <-release; return 200 })
	hanging := b.create(hole.URL, nil)
	b.send("m", "Purchase", "")
	b.until("it hangs", func() bool { hole.mu.Lock(); defer hole.mu.Unlock(); return hole.asked == 1 })
	var taken int64
	for ; b.s.memory.TryAcquire(1 << 10); taken += 1 << 10 {
	}
	d := b.create(s.URL, nil)
	b.until("it is cut off", func() bool {
		st := b.status(hanging)
		return st.LastError != nil && *st.LastError == errCut.Error()
	})
	b.s.memory.Release(taken)
	open()
	b.send("m", "Purchase", "")
	b.until("both have all", func() bool { return b.status(d).Delivered == 1 && b.status(hanging).Delivered == 2 })
}
