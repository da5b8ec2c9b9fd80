package sdk_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// stored is how many events localStorage keeps.
const stored = `Object.keys(localStorage).filter((key) => key.startsWith('_mtag.cs_')).length`

// wantNothingStored waits until the tag host has answered for every event.
func (t *tab) wantNothingStored() {
	t.Helper()
	t.wait("an empty queue", func() bool { return t.get(stored) == "0" })
}

func TestATagHostThatIsUnavailableForAWhile(t *testing.T) {
	w := newWorld(t)
	w.gate.stand(refuse(503))
	tab := w.visit("/")
	tab.do(`mtag('event', 'First'); mtag('event', 'Second')`)
	w.wait("three tries", func() bool { return len(w.gate.seen()) >= 3 })
	w.gate.stand(nil)
	w.want("PageView", "First", "Second")
	tab.wantNothingStored()
}

// Other tries come too late to tell from these, so only too early can be wrong.
func TestRetryAfterIsHonoured(t *testing.T) {
	for _, status := range []int{429, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			w := newWorld(t)
			w.gate.stand(refuse(status, "Retry-After", "3"))
			tab := w.visit("/")
			w.wait("the first try", func() bool { return len(w.gate.seen()) == 1 })
			w.gate.stand(nil)
			tab.do(`
				mtag('event', 'Meanwhile');
				dispatchEvent(new Event('online'));
				document.dispatchEvent(new Event('visibilitychange'));
			`)
			w.want("PageView", "Meanwhile")
			seen := w.gate.seen()
			if waited := seen[1].time.Sub(seen[0].time); waited < 3*time.Second {
				t.Errorf("tried again after %v", waited)
			}
		})
	}
}

func TestWhatTheTagHostRefusesIsNotSentAgain(t *testing.T) {
	w := newWorld(t)
	w.gate.stand(refuse(403))
	tab := w.visit("/")
	w.wait("a warning", func() bool { return tab.warned("status 403 on purpose") })
	w.gate.stand(nil)
	tab.wantNothingStored()
	tab.do(`mtag('event', 'Good'); mtag('event', 'bad name'); mtag('event', 'AlsoGood')`)
	w.want("Good", "AlsoGood")
	w.wait("a warning", func() bool { return tab.warned("event must be a PascalCase name") })
	tab.wantNothingStored()
}

// An answer that gets lost is asked for again, and the event is in the listing once.
func TestAnAnswerThatIsLost(t *testing.T) {
	w := newWorld(t)
	w.gate.stand(cutAnswer)
	tab := w.visit("/")
	tab.do(`mtag('event', 'Purchase')`)
	w.wait("both events, and a second try", func() bool { return len(w.events()) == 2 && len(w.gate.seen()) > 2 })
	w.gate.stand(nil)
	tab.wantNothingStored()
	w.want("PageView", "Purchase")
}

// A network that answers every request with a page of its own has not delivered anything.
func TestAnAnswerOfSomebodyElse(t *testing.T) {
	w := newWorld(t)
	w.gate.stand(func(out http.ResponseWriter, r *http.Request, _ http.Handler) {
		out.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		out.Header().Set("Access-Control-Allow-Credentials", "true")
		fmt.Fprint(out, "<html>Welcome to our hotel!</html>")
	})
	tab := w.visit("/")
	w.wait("a second try", func() bool { return len(w.gate.seen()) > 1 })
	w.gate.stand(nil)
	w.want("PageView")
	tab.wantNothingStored()
}

// One event that no answer comes back for, whatever is the matter with it, does not hold up the others.
func TestAnEventThatCannotPassHoldsUpNoOther(t *testing.T) {
	w := newWorld(t)
	w.gate.stand(func(out http.ResponseWriter, r *http.Request, service http.Handler) {
		seen := w.gate.seen()
		if strings.Contains(seen[len(seen)-1].body, "Poison") {
			panic(http.ErrAbortHandler)
		}
		service.ServeHTTP(out, r)
	})
	tab := w.visit("/")
	tab.do(`for (const name of ['A', 'B', 'Poison', 'C', 'D']) mtag('event', name)`)
	w.want("PageView", "A", "B", "C", "D")
	w.gate.stand(nil)
	w.want("PageView", "A", "B", "C", "D", "Poison")
}

func TestTenTabsClosedInMidFlight(t *testing.T) {
	w := newWorld(t)
	closed := make(chan struct{})
	w.gate.stand(func(out http.ResponseWriter, r *http.Request, service http.Handler) {
		<-closed
		if len(w.gate.seen())%3 == 0 {
			refuse(503)(out, r, service)
			return
		}
		service.ServeHTTP(out, r)
	})
	wanted := []string{}
	for i := range 10 {
		tab := w.visit("/")
		tab.do(`mtag('event', 'InTab%d'); mtag('event', 'Last%d')`, i, i)
		wanted = append(wanted, "PageView", fmt.Sprint("InTab", i), fmt.Sprint("Last", i))
		tab.close()
	}
	w.gate.stand(nil)
	close(closed)
	w.visit("/").wantNothingStored()
	w.want(append(wanted, "PageView")...)
}

// The next page of the site sends what could not be sent before the page was left.
func TestAPageThatIsLeftRightAfterAnEvent(t *testing.T) {
	w := newWorld(t)
	w.page("/next", w.snippet(true))
	for _, tt := range []struct {
		name  string
		fault fault
	}{{"", nil}, {"Cut", cut}, {"Refused", refuse(503)}, {"AnswerLost", cutAnswer}} {
		w.gate.stand(tt.fault)
		tab := w.visit("/")
		tab.do(`mtag('event', 'Leaving%s'); location.href = '/next'`, tt.name)
		tab.waitFor("/next")
		w.gate.stand(nil)
		tab.wantNothingStored()
	}
	w.want(append(times(8, "PageView"), "Leaving", "LeavingCut", "LeavingRefused", "LeavingAnswerLost")...)
}

func TestATabClosedWhileItWaitsForTheNextTry(t *testing.T) {
	w := newWorld(t)
	w.gate.stand(refuse(503, "Retry-After", "600"))
	tab := w.visit("/")
	tab.do(`for (let i = 0; i < 20; i++) mtag('event', 'Waiting')`)
	w.wait("the first answer", func() bool { return len(w.gate.seen()) > 0 && w.gate.seen()[0].status == 503 })
	tab.close()
	w.gate.stand(nil)
	w.visit("/").wantNothingStored()
	w.want(append(times(20, "Waiting"), "PageView", "PageView")...)
}

// More than the browser lets outlive a page.
func TestAPageThatLeavesMuchBehind(t *testing.T) {
	w := newWorld(t)
	w.gate.stand(cut)
	tab := w.visit("/")
	tab.do(`for (let i = 0; i < 300; i++) mtag('event', 'Many', { text: 'ä'.repeat(300) })`)
	tab.close()
	w.wait("requests of the closed page", func() bool { return len(w.gate.seen()) > 0 })
	w.gate.stand(nil)
	w.visit("/").wantNothingStored()
	w.want(append(times(300, "Many"), "PageView", "PageView")...)
	for _, r := range w.gate.seen() {
		if len(r.body) > 64<<10 {
			t.Errorf("a body of %d bytes", len(r.body))
		}
	}
}

func TestAServerThatIsKilledAndStartedAgain(t *testing.T) {
	s, err := startService(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	w := newWorld(t, s)
	tab := w.visit("/")
	wanted := []string{"PageView"}
	for round := range 2 {
		for i := range 10 {
			name := fmt.Sprintf("Round%dEvent%d", round, i)
			tab.do(`mtag('event', %q)`, name)
			wanted = append(wanted, name)
		}
		s.kill()
		tab.do(`mtag('event', 'WhileItIsGone')`)
		wanted = append(wanted, "WhileItIsGone")
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
	}
	w.want(wanted...)
	tab.wantNothingStored()
}

func TestOfflineAndBack(t *testing.T) {
	w := newWorld(t)
	w.page("/", neverRetries+w.snippet(true))
	tab := w.visit("/")
	w.want("PageView")
	tab.offline(true)
	tab.do(`mtag('event', 'Offline'); mtag('event', 'StillOffline')`)
	w.wait("a failed try", func() bool { return strings.Contains(strings.Join(tab.lines(), "\n"), "ERR_INTERNET_DISCONNECTED") })
	if got := tab.get(stored); got != "2" {
		t.Errorf("%s events are stored", got)
	}
	tab.offline(false)
	w.want("PageView", "Offline", "StillOffline")
	tab.wantNothingStored()
}

// neverRetries makes the time until the next try endless, so that only something else can lead to one.
const neverRetries = `<script>
	const set = setTimeout;
	window.setTimeout = (f, ms) => set(f, ms > 100 && ms < 30000 ? 1e9 : ms);
</script>`

// offline cuts the tab off from the network, or connects it again.
func (t *tab) offline(is bool) {
	t.Helper()
	everywhere := &network.Conditions{Offline: is, DownloadThroughput: -1, UploadThroughput: -1}
	_, err := chromedp.Call(t.ctx, network.EmulateNetworkConditionsByRule,
		network.EmulateNetworkConditionsByRuleParams{MatchedNetworkConditions: []*network.Conditions{everywhere}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = chromedp.Call(t.ctx, network.OverrideNetworkState,
		network.OverrideNetworkStateParams{Offline: is, DownloadThroughput: -1, UploadThroughput: -1})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFullLocalStorage(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		for (let size = 5e6; size >= 1; size = Math.floor(size / 2)) {
			try { for (let i = 0; ; i++) localStorage.setItem(size + 'of' + i, 'x'.repeat(size)) } catch {}
		}
	</script>`+w.snippet(true))
	w.gate.stand(refuse(503))
	tab := w.visit("/")
	tab.do(`mtag('event', 'InMemory')`)
	w.wait("a second try", func() bool { return len(w.gate.seen()) > 1 })
	if got := tab.get(stored); got != "0" {
		t.Errorf("%s events are stored, so this has tested nothing", got)
	}
	w.gate.stand(nil)
	w.want("PageView", "InMemory")
}

// In a sandbox, a page may have neither localStorage nor cookies nor locks.
func TestADeniedLocalStorage(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(true)+`<script>mtag('event', 'InTheSandbox')</script>`, "Content-Security-Policy", "sandbox allow-scripts")
	w.gate.stand(refuse(503))
	tab := w.visit("/")
	if got := tab.get(`(() => { try { return localStorage.length } catch (error) { return error.name } })()`); got != "SecurityError" {
		t.Errorf("localStorage: %s, so this has tested nothing", got)
	}
	w.wait("a second try", func() bool { return len(w.gate.seen()) > 1 })
	w.gate.stand(nil)
	events := w.want("PageView", "InTheSandbox")
	if events[0].MUID != events[1].MUID || events[0].MUID == "" {
		t.Errorf("muids %q and %q", events[0].MUID, events[1].MUID)
	}
}

// Pages with TLS have locks, the others make do with a lease.
func TestOneTabSendsAtATime(t *testing.T) {
	for _, host := range []string{shopHost, otherHost} {
		t.Run(host, func(t *testing.T) {
			w := newWorld(t)
			var tries atomic.Int32
			w.gate.stand(func(out http.ResponseWriter, r *http.Request, service http.Handler) {
				if tries.Add(1) < 4 {
					refuse(503)(out, r, service)
					return
				}
				time.Sleep(100 * time.Millisecond) // long enough for another tab to begin, if it does
				service.ServeHTTP(out, r)
			})
			wanted := []string{}
			var tabs []*tab
			for range 3 {
				tab := w.tab()
				tab.goTo(w.gate.url(host) + "/")
				tabs = append(tabs, tab)
				wanted = append(wanted, "PageView")
			}
			if locks := tabs[0].get(`!!navigator.locks`); locks != fmt.Sprint(host == shopHost) {
				t.Fatalf("locks: %s", locks)
			}
			for i, tab := range tabs {
				tab.do(`for (let i = 0; i < 5; i++) mtag('event', 'InTab%d')`, i)
				wanted = append(wanted, times(5, fmt.Sprint("InTab", i))...)
			}
			w.want(wanted...)
			for _, tab := range tabs {
				tab.wantNothingStored()
			}
			if w.gate.atOnce() > 1 {
				t.Errorf("%d requests at once", w.gate.atOnce())
			}
		})
	}
}

// Of two tabs that take the lease at the same time, the later one has it.
func TestALeaseThatAnotherTabTakes(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		const set = localStorage.setItem;
		Storage.prototype.setItem = function (key, value) {
			set.call(this, key, value);
			if (key != '_mtag.lease' || window.taken) return;
			window.taken = Date.now();
			setTimeout(() => set.call(this, key, taken + 1500 + ''));
		};
	</script>`+w.snippet(true))
	tab := w.tab()
	tab.goTo(w.gate.url(otherHost) + "/")
	w.want("PageView")
	taken, err := strconv.ParseInt(tab.get(`taken`), 10, 64)
	if waited := w.gate.seen()[0].time.Sub(time.UnixMilli(taken)); err != nil || waited < 1500*time.Millisecond {
		t.Errorf("sent %v after another tab took the lease for 1.5s (%v)", waited, err)
	}
}

func TestAnEventThatIsTooLarge(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.do(`
		mtag('event', 'Before');
		mtag('event', 'TooLarge', { text: 'ä'.repeat(33000) });
		mtag('event', 'JustFits', { text: 'ä'.repeat(32300) });
		mtag('event', 'After');
	`)
	w.want("PageView", "Before", "JustFits", "After")
	if !tab.warned("too large, not sent: TooLarge") {
		t.Errorf("console: %v", tab.lines())
	}
	tab.wantNothingStored()
}

// What is more than 6 days old may have been recorded more than 7 days ago, when the tag host has forgotten it.
func TestWhatIsTooOldIsNotSent(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		const days = 24 * 60 * 60 * 1000;
		const put = (age, text) => localStorage.setItem('_mtag.`+w.tag+`.' + Math.floor(Date.now() - age) + 'mark0.5', text);
		put(6.1 * days, '{"event":"TooOld"}');
		put(5.9 * days, '{"event":"OldEnough"}');
		put(1, 'broken');
		localStorage.setItem('_mtag.cs_other.' + Date.now() + 'mark0.5', '{"event":"OfAnotherTag"}');
		localStorage.setItem('cart', '{"event":"OfTheShop"}');
	</script>`+w.snippet(true))
	tab := w.visit("/")
	w.want("PageView", "OldEnough")
	w.wait("the rest", func() bool { return tab.get(`Object.keys(localStorage).length`) == "3" })
}

func TestTheQueueIsBounded(t *testing.T) {
	w := newWorld(t)
	w.gate.stand(cut)
	tab := w.visit("/")
	tab.do(`for (let i = 0; i < 100; i++) mtag('event', 'Big' + i, { text: 'x'.repeat(30000) })`)
	size := `Object.entries(localStorage).join('').length < 2.1e6`
	if tab.get(size) != "true" || !tab.warned("the oldest is given up") {
		t.Errorf("%s characters stored; console: %v", tab.get(size), tab.lines())
	}
	w.gate.stand(nil)
	tab.wantNothingStored()
	events := w.events()
	if last := events[len(events)-1].EventName; last != "Big99" || len(events) < 50 {
		t.Errorf("%d events, the last is %s", len(events), last)
	}
}

// An event of a page whose user looks at something else is as good as any.
func TestAHiddenPage(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.minimize()
	w.wait("the page to be hidden", func() bool { return tab.get(`document.visibilityState`) == "hidden" })
	tab.do(`mtag('event', 'Hidden')`)
	w.want("PageView", "Hidden")
	tab.wantNothingStored()
}

// A phone may end a hidden page without another word.
func TestAPageThatGetsHiddenHandsOverWhatWaits(t *testing.T) {
	w := newWorld(t)
	w.gate.stand(refuse(503, "Retry-After", "600"))
	tab := w.visit("/")
	w.wait("the first answer", func() bool { return len(w.gate.seen()) > 0 && w.gate.seen()[0].status == 503 })
	tab.do(`mtag('event', 'Waiting')`)
	w.gate.stand(nil)
	tab.minimize()
	w.want("PageView", "Waiting")
	if got := tab.get(stored); got != "2" {
		t.Errorf("%s events are stored after a beacon, which nobody answers for", got)
	}
}
