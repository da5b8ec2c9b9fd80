package sdk_test

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store/testenv"
)

// The tests in this file make random visits. The seed decides what the visitor does. What a request meets also depends
// on the order in which requests arrive.
var seed = flag.Uint64("seed", 1, "seed of the random visits")

// scenarioLimit limits the random part of a visit, for slow machines.
const scenarioLimit = 12 * time.Second

// scenario is a visit of a shop in several tabs.
type scenario struct {
	*world
	random  *rand.Rand
	tabs    []*visit
	pages   int // that were made; each has a path of its own
	events  int // that were made; each has a name of its own
	consent bool
}

// visit is a tab of a scenario.
type visit struct {
	*tab
	path    string
	pushed  time.Time // when history.pushState was last called
	offline bool
}

func newScenario(t *testing.T, tabs int) *scenario {
	t.Helper()
	w := newWorld(t)
	t.Logf("-seed %d", *seed)
	s := &scenario{world: w, random: rand.New(rand.NewPCG(*seed, 0)), consent: true}
	w.page("/portal", "")
	for range tabs {
		s.open()
	}
	return s
}

// open opens a page in a new tab.
func (s *scenario) open() {
	s.tabs = append(s.tabs, &visit{tab: s.tab()})
	s.load(s.tabs[len(s.tabs)-1])
}

// anyTab returns a random tab.
func (s *scenario) anyTab() *visit { return s.tabs[s.random.IntN(len(s.tabs))] }

// newPage makes a page of the shop, which asks for the visitor's present choice.
func (s *scenario) newPage() (path string) {
	s.pages++
	path = fmt.Sprint("/page", s.pages)
	s.page(path, s.snippet(s.consent))
	return path
}

// load loads a new page as when the visitor enters its address.
func (s *scenario) load(v *visit) {
	v.path = s.newPage()
	v.goTo(s.gate.url(shopHost) + v.path)
}

// leave makes an event, and loads a new page right after it.
func (s *scenario) leave(v *visit) (event string) {
	s.events++
	v.path = s.newPage()
	event = fmt.Sprint("Event", s.events)
	v.do(`mtag('event', '%s'); location.href = '%s'`, event, v.path)
	v.waitFor(v.path)
	return event
}

// make makes some events in a tab, and returns their names.
func (s *scenario) make(v *visit) (events []string) {
	for range 1 + s.random.IntN(20) {
		s.events++
		events = append(events, fmt.Sprint("Event", s.events))
	}
	v.do(`for (const name of '%s'.split(' ')) mtag('event', name)`, strings.Join(events, " "))
	return events
}

// view returns how recorded names the page view of a path.
func view(path string) string { return "PageView of " + path }

// untilKept waits until the last event of a tab is in localStorage or recorded, and so are those before it. The tag stores events
// a moment after they are made, and a busy browser may end a closing tab before its pagehide.
func (s *scenario) untilKept(v *visit, last string) {
	s.Helper()
	s.wait("the events of a tab are stored", func() bool {
		stored := v.get(fmt.Sprintf(`String(Object.values(localStorage).join().includes('"%s"'))`, last))
		return stored == "true" || s.recorded()[last] > 0
	})
}

// recorded returns how often each event is recorded.
func (s *scenario) recorded() map[string]int {
	s.Helper()
	all := map[string]int{}
	for _, e := range s.world.events() {
		name := e.EventName
		if name == "PageView" {
			address, err := url.Parse(fmt.Sprint(e.RawData["pageUrl"]))
			if err != nil {
				s.Fatal(err)
			}
			name = view(address.Path)
		}
		all[name]++
	}
	return all
}

// finish ends all faults, and waits until the tag host has answered all events of all tabs.
func (s *scenario) finish(weather *weather) {
	s.Helper()
	weather.end()
	s.gate.setFault(nil)
	for _, v := range s.tabs {
		s.connect(v)
		v.do(`dispatchEvent(new Event('online'))`)
	}
	for _, v := range s.tabs {
		v.wantNothingStored()
	}
	s.wait("the last answer", func() bool { return s.gate.nowOpen() == 0 })
}

// connect connects a tab to the network again.
func (s *scenario) connect(v *visit) {
	if v.offline {
		v.tab.offline(false)
		v.offline = false
	}
}

// wantRecorded waits until the events of must are recorded, and checks that each is there once, and that no other events
// are there but those of may, each at most once.
func (s *scenario) wantRecorded(must, may []string) {
	s.Helper()
	var recorded map[string]int
	missing := func() (names []string) {
		recorded = s.recorded()
		for _, name := range must {
			if recorded[name] == 0 {
				names = append(names, name)
			}
		}
		return names
	}
	for end := time.Now().Add(waitLimit); len(missing()) > 0 && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	if lost := missing(); len(lost) > 0 {
		s.Errorf("lost: %d of %d: %v", len(lost), len(must), lost)
	}
	for name, n := range recorded {
		if n > 1 || !slices.Contains(must, name) && !slices.Contains(may, name) {
			s.Errorf("%s is recorded %d times", name, n)
		}
	}
	s.Logf("%d events of %d tabs in %d requests", len(recorded), len(s.tabs), len(s.gate.seen()))
}

// weather makes random faults.
type weather struct {
	world *world
	mu    sync.Mutex
	rand  *rand.Rand
	ended chan struct{}
	end   func()
}

func newWeather(s *scenario) *weather {
	wt := &weather{world: s.world, rand: rand.New(rand.NewPCG(*seed, 1)), ended: make(chan struct{})}
	wt.end = sync.OnceFunc(func() { close(wt.ended) })
	s.Cleanup(wt.end)
	return wt
}

// roll returns a random number below n.
func (wt *weather) roll(n int) int {
	wt.mu.Lock()
	defer wt.mu.Unlock()
	return wt.rand.IntN(n)
}

// pause waits for a random time of up to 2 seconds.
func (wt *weather) pause() { wt.wait(time.Duration(wt.roll(2000)) * time.Millisecond) }

// wait waits until the time is over, or the weather.
func (wt *weather) wait(d time.Duration) {
	select {
	case <-wt.ended:
	case <-time.After(d):
	}
}

// bad is what an outage, an overloaded service, or a captive portal does to requests.
func (wt *weather) bad(out http.ResponseWriter, r *http.Request, service http.Handler) {
	switch wt.roll(14) {
	case 0:
		cut(out, r, service)
	case 1:
		cutAnswer(out, r, service)
	case 2:
		refuse(500)(out, r, service)
	case 3:
		refuse(503)(out, r, service)
	case 4:
		refuse(429, "Retry-After", "1")(out, r, service)
	case 5:
		portal(403, "text/html", "<html>Welcome to our hotel!</html>")(out, r, service)
	case 6:
		portal(404, "text/plain", "404 page not found")(out, r, service)
	case 7:
		portal(200, "application/json", "{}")(out, r, service)
	case 8:
		http.Redirect(out, r, wt.world.gate.url(otherHost)+"/portal", http.StatusFound)
	case 9: // the service answers late
		answer := httptest.NewRecorder()
		service.ServeHTTP(answer, r)
		wt.pause()
		copyAnswer(out, answer)
	case 10: // no answer
		select {
		case <-wt.ended:
		case <-r.Context().Done():
		}
		cut(out, r, service)
	case 11:
		wt.pause()
		service.ServeHTTP(out, r)
	default:
		service.ServeHTTP(out, r)
	}
}

// slow lets some requests fail, and answers most others late, when the visitor may have withdrawn consent.
func (wt *weather) slow(out http.ResponseWriter, r *http.Request, service http.Handler) {
	switch wt.roll(6) {
	case 0:
		cut(out, r, service)
	case 1:
		refuse(503)(out, r, service)
	case 2:
		wt.pause()
		service.ServeHTTP(out, r)
	case 3:
		service.ServeHTTP(out, r)
	default:
		answer := httptest.NewRecorder()
		service.ServeHTTP(answer, r)
		wt.wait(400 * time.Millisecond)
		copyAnswer(out, answer)
	}
}

// portal answers as someone else than the tag host does. The page may read the answer.
func portal(status int, contentType, body string) fault {
	return func(out http.ResponseWriter, r *http.Request, _ http.Handler) {
		out.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		out.Header().Set("Access-Control-Allow-Credentials", "true")
		out.Header().Set("Content-Type", contentType)
		out.WriteHeader(status)
		io.WriteString(out, body)
	}
}

func copyAnswer(out http.ResponseWriter, answer *httptest.ResponseRecorder) {
	for name, values := range answer.Header() {
		out.Header()[name] = values
	}
	out.WriteHeader(answer.Code)
	out.Write(answer.Body.Bytes())
}

// Whatever happens on the way, an event is recorded exactly once when the browser stays open.
func TestARandomVisitLosesNothing(t *testing.T) {
	s := newScenario(t, 3)
	must := []string{}
	for _, v := range s.tabs {
		must = append(must, view(v.path))
	}
	weather := newWeather(s)
	s.gate.setFault(weather.bad)
	start := time.Now()
	for step := 0; step < testenv.Rounds(24) && time.Since(start) < scenarioLimit; step++ {
		v := s.anyTab()
		action := s.random.IntN(12)
		t.Logf("%s: action %d; %d events, %d pages", v.path, action, s.events, s.pages)
		switch action {
		case 0:
			s.connect(v)
			must = append(must, s.leave(v), view(v.path))
		case 1:
			s.connect(v)
			must = append(must, s.make(v)...)
			s.load(v)
			must = append(must, view(v.path))
		case 2:
			v.path = s.newPage()
			v.do(`history.pushState({}, '', '%s')`, v.path)
			v.pushed = time.Now()
			must = append(must, view(v.path))
		case 3, 4:
			v.offline = !v.offline
			v.tab.offline(v.offline)
		case 5:
			// A page view waits for the new title. A busy browser may end a closing tab before the tag can store the view.
			if len(s.tabs) > 2 && time.Since(v.pushed) > time.Second {
				s.connect(v)
				events := s.make(v)
				must = append(must, events...)
				s.untilKept(v, events[len(events)-1])
				v.close()
				s.tabs = slices.DeleteFunc(s.tabs, func(other *visit) bool { return other == v })
			} else {
				s.open()
				must = append(must, view(s.tabs[len(s.tabs)-1].path))
			}
		default:
			must = append(must, s.make(v)...)
		}
	}
	t.Logf("%d events in %v", len(must), time.Since(start).Round(time.Millisecond))
	// A new page sends at once what others have left for later.
	weather.end()
	s.gate.setFault(nil)
	s.open()
	must = append(must, view(s.tabs[len(s.tabs)-1].path))
	s.finish(weather)
	s.wantRecorded(must, nil)
}

// Nothing is on the wire or on the device while the visitor does not consent, in no tab, and the next visitor is a new one.
// Events wait in the page that made them, so they are lost only with it.
func TestARandomVisitWithdrawsConsent(t *testing.T) {
	s := newScenario(t, 3)
	var must, may []string
	in := map[*visit][]string{} // the events of each page, since consent was last given
	for _, v := range s.tabs {
		in[v] = append(in[v], view(v.path))
	}
	muids := map[string]bool{}
	start := time.Now()
	for round := 0; round < testenv.Rounds(2) && time.Since(start) < scenarioLimit; round++ {
		weather := newWeather(s)
		s.gate.setFault(weather.slow)
		for range s.random.IntN(8) {
			v := s.anyTab()
			in[v] = append(in[v], s.make(v)...)
			if s.random.IntN(4) == 0 {
				// The events are in localStorage, unless they are recorded already. A withdrawal removes them there.
				may = append(may, in[v]...)
				s.load(v)
				in[v] = []string{view(v.path)}
			}
		}
		s.withdraw(s.anyTab())
		requests := len(s.gate.seen())
		for range 1 + s.random.IntN(4) {
			v := s.anyTab()
			if s.random.IntN(2) == 0 {
				may = append(may, in[v]...)
				s.load(v)
				in[v] = []string{view(v.path)}
			}
			in[v] = append(in[v], s.make(v)...)
		}
		weather.end()
		s.wait("the last answer", func() bool { return s.gate.nowOpen() == 0 })
		// A page erases the cookie of a late answer when it has the answer.
		s.wait("no cookie", func() bool { return len(s.tabs[0].cookies()) == 0 })
		for _, v := range s.tabs {
			v.wantNoTrace()
		}
		if seen := s.gate.seen(); len(seen) > requests {
			t.Errorf("round %d: %d requests without consent", round, len(seen)-requests)
		}

		s.consent = true
		s.gate.setFault(nil)
		for _, v := range s.tabs {
			v.do(`mtag('consent', true)`)
		}
		s.finish(weather)
		for _, v := range s.tabs {
			must = append(must, in[v]...)
			in[v] = nil
		}
		s.wantRecorded(must, may)
		muid := s.muidCookie().Value
		if muids[muid] {
			t.Errorf("round %d: the muid is that of an earlier visitor", round)
		}
		muids[muid] = true
	}
	t.Logf("%d visitors in %v", len(muids), time.Since(start).Round(time.Millisecond))
}

// withdraw withdraws consent in a tab, and waits until the others have heard of it.
func (s *scenario) withdraw(in *visit) {
	s.Helper()
	s.consent = false
	var others []*tab
	for _, v := range s.tabs {
		if v != in {
			others = append(others, v.tab)
		}
	}
	in.doHeard(`mtag('consent', false)`, others...)
	// What a tab has sent before may still be on its way through the browser. It is there before this answer is.
	for _, v := range s.tabs {
		v.get(`fetch('` + s.loader() + `', { mode: 'no-cors', cache: 'no-store' }).then(() => '')`)
	}
}
