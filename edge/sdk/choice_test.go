package sdk_test

import (
	"fmt"
	"strings"
	"testing"
)

// initWith returns a head that installs the tag with these options of init.
func (w *world) initWith(options string) string {
	return strings.Replace(w.snippetWith("attribution,options"), "{ consent: true }", options, 1)
}

// deny returns a head without consent.
func (w *world) deny(head string) string {
	return strings.Replace(head, "consent: true", "consent: false", 1)
}

// consentOf returns the categories that an event was sent with.
func consentOf(e event) map[string]any {
	categories, _ := e.RawData["consent"].(map[string]any)
	return categories
}

func TestConsentByCategory(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.initWith(`{ consent: { ad_storage: 'denied', analytics_storage: 'denied' } }`))
	tab := w.visit("/?gclid=g1")
	tab.do(`mtag('event', 'Early')`)
	tab.wantNoTrace()
	tab.do(`mtag('consent', { analytics_storage: 'granted', ad_user_data: 'denied' }); mtag('event', 'Late')`)
	for _, e := range w.want("PageView", "Early", "Late") {
		if c := consentOf(e); c["analytics_storage"] != "granted" || c["ad_storage"] != "denied" || c["ad_user_data"] != "denied" || len(c) != 3 {
			t.Errorf("%s has consent %v", e.EventName, c)
		}
		if e.RawData["gclid"] != nil {
			t.Errorf("%s has a click id without ad_storage", e.EventName)
		}
	}
	tab.do(`mtag('consent', { ad_storage: 'granted' }); mtag('event', 'WithAds')`)
	for _, e := range w.want("PageView", "Early", "Late", "WithAds") {
		if e.EventName == "WithAds" && (e.RawData["gclid"] != "g1" || consentOf(e)["ad_storage"] != "granted") {
			t.Errorf("with ad_storage: %v", e.RawData)
		}
	}
	tab.wantNothingStored()
	tab.do(`mtag('consent', { ad_storage: 'denied' })`)
	if value := tab.get(`document.cookie`); strings.Contains(value, "g1") {
		t.Errorf("a click id is stored without ad_storage: %s", value)
	}
	tab.do(`mtag('consent', { analytics_storage: 'denied' })`)
	tab.wantNoTrace()
}

// The words of Google Consent Mode, pushed before and after the tag starts. A page that has no gtag may have no
// dataLayer either.
const gtag = `<script>
	window.dataLayer = window.dataLayer || [];
	function gtag() { dataLayer.push(arguments) }
</script>`

func TestConsentModeIsFollowed(t *testing.T) {
	for _, tt := range []struct{ name, before, after string }{
		{"a default, then an update", `gtag('consent', 'default', { analytics_storage: 'denied', ad_storage: 'denied', wait_for_update: 500 })`,
			`gtag('consent', 'update', { analytics_storage: 'granted' })`},
		{"all calls after the tag", ``,
			`gtag('consent', 'default', { analytics_storage: 'denied', ad_storage: 'denied' }); gtag('consent', 'update', { analytics_storage: 'granted' })`},
		{"a default for regions", `gtag('consent', 'default', { analytics_storage: 'denied', ad_storage: 'denied', region: ['ES'] }); gtag('consent', 'default', { analytics_storage: 'granted' })`,
			`gtag('consent', 'update', { analytics_storage: 'granted' })`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.page("/", gtag+"<script>"+tt.before+"</script>"+w.initWith(`{ consent: true, consentMode: true }`))
			tab := w.visit("/")
			// Google's tag replaces push when it loads, and calls the one that it has found.
			tab.do(`
				const before = dataLayer.push;
				dataLayer.push = function () { window.google = (window.google || 0) + 1; return before.apply(dataLayer, arguments) };
				mtag('event', 'Early');
			`)
			tab.wantNoTrace()
			if got := len(w.gate.seen()); got > 0 {
				t.Errorf("%d requests before the update", got)
			}
			tab.do("%s", tt.after)
			for _, e := range w.want("PageView", "Early") {
				if c := consentOf(e); c["analytics_storage"] != "granted" || c["ad_storage"] != "denied" || len(c) != 2 {
					t.Errorf("%s has consent %v", e.EventName, c)
				}
			}
			if tab.get(`google > 0 && dataLayer.length > 0`) != "true" {
				t.Error("Google's push has not seen the calls")
			}
			tab.wantNothingStored()
			tab.do(`gtag('consent', 'update', { analytics_storage: 'denied' })`)
			tab.wantNoTrace()
		})
	}
}

// A default is not a withdrawal: many pages deny by default at each load, and the visitor stays the same.
func TestADefaultKeepsTheVisitor(t *testing.T) {
	w := newWorld(t)
	w.page("/", gtag+`<script>gtag('consent', 'default', { analytics_storage: 'denied' })</script>`+w.initWith(`{ consentMode: true }`))
	tab := w.visit("/")
	tab.do(`gtag('consent', 'update', { analytics_storage: 'granted' })`)
	first := w.want("PageView")[0].MUID
	tab.wantNothingStored()
	tab.goTo(w.gate.url(shopHost) + "/")
	tab.do(`gtag('consent', 'update', { analytics_storage: 'granted' })`)
	if second := w.want("PageView", "PageView")[1].MUID; second != first {
		t.Errorf("muids %s and %s, want the same one", first, second)
	}
}

func TestGlobalPrivacyControlIsRespected(t *testing.T) {
	const signal = `<script>Object.defineProperty(Navigator.prototype, 'globalPrivacyControl', { value: true })</script>`
	w := newWorld(t)
	w.page("/", signal+w.initWith(`{ consent: true, gpc: 'respect' }`))
	tab := w.visit("/")
	tab.do(`mtag('consent', true); mtag('event', 'Purchase')`)
	tab.wantNoTrace()
	if seen := w.gate.seen(); len(seen) > 0 {
		t.Errorf("requests: %v", seen)
	}
	w.page("/ignore", signal+w.initWith(`{ consent: true }`))
	w.visit("/ignore")
	w.want("PageView")
}

func TestPageViewsThatThePageSendsItself(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.initWith(`{ consent: true, pageviews: false }`))
	tab := w.visit("/")
	tab.do(`history.pushState({}, '', '/next'); mtag('event', 'Search')`)
	if e := w.want("Search")[0]; e.RawData["referrer"] != w.gate.url(shopHost)+"/" {
		t.Errorf("referrer %v, want the page before", e.RawData["referrer"])
	}
}

func TestBeforeSendEditsAndDropsEvents(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.initWith(`{ consent: true, beforeSend(event) {
		switch (event.event) {
			case 'Edited': event.value = 2; event.products[0].id = 'edited'; delete event.pageUrl; return;
			case 'Replaced': { const { pageUrl, ...rest } = event; return { ...rest, value: 3 } }
			case 'Kept': return true;
			case 'DroppedByFalse': return false;
			case 'DroppedByNull': return null;
			case 'Throws': throw new Error('beforeSend is broken');
		}
		return event;
	} }`))
	tab := w.visit("/")
	tab.do(`
		window.products = [{ id: 'p1' }];
		for (const name of ['Edited', 'Replaced', 'Kept', 'DroppedByFalse', 'DroppedByNull', 'Throws'])
			mtag('event', name, { value: 1, products });
	`)
	for _, e := range w.want("PageView", "Edited", "Replaced", "Kept") {
		raw := e.RawData
		want := map[string]any{"PageView": nil, "Edited": 2.0, "Replaced": 3.0, "Kept": 1.0}[e.EventName]
		edited := e.EventName == "Edited" || e.EventName == "Replaced"
		if raw["value"] != want || (raw["pageUrl"] == nil) != edited || raw["session_id"] == nil || raw["event_id"] == nil {
			t.Errorf("%s: %v", e.EventName, raw)
		}
	}
	if id := tab.get(`products[0].id`); id != "p1" {
		t.Errorf("the page's own product is %q", id)
	}
	w.wait("a warning", func() bool { return tab.warned("beforeSend is broken") })
}

// The tag cannot wait for a promise: the page may be closing. beforeSend may remove personal data, so the event is dropped.
func TestABeforeSendThatIsAsync(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.initWith(`{ consent: true, pageviews: false, beforeSend: async (event) => event }`))
	tab := w.visit("/")
	tab.do(`mtag('event', 'Search')`)
	w.wait("a warning", func() bool { return tab.warned("not sent, beforeSend is async: Search") })
	tab.wantNothingStored()
	if n := strings.Count(fmt.Sprint(tab.lines()), "mtag:"); n != 1 || len(w.gate.seen()) > 0 {
		t.Errorf("console: %q; requests: %v; want one line and no request", tab.lines(), w.gate.seen())
	}
}

// What beforeSend does to an event that has waited for consent is the same.
func TestBeforeSendSeesWhatHasWaitedForConsent(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.initWith(`{ consent: false, beforeSend(event) {
		if (event.event == 'Throws') throw new Error('beforeSend is broken');
		event.seen = (event.seen || 0) + 1;
	} }`))
	tab := w.visit("/")
	tab.do(`mtag('event', 'Throws'); mtag('event', 'Early'); mtag('consent', true); mtag('consent', true)`)
	for _, e := range w.want("PageView", "Early") {
		if e.RawData["seen"] != 1.0 || e.RawData["muid"] != w.muidCookie().Value {
			t.Errorf("%s: %v, want it seen once, with a muid", e.EventName, e.RawData)
		}
	}
	w.wait("a warning", func() bool { return tab.warned("beforeSend is broken") })
}

func TestResetMakesAnotherVisitor(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(refuse(503))
	tab := w.attributed("/?utm_source=letter&gclid=g1")
	tab.do(`
		mtag('identify', { email: 'ann@example.com' });
		mtag('set', { plan: 'gold' });
		mtag('event', 'Logout');
		mtag('reset');
		mtag('event', 'Search');
		mtag('identify', { email: 'bob@example.com' });
	`)
	w.gate.setFault(nil)
	tab.wantNothingStored()
	byName := map[string]event{}
	for _, e := range w.want("PageView", "Logout", "Search") {
		byName[e.EventName] = e
	}
	before, logout, after := byName["PageView"], byName["Logout"], byName["Search"]
	if logout.MUID != before.MUID || after.MUID == before.MUID || after.MUID != w.muidCookie().Value {
		t.Errorf("muids %s, %s, and %s after the reset", before.MUID, logout.MUID, after.MUID)
	}
	for _, field := range []string{"utm_source", "gclid", "first_utm_source", "first_gclid"} {
		if logout.RawData[field] == nil || after.RawData[field] != nil {
			t.Errorf("%s is %v, and %v after the reset", field, logout.RawData[field], after.RawData[field])
		}
	}
	if logout.RawData["plan"] != "gold" || after.RawData["plan"] != nil {
		t.Errorf("a field of mtag('set') is %v, and %v after the reset", logout.RawData["plan"], after.RawData["plan"])
	}
	if after.RawData["session_id"] == logout.RawData["session_id"] {
		t.Error("the session goes on after the reset")
	}
	for email, muid := range map[string]string{"ann@example.com": before.MUID, "bob@example.com": after.MUID} {
		// An identify is not stored, so it may still be on its way.
		w.wait("the identify", func() bool { return w.backend(`{"email":"`+email+`","event":"Refund"}`) == 201 })
		w.wait("the backend's event", func() bool {
			events := w.events()
			return events[len(events)-1].MUID == muid
		})
	}
}

// The other tabs of the site do not bring back what a reset has removed, nor take it for a withdrawal.
func TestAResetReachesAllTabs(t *testing.T) {
	w := newWorld(t)
	first, second := w.attributed("/?utm_source=letter&gclid=g1"), w.visit("/")
	before := w.want("PageView", "PageView")[0].MUID
	second.do(`mtag('set', { plan: 'gold' })`)
	first.doHeard(`mtag('reset')`, second)
	second.do(`Date.now = ((now) => () => now() + 5000)(Date.now); mtag('event', 'Search')`)
	second.wantNothingStored()
	for _, e := range w.want("PageView", "PageView", "Search") {
		if e.EventName == "Search" && (e.MUID == before || e.MUID != w.muidCookie().Value || attributed(e) != "" || e.RawData["plan"] != nil) {
			t.Errorf("after the reset in another tab: muid %s (before: %s), %s, plan %v", e.MUID, before, attributed(e), e.RawData["plan"])
		}
	}
}

func TestTheMUIDIsToldWithConsent(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(false)+`<script>
		mtag('muid', (muid) => { window.told = muid; throw new Error('callback is broken') });
	</script>`)
	tab := w.visit("/")
	if told := tab.get(`window.told`); told != "undefined" {
		t.Errorf("told %q without consent", told)
	}
	tab.wantNoTrace()
	tab.do(`mtag('consent', true)`)
	if told := tab.get(`told`); told != w.muidCookie().Value {
		t.Errorf("told %q, want the cookie's muid", told)
	}
	w.wait("a warning", func() bool { return tab.warned("callback is broken") })
	w.want("PageView")
}

func TestACallbackWhenAnEventIsRecorded(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(refuse(503))
	tab := w.visit("/")
	tab.do(`
		window.told = [];
		mtag('event', 'Purchase', { value: 1 }, () => { told.push('Purchase'); throw new Error('callback is broken') });
		mtag('event', { type: 'Search' }, () => told.push('Search'));
		mtag('event', 'bad name', {}, () => told.push('bad name'));
	`)
	w.wait("a try", func() bool { return len(w.gate.seen()) > 0 && w.gate.seen()[0].status == 503 })
	if told := tab.get(`told`); told != "" {
		t.Errorf("told %s before the events are recorded", told)
	}
	w.gate.setFault(nil)
	tab.wantNothingStored()
	if told := tab.get(`told.sort()`); told != "Purchase,Search" {
		t.Errorf("told %s, want Purchase,Search", told)
	}
	w.want("PageView", "Purchase", "Search")
	w.wait("a warning", func() bool { return tab.warned("callback is broken") })
}

func TestDebugPrintsTheWayOfAnEvent(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.initWith(`{ consent: true, debug: true }`))
	tab := w.visit("/")
	w.want("PageView")
	tab.wantNothingStored()
	for _, word := range []string{"queued", "recorded"} {
		w.wait(word, func() bool {
			for _, line := range tab.lines() {
				if strings.HasPrefix(line, "log: mtag: "+word) {
					return true
				}
			}
			return false
		})
	}
	w.page("/quiet", w.snippet(true))
	quiet := w.visit("/quiet")
	w.want("PageView", "PageView")
	quiet.wantNothingStored()
	if lines := quiet.lines(); len(lines) > 0 {
		t.Errorf("without debug: %v", lines)
	}
}

// A page may clear localStorage when somebody logs out. The other tabs take that for no withdrawal.
func TestAResetOfAPageThatClearsLocalStorage(t *testing.T) {
	w := newWorld(t)
	first, second := w.visit("/"), w.visit("/")
	w.want("PageView", "PageView")
	second.wantNothingStored()
	first.doHeard(`mtag('reset'); localStorage.clear()`, second)
	second.do(`mtag('event', 'Search')`)
	w.want("PageView", "PageView", "Search")
}

// Without consent, what waits has no muid yet. After a reset it must not become the next visitor's.
func TestResetDropsWhatWaitsForConsent(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(false))
	tab := w.visit("/")
	tab.do(`mtag('event', 'OfAnn'); mtag('reset'); mtag('event', 'OfBob'); mtag('consent', true)`)
	w.want("OfBob")
}
