package sdk_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mtagd/store/testenv"
)

func TestEventsOutlastAnUnavailableTagHost(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(refuse(503))
	tab := w.visit("/")
	tab.do(`mtag('event', 'First'); mtag('event', 'Second')`)
	w.wait("three tries", func() bool { return len(w.gate.seen()) >= 3 })
	w.gate.setFault(nil)
	w.want("PageView", "First", "Second")
	tab.wantNothingStored()
}

// The test only fails when a retry comes too early: how late it comes depends on the machine.
func TestRetryAfterIsHonoured(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	wanted := []string{"PageView"}
	w.want(wanted...)
	tab.wantNothingStored()
	for _, status := range []int{429, 503} {
		before := len(w.gate.seen())
		w.gate.setFault(refuse(status, "Retry-After", "3"))
		tab.do(`mtag('event', 'Refused')`)
		w.wait("the first answer to be read", func() bool {
			return tab.get(fmt.Sprintf(`performance.getEntriesByType('resource').some((r) => r.responseStatus === %d)`, status)) == "true"
		})
		w.gate.setFault(nil)
		tab.do(`
			mtag('event', 'Meanwhile');
			dispatchEvent(new Event('online'));
			document.dispatchEvent(new Event('visibilitychange'));
		`)
		wanted = append(wanted, "Refused", "Meanwhile")
		w.want(wanted...)
		tab.wantNothingStored()
		seen := w.gate.seen()[before:]
		if waited := seen[1].time.Sub(seen[0].time); waited < 3*time.Second {
			t.Errorf("%d: tried again after %v, want at least 3s", status, waited)
		}
	}
}

func TestWhatTheTagHostRefusesIsNotSentAgain(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(refuse(403))
	tab := w.visit("/")
	w.wait("a warning", func() bool { return tab.warned("status 403 on purpose") })
	w.gate.setFault(nil)
	tab.wantNothingStored()
	tab.do(`mtag('event', 'Good'); mtag('event', 'bad name', { email: 'ann@example.com' }); mtag('event', 'AlsoGood')`)
	w.want("Good", "AlsoGood")
	w.wait("a warning", func() bool { return tab.warned("event must be a PascalCase name") })
	if console := fmt.Sprint(tab.lines()); !strings.Contains(console, "bad name") || strings.Contains(console, "ann@") {
		t.Errorf("the console has %s", console)
	}
	tab.wantNothingStored()
}

// An event whose answer is lost is sent again and recorded once.
func TestAnAnswerThatIsLost(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(cutAnswer)
	tab := w.visit("/")
	tab.do(`mtag('event', 'Purchase')`)
	w.wait("both events, and a second try", func() bool { return len(w.events()) == 2 && len(w.gate.seen()) > 2 })
	w.gate.setFault(nil)
	tab.wantNothingStored()
	w.want("PageView", "Purchase")
}

// Neither a captive portal's answer nor one that says nothing about the event ends it. The tag does not retry at once.
func TestAnswersAfterWhichTheTagTriesAgain(t *testing.T) {
	type answer struct {
		name string
		fault
	}
	var answers []answer
	for _, status := range []int{408, 421, 425, 429, 431, 500, 502, 503} {
		answers = append(answers, answer{fmt.Sprint(status), refuse(status)})
	}
	for _, tt := range []struct {
		status int
		words  string
	}{
		{200, "<html>Welcome to our hotel!</html>"}, {200, "null"}, {200, "{}"}, {200, `{"results":[]}`}, {403, "<html>Log in</html>"},
		{404, `{"message":"no such route"}`}, {204, ""},
	} {
		answers = append(answers, answer{fmt.Sprint(tt.status, " ", tt.words), portal(tt.status, "text/html", tt.words)})
	}
	w := newWorld(t)
	tab := w.visit("/")
	wanted := []string{"PageView"}
	w.want(wanted...)
	tab.wantNothingStored()
	for i, tt := range answers {
		before := len(w.gate.seen())
		w.gate.setFault(tt.fault)
		tab.do(`mtag('event', 'Answer%d')`, i)
		w.wait("a second try after "+tt.name, func() bool { return len(w.gate.seen()) > before+1 })
		w.gate.setFault(nil)
		tab.wantNothingStored()
		wanted = append(wanted, fmt.Sprint("Answer", i))
		seen := w.gate.seen()[before:]
		// After 408 and 421, browsers may try again by themselves.
		if waited := seen[1].time.Sub(seen[0].time); waited < 200*time.Millisecond && tt.name != "408" && tt.name != "421" {
			t.Errorf("%s: tried again after %v, want a delay", tt.name, waited)
		}
	}
	w.want(wanted...)
}

// A request that gets no answer holds up neither the events of its own tab nor those of another one.
func TestARequestThatIsStuck(t *testing.T) {
	w := newWorld(t)
	stuck := make(chan struct{})
	w.gate.setFault(func(out http.ResponseWriter, r *http.Request, service http.Handler) {
		if strings.Contains(w.gate.seen()[0].body, "PageView") && len(w.gate.seen()) == 1 {
			<-stuck
		}
		service.ServeHTTP(out, r)
	})
	tab := w.visit("/")
	w.wait("the request", func() bool { return len(w.gate.seen()) == 1 })
	tab.do(`mtag('event', 'Behind')`)
	other := w.visit("/")
	other.do(`mtag('event', 'InAnotherTab')`)
	w.wait("the others", func() bool {
		recorded := names(w.events())
		return strings.Contains(recorded, "Behind") && strings.Contains(recorded, "InAnotherTab")
	})
	close(stuck)
	w.want("PageView", "PageView", "Behind", "InAnotherTab")
	tab.wantNothingStored()
}

func TestALongRetryAfterIsCappedOnAnOpenPage(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		const set = setTimeout;
		window.longest = 0;
		window.setTimeout = (f, ms, ...more) => (longest = Math.max(longest, ms), set(f, ms, ...more));
	</script>`+w.snippet(true))
	w.gate.setFault(refuse(429, "Retry-After", "86400"))
	tab := w.visit("/")
	w.wait("the timer", func() bool { return tab.get(`longest > 60000`) == "true" })
	if tab.get(`longest <= 5.5 * 60000`) != "true" {
		t.Errorf("the tag waits %s ms, want about 5 minutes", tab.get(`longest`))
	}
}

func TestAnEventThatNeverGetsAnAnswerDoesNotBlockOthers(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(func(out http.ResponseWriter, r *http.Request, service http.Handler) {
		seen := w.gate.seen()
		if strings.Contains(seen[len(seen)-1].body, "Poison") {
			panic(http.ErrAbortHandler)
		}
		service.ServeHTTP(out, r)
	})
	tab := w.visit("/")
	tab.do(`for (const name of ['A', 'B', 'Poison', 'C', 'D']) mtag('event', name)`)
	w.want("PageView", "A", "B", "C", "D")
	w.gate.setFault(nil)
	w.want("PageView", "A", "B", "C", "D", "Poison")
}

func TestAServerThatIsKilledAndStartedAgain(t *testing.T) {
	testenv.NotShort(t, "a browser")
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
	tab.wantNothingStored() // the answer has arrived
	w.gate.setFault(cut)
	tab.offline(true)
	w.wait("the browser to be offline", func() bool { return tab.get(`navigator.onLine`) == "false" })
	tab.do(`mtag('event', 'Offline'); mtag('event', 'StillOffline')`)
	w.wait("a failed try", func() bool { return tab.get(`failed`) != "0" })
	w.wait("two stored events", func() bool { return tab.get(stored) == "2" })
	failures := tab.get(`failed`)
	w.gate.setFault(nil)
	tab.offline(false)
	w.wait("the events", func() bool {
		if now := tab.get(`failed`); now != failures { // Firefox said that it is online before it was
			failures = now
			tab.do(`dispatchEvent(new Event('online'))`)
		}
		return len(w.events()) == 3
	})
	w.want("PageView", "Offline", "StillOffline")
	tab.wantNothingStored()
}

// neverRetries makes retry timers so long that only another cause can start a retry. It counts the requests that failed.
const neverRetries = `<script>
	const set = setTimeout, { send } = XMLHttpRequest.prototype;
	window.failed = 0;
	XMLHttpRequest.prototype.send = function (body) {
		this.addEventListener('loadend', () => this.status || failed++);
		send.call(this, body);
	};
	window.setTimeout = (f, ms) => set(f, ms > 100 && ms < 30000 ? 1e9 : ms);
</script>`

// offline is that of the driver.
func (t *tab) offline(is bool) {
	t.Helper()
	t.check(t.driver.offline(is))
}
