package sdk_test

import (
	"fmt"
	"net/http"
	"testing"

	"mtagd/store/testenv"
)

func TestTabsThatAreClosedWhileRequestsAreUnderWay(t *testing.T) {
	w := newWorld(t)
	closed := make(chan struct{})
	w.gate.setFault(func(out http.ResponseWriter, r *http.Request, service http.Handler) {
		<-closed
		if len(w.gate.seen())%3 == 0 {
			refuse(503)(out, r, service)
			return
		}
		service.ServeHTTP(out, r)
	})
	wanted := []string{}
	for i := range testenv.Rounds(4) {
		tab := w.visit("/")
		tab.do(`mtag('event', 'InTab%d'); mtag('event', 'Last%d')`, i, i)
		wanted = append(wanted, "PageView", fmt.Sprint("InTab", i), fmt.Sprint("Last", i))
		tab.close()
	}
	w.gate.setFault(nil)
	close(closed)
	w.visit("/").wantNothingStored()
	w.want(append(wanted, "PageView")...)
}

// The next page of the site sends the events that the last page could not send.
func TestAPageThatIsLeftRightAfterAnEvent(t *testing.T) {
	w := newWorld(t)
	w.page("/next", w.snippet(true))
	tab := w.tab()
	for _, tt := range []struct {
		name  string
		fault fault
	}{{"", nil}, {"Cut", cut}, {"Refused", refuse(503)}, {"AnswerLost", cutAnswer}} {
		w.gate.setFault(tt.fault)
		tab.goTo(w.gate.url(shopHost))
		tab.do(`mtag('event', 'Leaving%s'); location.href = '/next'`, tt.name)
		tab.waitFor("/next")
		w.gate.setFault(nil)
		tab.wantNothingStored()
	}
	w.want(append(repeat(8, "PageView"), "Leaving", "LeavingCut", "LeavingRefused", "LeavingAnswerLost")...)
}

// The click that makes events also leaves the page. What it made is stored before that, and the next page sends it.
func TestAClickThatLeavesThePage(t *testing.T) {
	for _, tt := range []struct{ name, listener string }{
		{"by its link", ``},
		{"by its listener", `event.preventDefault(); location.href = '/next'`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.page("/next", "")
			w.page("/", w.snippet(true)+`<script>onload = () => {
				document.body.innerHTML = '<a href="/next">Next</a>';
				document.querySelector('a').onclick = (event) => {
					mtag('event', 'Click');
					mtag('event', 'Lead');
					`+tt.listener+`
				};
			}</script>`)
			tab := w.visit("/")
			w.want("PageView")
			tab.wantNothingStored()
			w.gate.setFault(cut)
			tab.do(`document.querySelector('a').click()`)
			tab.waitFor("/next")
			if got := tab.get(stored); got != "2" {
				t.Errorf("%s events are stored, want 2", got)
			}
			w.gate.setFault(nil)
			tab.goTo(w.gate.url(shopHost) + "/")
			tab.wantNothingStored()
			w.want("PageView", "PageView", "Click", "Lead")
		})
	}
}

// The page of an embedded document removes it in the same moment as it makes an event.
func TestAFrameThatIsRemovedRightAfterAnEvent(t *testing.T) {
	w := newWorld(t)
	w.page("/frame", w.snippet(true))
	w.page("/", `<script>onload = () => document.body.append(Object.assign(document.createElement('iframe'), { src: '/frame' }))</script>`)
	tab := w.visit("/")
	w.want("PageView")
	tab.wantNothingStored()
	w.gate.setFault(cut)
	tab.do(`
		const frame = document.querySelector('iframe');
		frame.contentWindow.mtag('event', 'Last');
		frame.remove();
	`)
	if got := tab.get(stored); got != "1" {
		t.Errorf("%s events are stored, want 1", got)
	}
	w.gate.setFault(nil)
	w.visit("/").wantNothingStored()
	w.want("PageView", "PageView", "Last")
}

// The scripts of a document run for a moment after it was replaced, in the process of the next page. Their retries must
// not keep that process busy.
func TestADocumentThatIsGoneDoesNotRetry(t *testing.T) {
	w := newWorld(t)
	w.page("/frame", w.snippet(true))
	w.page("/", `<script>onload = () => document.body.append(Object.assign(document.createElement('iframe'), { src: '/frame' }))</script>`)
	tab := w.visit("/")
	w.want("PageView")
	tab.wantNothingStored()
	tab.do(`
		const frame = document.querySelector('iframe');
		const mtag = frame.contentWindow.mtag;
		frame.remove();
		mtag('event', 'Gone');
	`)
	if got := tab.get(`new Promise((resolve) => setTimeout(resolve, 100, 'alive'))`); got != "alive" {
		t.Errorf("the page is %s, want alive", got)
	}
}

func TestATabThatIsClosedBeforeTheNextTry(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(refuse(503, "Retry-After", "600"))
	tab := w.visit("/")
	tab.do(`for (let i = 0; i < 20; i++) mtag('event', 'Waiting')`)
	w.wait("the first answer", func() bool { return len(w.gate.seen()) > 0 && w.gate.seen()[0].status == 503 })
	tab.close()
	w.gate.setFault(nil)
	w.visit("/").wantNothingStored()
	w.want(append(repeat(20, "Waiting"), "PageView", "PageView")...)
}

// The page leaves more events than the browser accepts in requests that outlive a page.
func TestAPageThatLeavesManyEvents(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(cut)
	tab := w.visit("/")
	tab.do(`for (let i = 0; i < 300; i++) mtag('event', 'Many', { text: 'ä'.repeat(300) })`)
	tab.close()
	w.wait("requests of the closed page", func() bool { return len(w.gate.seen()) > 0 })
	w.gate.setFault(nil)
	w.visit("/").wantNothingStored()
	w.want(append(repeat(300, "Many"), "PageView", "PageView")...)
	for _, r := range w.gate.seen() {
		if r.header.Get("Sec-Fetch-Mode") == "no-cors" && len(r.body) > 64<<10 {
			t.Errorf("a body has %d bytes, more than 64 KiB", len(r.body))
		}
	}
}

// An event of a hidden page is sent like any other.
func TestAHiddenPage(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.minimize()
	w.wait("the page to be hidden", func() bool { return tab.get(`document.visibilityState`) == "hidden" })
	tab.do(`mtag('event', 'Hidden')`)
	w.want("PageView", "Hidden")
	tab.wantNothingStored()
}

// A phone may end a hidden page without firing any further event, so the page sends its events when it is hidden.
func TestAPageThatIsHiddenSendsWhatWaits(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(refuse(503, "Retry-After", "600"))
	tab := w.visit("/")
	// The first event has no answer yet. An event in a request that outlives the page is not sent again.
	w.wait("the first answer to be read", func() bool {
		return tab.get(`performance.getEntriesByType('resource').some(r => r.responseStatus === 503)`) == "true"
	})
	tab.do(`mtag('event', 'Waiting')`)
	w.gate.setFault(nil)
	tab.minimize()
	w.want("PageView", "Waiting")
}

// The requests that are under way when a page closes are made again by the last ones, each event in one of them.
func TestAPageThatClosesSendsEachEventOnce(t *testing.T) {
	w := newWorld(t)
	gone := make(chan struct{})
	w.gate.setFault(func(out http.ResponseWriter, r *http.Request, service http.Handler) {
		if r.Header.Get("Sec-Fetch-Mode") == "no-cors" {
			service.ServeHTTP(out, r)
			return
		}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	tab := w.visit("/")
	w.wait("the first request", func() bool { return len(w.gate.seen()) == 1 })
	tab.do(`mtag('event', 'Second')`)
	w.wait("the second request", func() bool { return len(w.gate.seen()) == 2 })
	tab.do(`mtag('event', 'Third')`)
	tab.goTo("about:blank")
	<-gone
	<-gone
	w.want("PageView", "Second", "Third")
	tab.goTo(w.gate.url(shopHost) + "/plain") // what the closed page has sent is there by now
	if seen := w.gate.seen(); len(seen) != 3 || len(seen[2].events()) != 3 {
		t.Errorf("requests: %v, want two and then one with all events", seen)
	}
}

// A blocker keeps the script away. The calls throw nothing, which every test checks, and store nothing.
func TestTheScriptIsBlocked(t *testing.T) {
	w := newWorld(t)
	w.page("/next", "")
	w.page("/", "<script>"+w.initCall(true)+"</script><script async src=/blocked></script><script>onload = () => document.title = 'loaded'</script>")
	tab := w.visit("/")
	w.wait("the page", func() bool { return tab.get(`document.title`) == "loaded" })
	tab.do(`
		mtag('event', 'Click');
		mtag('consent', false);
		mtag('identify', { email: 'ann@example.com' });
		mtag('reset');
	`)
	tab.goTo(w.gate.url(shopHost) + "/next")
	tab.wantNothingStored()
}
