package sdk_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// wantViews checks the addresses of the page views, each with its referrer, both without the shop's host. A request may overtake
// another one, so the order of arrival does not count. But the referrer of a view is the address of the view before it.
func (w *world) wantViews(want ...string) {
	w.Helper()
	var got []string
	for _, r := range w.gate.seen() {
		for _, e := range r.events() {
			if e["event"] == "PageView" {
				got = append(got, strings.ReplaceAll(fmt.Sprintf("%s from %s", e["pageUrl"], e["referrer"]), w.gate.url(shopHost), ""))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.Errorf("views: %q\nwant:  %q", got, want)
	}
}

func TestAChangeOfTheAddressIsAPageView(t *testing.T) {
	for _, tt := range []struct{ name, before string }{
		{"a browser of today", ""},
		{"an older browser", `<script>for (const name of ['navigation', 'NavigateEvent', 'Temporal']) Object.defineProperty(window, name, { value: undefined })</script>`},
	} {
		if tt.before != "" && browserOf(t) == inFirefox {
			break // the part older is the tag's own code
		}
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.page("/", tt.before+w.snippet(true))
			w.wantChangesOfTheAddress(w.visit("/"))
		})
	}
}

// wantChangesOfTheAddress changes the address, and checks the page views.
func (w *world) wantChangesOfTheAddress(tab *tab) {
	w.Helper()
	w.want("PageView")
	w.wait("the part", func() bool { return tab.get(`!!window.navigation || !!mtrem.older`) == "true" })
	tab.do(`
		history.pushState({}, '', '/shoes');
		history.pushState({}, '', '/shoes');
		history.replaceState({ state: 'alone' }, '');
		history.replaceState({}, '', '/shoes?size=42');
		history.pushState({}, '', '/cart');
	`)
	w.want(repeat(4, "PageView")...)
	tab.do(`location.hash = '#total'`)
	w.want(repeat(5, "PageView")...)
	tab.do(`history.go(-2)`)
	w.want(repeat(6, "PageView")...)
	w.wantViews("/ from ", "/shoes from /", "/shoes?size=42 from /shoes", "/cart from /shoes?size=42", "/cart#total from /cart",
		"/shoes?size=42 from /cart#total")
}

// Single-page applications set the title after the address.
func TestTheTitleOfAPageViewIsThatOfTheNewPage(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.do(`history.pushState({}, '', '/shoes'); setTimeout(() => (document.title = 'Shoes'), 50)`)
	title := map[string]any{}
	for _, e := range w.want("PageView", "PageView") {
		title[e.RawData["pageUrl"].(string)] = e.RawData["pageTitle"]
	}
	if at := w.gate.url(shopHost); title[at+"/"] != "Shop /" || title[at+"/shoes"] != "Shoes" {
		t.Errorf("titles: %v", title)
	}
}

func TestAPageThatIsLeftBeforeItsTitleIsKnown(t *testing.T) {
	w := newWorld(t)
	w.page("/next", w.snippet(true))
	tab := w.visit("/")
	w.want("PageView")
	tab.do(`history.pushState({}, '', '/shoes'); location.href = '/next'`)
	tab.waitFor("/next")
	w.want("PageView", "PageView", "PageView")
}

// The page view does not wait for the title when its page may be ended.
func TestAPageThatIsHiddenOrClosedBeforeItsTitleIsKnown(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*tab)
	}{{"hidden", (*tab).minimize}, {"closed", (*tab).close}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for range 3 {
				if endsBeforeItsTitleIsKnown(t, tt.end) {
					return
				}
			}
			t.Error("the browser told no page of its end, so this has tested nothing")
		})
	}
}

// endsBeforeItsTitleIsKnown ends a page, and checks its page view. It returns false when the browser did not tell the page of its
// end. In a busy Firefox, the last request of a closed tab sometimes does not arrive, though the page was told. Then the next
// page must send the page view, because the tag has stored it.
func endsBeforeItsTitleIsKnown(t *testing.T, end func(*tab)) bool {
	w := newWorld(struct{ testing.TB }{t}) // a *testing.T would be made parallel again
	w.page("/", `<script>
		setTimeout = ((set) => (f, ms) => set(f, ms == 500 ? 1e9 : ms))(setTimeout);
		document.addEventListener('visibilitychange', () => (localStorage.told = 1));
		addEventListener('pagehide', () => (localStorage.told = 1));
	</script>`+w.snippet(true))
	w.page("/next", w.snippet(true))
	tab := w.visit("/")
	w.want("PageView")
	tab.wantNothingStored()
	tab.do(`history.pushState({}, '', '/shoes')`)
	end(tab)
	if browserOf(t) == inFirefox && !w.waitUpTo(20*time.Second, func() bool { return len(w.events()) > 1 }) {
		next := w.visit("/next")
		if next.get(`localStorage.told`) != "1" {
			return false
		}
		w.want("PageView", "PageView", "PageView")
		return true
	}
	w.want("PageView", "PageView")
	return true
}

func TestAChangeThatOnlyStripsTheCampaignIsNoPageView(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippetWith("attribution"))
	tab := w.tab()
	tab.goTo(w.gate.url(shopHost) + "/?utm_source=mail&size=42&utm_id=x#top")
	tab.do(`
		history.replaceState({}, '', '/?size=42#top');
		history.replaceState({}, '', '/?size=43#top');
	`)
	w.want("PageView", "PageView")
	w.wantViews("/?utm_source=mail&size=42&utm_id=x#top from ", "/?size=43#top from /?size=42#top")
}

func TestTheNavigationAPI(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.do(`
		navigation.addEventListener('navigate', (event) => event.intercept({ handler: async () => {} }));
		navigation.navigate('/shoes');
	`)
	w.want("PageView", "PageView")
}

func TestAReturnFromTheBackForwardCacheIsAPageView(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault
	}{{"with an empty queue", nil}, {"before the next try", refuse(503)}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			returnsFromTheCache(t, tt.fault, func(next *tab) { next.want("PageView", "PageView") }, func(tab *tab) {
				tab.want(repeat(3, "PageView")...)
				tab.do(`mtag('event', 'AfterReturn')`)
				tab.want("PageView", "PageView", "PageView", "AfterReturn")
				tab.wantNothingStored()
			})
		})
	}
}

// What the visitor chooses on one page counts on an earlier one that comes from the cache. The page's fields of mtag('set')
// are of the visitor before a reset.
func TestChoicesWhileAPageIsInTheBackForwardCache(t *testing.T) {
	for _, tt := range []struct {
		calls                  string
		sends, ads, kept, same bool // the page sends, with click ids, with the fields of set, for the same visitor
		firefox                bool // it is tested there too
	}{
		{``, true, true, true, true, false},
		{`mtag('consent', { ad_storage: 'denied' })`, true, false, true, true, true},
		{`Date.now = ((now) => () => now() - 36e5)(Date.now); mtag('consent', { ad_storage: 'denied' })`, true, false, true, true, false}, // a clock is set back
		{`mtag('consent', false)`, false, false, false, false, true},
		{`mtag('consent', false); mtag('consent', true)`, true, true, true, false, true},
		{`mtag('reset')`, true, true, false, false, false},
		{`mtag('reset'); mtag('consent', { ad_storage: 'denied' })`, true, false, false, false, true},
	} {
		if !tt.firefox && browserOf(t) == inFirefox {
			continue // it differs in the calls alone
		}
		t.Run(tt.calls, func(t *testing.T) {
			t.Parallel()
			muid, sent := "", 0
			returnsFromTheCache(t, nil, func(next *tab) {
				muid = next.want("PageView", "PageView")[0].MUID
				next.wantNothingStored()
				next.do("%s; mtag('muid', () => (window.done = true))", tt.calls)
				if tt.sends {
					next.wait("the part", func() bool { return next.get(`window.done`) == "true" })
				}
				sent = len(next.gate.seen())
			}, func(tab *tab) {
				if !tt.sends {
					tab.do(`mtag('event', 'AfterReturn')`)
					tab.wantNoTrace()
					if n := len(tab.gate.seen()); n != sent {
						t.Errorf("%d requests", n-sent)
					}
					return
				}
				e := tab.want(repeat(3, "PageView")...)[2]
				ads := strings.Contains(fmt.Sprint(e.RawData["pageUrl"], tab.get(`document.cookie`)), "SECRET")
				if _, kept := e.RawData["user"]; ads != tt.ads || kept != tt.kept || (e.MUID == muid) != tt.same {
					t.Errorf("of %s, who was %s: %v", e.MUID, muid, e.RawData)
				}
			})
		})
	}
}

// returnsFromTheCache leaves a page, calls next on another one, goes back and calls then. It tries again when the page does
// not come from the cache: a busy browser may drop a page.
func returnsFromTheCache(t *testing.T, f fault, next, then func(*tab)) {
	for range 3 {
		w := newWorld(struct{ testing.TB }{t}) // a *testing.T would be made parallel again
		w.page("/next", w.snippet(true))
		w.gate.setFault(f)
		tab := w.visit("/?gclid=SECRET")
		tab.do(`window.kept = true; mtag('set', { user: 'ann' })`)
		w.wait("an answer", func() bool { return len(w.gate.seen()) > 0 && w.gate.seen()[0].status > 0 })
		tab.goTo(w.gate.url(shopHost) + "/next")
		w.gate.setFault(nil)
		next(tab)
		tab.do(`history.back()`)
		tab.waitFor("/")
		if tab.get(`window.kept`) == "true" {
			then(tab)
			return
		}
	}
	t.Error("no page came from the cache, so this has tested nothing")
}

// Somebody agrees, closes the tab, and withdraws consent on another host of the site. A page that was in the cache meanwhile
// sends nothing. Chromium tells it of the grant after it has been shown.
func TestAGrantThatIsWithdrawnWhileAPageIsInTheBackForwardCache(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(false))
	w.page("/empty", "")
	tab := w.visit("/")
	tab.do(`window.kept = true`)
	tab.goTo(w.gate.url(shopHost) + "/empty")
	agrees := w.visit("/")
	agrees.do(`Date.now = ((now) => () => now() + 36e5)(Date.now); mtag('consent', true)`) // the clock is put right later
	w.want("PageView")
	agrees.wantNothingStored()
	agrees.close()
	other := w.tab()
	other.goTo(w.gate.url("checkout.shop.localhost") + "/")
	other.do(`mtag('consent', false)`)
	w.wait("no cookie", func() bool { return len(w.cookies()) == 0 })
	tab.do(`history.back()`)
	tab.waitFor("/")
	if tab.get(`window.kept`) != "true" {
		t.Error("the page does not come from the cache, so this has tested nothing")
	}
	other.goTo(w.gate.url(shopHost) + "/empty")
	other.doHeard(``, tab)
	tab.do(`mtag('event', 'AfterReturn')`)
	if seen := w.gate.seen(); len(seen) != 1 || tab.get(`document.cookie`) != "" {
		t.Errorf("requests %v, cookies %s; want one request, and no cookie", seen, tab.get(`document.cookie`))
	}
	// The page hears of a later grant.
	other.goTo(w.gate.url(shopHost) + "/")
	other.doHeard(`mtag('consent', true)`, tab)
	w.want(append(repeat(4, "PageView"), "AfterReturn")...)
}

// A page that was in the cache hears of a grant, also when a reset has made another visitor since then.
func TestAGrantAndAResetWhileAPageIsInTheBackForwardCache(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(false))
	w.page("/next", w.snippet(false))
	tab := w.visit("/")
	tab.do(`window.kept = true; mtag('event', 'Waiting')`)
	tab.goTo(w.gate.url(shopHost) + "/next")
	tab.do(`mtag('consent', true); mtag('reset')`)
	w.want("PageView")
	tab.wantNothingStored()
	tab.do(`history.back()`)
	tab.waitFor("/")
	if tab.get(`window.kept`) != "true" {
		t.Error("the page does not come from the cache, so this has tested nothing")
	}
	w.want(append(repeat(3, "PageView"), "Waiting")...)
}

// neverVisible makes a page see that it is hidden from its beginning, as in a tab that is opened in the background.
const neverVisible = `<script>
	Object.defineProperty(document, 'hidden', { get: () => true });
	document.addEventListener('visibilitychange', (event) => event.stopImmediatePropagation(), true);
	addEventListener('error', (event) => (window.failed = event.message));
</script>`

// A browser freezes a tab that has been hidden for long. What the visitor chooses in another one meanwhile counts before
// anything is sent, also when the page's own code sends at once.
func TestChoicesWhileATabIsFrozen(t *testing.T) {
	for _, tt := range []struct {
		name, calls, head string
		sends             bool
	}{
		{"ad_storage denied", `mtag('consent', { ad_storage: 'denied' })`, "", true},
		{"ad_storage denied, and the tab was never visible", `mtag('consent', { ad_storage: 'denied' })`, neverVisible, true},
		{"withdrawn", `mtag('consent', false)`, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			// The next try does not come by itself: it might begin while the tab is frozen.
			const noRetry = `<script>setTimeout = ((set) => (f, ms) => set(f, ms > 200 ? 1e9 : ms))(setTimeout)</script>`
			w.page("/", tt.head+noRetry+w.snippetWith("options")+`<script>document.addEventListener('resume', () => {
				window.resumed = 1;
				mtag('event', 'Resumed');
				dispatchEvent(new Event('online'));
			})</script>`)
			w.gate.setFault(refuse(503))
			frozen, other := w.visit("/?gclid=SECRET"), w.visit("/")
			w.wait("refusals", func() bool { return len(w.gate.seen()) > 1 })
			frozen.setState(cdppage.SetWebLifecycleStateStateFrozen)
			other.do("%s; mtag('muid', () => (window.done = 1))", tt.calls)
			if tt.sends {
				w.wait("the call", func() bool { return other.get(`window.done`) == "1" })
			}
			other.goTo("about:blank")
			w.wait("the last answers", func() bool { return w.gate.nowOpen() == 0 })
			before := len(w.gate.seen())
			w.gate.setFault(nil)
			frozen.setState(cdppage.SetWebLifecycleStateStateActive)
			w.wait("the tab", func() bool { return frozen.get(`window.resumed`) == "1" })
			if failed := frozen.get(`window.failed || ''`); failed != "" {
				t.Errorf("an exception for the page: %s", failed)
			}
			if tt.sends {
				w.want("PageView", "PageView", "Resumed")
				frozen.wantNothingStored()
			}
			for _, r := range w.gate.seen()[before:] {
				if !tt.sends || strings.Contains(r.body, "SECRET") {
					t.Errorf("sent: %s", r.body)
				}
			}
		})
	}
}

// setState freezes a tab, or makes it active again. It stays hidden. Only Chromium freezes tabs.
func (t *tab) setState(state cdppage.SetWebLifecycleStateState) {
	t.Helper()
	t.driver.(*chromiumTab).profile.changed = true
	_, err := chromedp.Call(t.ctx, cdppage.SetWebLifecycleState, cdppage.SetWebLifecycleStateParams{State: state})
	t.check(err)
}

// A visitor withdraws consent while the next page is prerendered. The server had written it for one who consents.
func TestConsentThatIsWithdrawnWhileAPageIsPrerendered(t *testing.T) {
	w := newWorld(t)
	w.page("/next", w.snippet(true)+`<script>
		if (document.prerendering) onload = () => fetch('/prerendered');
		document.onprerenderingchange = () => setTimeout(() => fetch('/shown'), 500);
	</script>`)
	w.page("/", w.snippet(true)+`
		<script type="speculationrules">{"prerender":[{"urls":["/next"],"eagerness":"immediate"}]}</script>
		<script>new BroadcastChannel('go').onmessage = (message) => (message.data ? location.href = message.data : mtag('consent', false))</script>`)
	w.visitUndriven("/")
	w.want("PageView")
	w.wait("the prerendered page", func() bool { return w.wasAsked("/prerendered") })
	w.page("/plain", "")
	other := w.visit("/plain")
	other.do(`new BroadcastChannel('go').postMessage('')`)
	w.wait("no cookie", func() bool { return len(w.cookies()) == 0 })
	other.do(`new BroadcastChannel('go').postMessage('/next')`)
	w.wait("the page to be shown", func() bool { return w.wasAsked("/shown") })
	other.wantNoTrace()
	if seen := w.gate.seen(); len(seen) > 1 {
		t.Errorf("requests: %v, want that of the first page alone", seen)
	}
}

// Where there is no Navigation API, an element with that id takes its name.
func TestAnElementWithTheIDNavigation(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>delete window.navigation; delete window.NavigateEvent</script>`+w.snippet(true)+`</head><body><nav id="navigation"></nav>`)
	tab := w.visit("/")
	if got := tab.get(`navigation`); got != "[object HTMLElement]" {
		t.Fatalf("navigation is %s", got)
	}
	tab.wait("the part older", func() bool { return tab.get(`mtrem.older`) == "true" })
	tab.do(`history.pushState({}, '', '/shoes')`)
	w.want("PageView", "PageView")
}

// Chromium does not prerender in a tab that the test drives, so the page in this tab navigates by itself.
func TestAPrerenderedPageIsViewedWhenItIsShown(t *testing.T) {
	w := newWorld(t)
	w.page("/next", w.snippet(true)+`<script>
		mtag('event', 'ViewItem');
		if (document.prerendering) {
			onload = () => fetch('/prerendered');
			document.onprerenderingchange = () => mtag('event', 'OfThePage');
		}
	</script>`)
	w.page("/", w.snippet(true)+`
		<script type="speculationrules">{"prerender":[{"urls":["/next"],"eagerness":"immediate"}]}</script>
		<script>new BroadcastChannel('go').onmessage = (message) => (location.href = message.data)</script>`)
	w.visitUndriven("/")
	w.want("PageView")
	w.wait("the prerendered page", func() bool { return w.wasAsked("/prerendered") })
	if got := names(w.events()); got != "PageView" {
		t.Errorf("before it is shown: %s", got)
	}
	w.page("/plain", "")
	other := w.visit("/plain")
	shown := time.Now()
	other.do(`new BroadcastChannel('go').postMessage('/next')`)
	for _, e := range w.want("PageView", "OfThePage", "PageView", "ViewItem")[1:] {
		at, err := time.Parse(time.RFC3339, e.RawData["event_time"].(string))
		if err != nil || at.Before(shown.Truncate(time.Millisecond)) {
			t.Errorf("%s at %v, before the page was shown at %v (%v)", e.EventName, at, shown, err)
		}
	}
}
