package sdk_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// The calls of Consent Mode that published templates and scripts of consent platforms make, in their order: load(earlier) on
// each page, with what the visitor has chosen on an earlier one, and say(analytics, ads) when the visitor chooses. Those with a
// template were read from its code.
var platforms = []struct{ name, calls string }{
	{"Cookiebot's template", `
		function load(earlier) {
			gtag('set', { url_passthrough: false, 'developer_id.dMWZhNz': true });
			gtag('consent', 'default', all('granted', 'granted', { region: ['US'], wait_for_update: 2000 }));
			gtag('consent', 'default', all('denied', 'denied', { region: ['DK', 'NL'], wait_for_update: 2000 }));
			gtag('consent', 'default', all('denied', 'denied'));
			if (earlier) gtag('consent', 'update', all(...earlier));
			gtag('set', { ads_data_redaction: !earlier || earlier[1] != 'granted' });
			if (earlier) setTimeout(say, 100, ...earlier); // the platform's own script
		}
		function say(analytics, ads) {
			gtag('set', 'ads_data_redaction', ads != 'granted');
			gtag('consent', 'update', all(analytics, ads));
		}`},
	{"CookieFirst's template", `
		function load(earlier) {
			gtag('set', { 'developer_id.dNjAwYj': true, url_passthrough: true, ads_data_redaction: true });
			gtag('consent', 'default', all('granted', 'denied', { region: ['US-CA', 'US-NY'], wait_for_update: 500 }));
			gtag('consent', 'default', all('denied', 'denied', { wait_for_update: 500 }));
			if (earlier) say(...earlier);
		}
		function say(analytics, ads) { gtag('consent', 'update', all(analytics, ads)) }`},
	{"Crownpeak's template, which has a default for some regions only", `
		const named = (analytics, ads) => ({ ad_storage: ads, analytics_storage: analytics, ad_user_data: ads, ad_personalization: ads });
		function load(earlier) {
			gtag('set', { ads_data_redaction: true, developer_id: 'dOGRkZj' });
			gtag('set', { url_passthrough: true });
			gtag('consent', 'default', Object.assign(named('denied', 'denied'), { region: ['DE', 'AT', 'GB'], wait_for_update: 500 }));
			if (earlier) setTimeout(say, 100, ...earlier); // its notice calls on each page
		}
		function say(analytics, ads) { gtag('consent', 'update', named(analytics, ads)) }`},
	{"PubConsent's template, whose updates come from a queue of its script", `
		function load(earlier) {
			gtag('set', { 'developer_id.dYWU3OD': true, ads_data_redaction: false, url_passthrough: false });
			gtag('consent', 'default', { region: ['IT', 'FR'], security_storage: 'granted', ad_storage: 'denied', ad_user_data: 'denied',
				ad_personalization: 'denied', analytics_storage: 'denied', wait_for_update: 500 });
			gtag('consent', 'default', all('denied', 'denied', { security_storage: 'denied', wait_for_update: 500 }));
			if (earlier) addEventListener('load', () => setTimeout(say, 50, ...earlier));
		}
		function say(analytics, ads) { gtag('consent', 'update', all(analytics, ads, { security_storage: 'denied' })) }`},
	{"Complianz's script, without the names of version 2", `
		const named = (analytics, ads) => ({ security_storage: 'granted', functionality_storage: 'granted', personalization_storage: 'denied',
			analytics_storage: analytics, ad_storage: ads });
		function load(earlier) {
			gtag('consent', 'default', named('denied', 'denied'));
			if (earlier) addEventListener('load', () => setTimeout(say, 100, ...earlier));
		}
		function say(analytics, ads) { gtag('consent', 'update', named(analytics, ads)) }`},
	{"a category at a time, ads first", `
		function load(earlier) {
			gtag('consent', 'default', { ad_storage: 'denied', analytics_storage: 'denied' });
			if (earlier) say(...earlier);
		}
		function say(analytics, ads) {
			gtag('consent', 'update', { ad_storage: ads });
			gtag('consent', 'update', { analytics_storage: analytics });
		}`},
	{"an update of other categories, then the choice", `
		function load(earlier) {
			gtag('consent', 'default', { ad_storage: 'denied', analytics_storage: 'denied', region: ['AT', 'DE'], wait_for_update: 500 });
			gtag('consent', 'default', { ad_storage: 'granted', analytics_storage: 'granted' });
			gtag('consent', 'update', { functionality_storage: 'granted', security_storage: 'granted' });
			if (earlier) say(...earlier);
		}
		function say(analytics, ads) { gtag('consent', 'update', all(analytics, ads)) }`},
	{"a service at a time, and again", `
		function load(earlier) {
			gtag('consent', 'default', all('denied', 'denied', { wait_for_update: 500 }));
			if (earlier) say(...earlier);
		}
		function say(analytics, ads) {
			gtag('consent', 'update', { ad_storage: ads, ad_user_data: ads, ad_personalization: ads });
			gtag('consent', 'update', { analytics_storage: analytics });
			gtag('consent', 'update', { ad_user_data: ads });
		}`},
}

const platformPage = `<script>
	const all = (analytics, ads, more) => Object.assign({ ad_storage: ads, ad_user_data: ads, ad_personalization: ads, analytics_storage: analytics,
		functionality_storage: 'denied', personalization_storage: 'denied', security_storage: 'granted' }, more);
	%s
	load(location.hash && location.hash.slice(1).split('+'));
</script>`

// With each platform: before the choice there is no trace. A visitor who agrees, and then to analytics alone, stays the same
// from page to page, and so does an open tab of the shop. After a denial there is no trace again, in no tab.
func TestTheOrdersOfConsentPlatforms(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(false))
	open, page := w.visit("/"), w.tab()
	for i, tt := range platforms {
		if i == 1 && browserOf(t) == inFirefox {
			break // the others differ in the calls alone
		}
		path := fmt.Sprint("/platform", i)
		parts := []string{w.initWith(`{ consentMode: true }`), fmt.Sprintf(platformPage, tt.calls)}
		w.page(path, gtag+parts[i%2]+parts[1-i%2]) // the tag may come before the platform
		sent, loads := 0, 0
		for _, step := range []struct{ earlier, say, event string }{
			{"", "", ""},
			{"", "'granted', 'granted'", "Granted"},
			{"granted+granted", "", "Granted"},
			{"granted+granted", "'granted', 'denied'", "Denied"},
			{"granted+denied", "", "Denied"},
		} {
			if step.say == "" {
				loads++ // another hash alone would load nothing
				page.goTo(fmt.Sprintf("%s%s?%d#%s", w.gate.url(shopHost), path, loads, step.earlier))
				sent++
			}
			page.do(`mtag('event', 'Before')`)
			if step.event == "" {
				page.wantNoTrace()
				open.wantNoTrace()
				sent++
				continue
			}
			page.do(`if ([%[1]s][0]) say(%[1]s); mtag('event', '%[2]s')`, step.say, step.event)
			sent += 2
			w.wait(fmt.Sprintf("%d events of %s", sent, tt.name), func() bool { return len(w.at(path, true)) == sent })
			page.wantNothingStored() // or it would send the events once more when it is left, perhaps after the denial
		}
		visitors, sessions := map[string]bool{}, map[any]bool{}
		open.do(`mtag('event', 'Open%d')`, i)
		w.wait("the event of the open tab", func() bool {
			for _, e := range w.at("/", false) {
				if e.EventName == fmt.Sprint("Open", i) {
					visitors[e.MUID] = true
				}
			}
			return len(visitors) > 0
		})
		open.wantNothingStored()
		for _, e := range w.at(path, true) {
			visitors[e.MUID] = true
			sessions[e.RawData["session_id"]] = true
			if got := fmt.Sprint(consentOf(e)["ad_storage"]); strings.HasSuffix(e.EventName, "ed") && got != strings.ToLower(e.EventName) {
				t.Errorf("%s: %s has ad_storage %s", tt.name, e.EventName, got)
			}
		}
		if len(visitors) != 1 || len(sessions) != 1 {
			t.Errorf("%s: visitors %v, sessions %v, want one of each", tt.name, visitors, sessions)
		}
		requests := len(w.gate.seen())
		page.doHeard(`say('denied', 'denied')`, open)
		for _, denied := range []*tab{page, open} {
			denied.do(`mtag('event', 'After')`)
			denied.wantNoTrace()
		}
		if got := len(w.gate.seen()); got != requests {
			t.Errorf("%s: %d requests after a denial", tt.name, got-requests)
		}
	}
}

// A call of one category says nothing about the others, in no order.
func TestACategoryAloneWithdrawsNothing(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.initWith(`{ consent: true }`))
	tab := w.visit("/")
	muid := w.want("PageView")[0].MUID
	tab.do(`mtag('consent', { ad_storage: 'denied' }); mtag('event', 'A')`)
	tab.do(`mtag('consent', { ad_user_data: 'denied' }); mtag('event', 'B')`)
	tab.do(`mtag('consent', { ad_storage: 'granted' }); mtag('event', 'C')`)
	for _, e := range w.want("PageView", "A", "B", "C") {
		if e.MUID != muid {
			t.Errorf("%s is of another visitor", e.EventName)
		}
	}
	tab.wantNothingStored()
	tab.do(`mtag('consent', { analytics_storage: 'denied' })`)
	tab.wantNoTrace()
	tab.do(`mtag('consent', { ad_storage: 'granted' }); mtag('event', 'D')`)
	tab.wantNoTrace()
}

// Who agrees again in one tab is heard in the others, with the categories.
func TestOtherTabsHearOfAGrant(t *testing.T) {
	w := newWorld(t)
	first, second := w.visit("/"), w.visit("/")
	w.want("PageView", "PageView")
	first.wantNothingStored()
	first.doHeard(`mtag('consent', false)`, second)
	second.wantNoTrace()
	second.do(`mtag('event', 'Waits')`)
	first.doHeard(`mtag('consent', { analytics_storage: 'granted', ad_storage: 'denied' })`, second)
	for _, e := range w.want("PageView", "PageView", "Waits") {
		if e.EventName == "Waits" && consentOf(e)["ad_storage"] != "denied" {
			t.Errorf("consent %v", consentOf(e))
		}
	}
	second.wantNothingStored()
	second.doHeard(`mtag('consent', false)`, first)
	first.wantNoTrace()
}

// On a busy machine, a tab of Firefox hears of a grant before it sees the new cookie. It is of the same visitor.
func TestATabThatHearsOfAGrantBeforeItsCookie(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(false))
	w.page("/late", `<script>
		const jar = Object.getOwnPropertyDescriptor(Document.prototype, 'cookie');
		let seen = false; // until this page has written the cookie, it sees none
		Object.defineProperty(document, 'cookie', {
			get: () => jar.get.call(document).replace(/_muid=[^;]*/, seen ? '$&' : ''),
			set(text) { if (text.startsWith('_muid=')) seen = true; jar.set.call(document, text) },
		});
	</script>`+w.snippet(false))
	first, late := w.visit("/"), w.visit("/late")
	first.doHeard(`mtag('consent', true)`, late)
	muids := map[string]bool{w.muidCookie().Value: true}
	for _, e := range w.want("PageView", "PageView") {
		muids[e.MUID] = true
	}
	if len(muids) != 1 {
		t.Errorf("visitors %v, want one", muids)
	}
}

// A tab that hears of a grant finds the cookie, also when nothing has waited. It hears of none that a waiting event has withdrawn.
func TestOtherTabsHearOfAGrantWhenTheCookieIsThere(t *testing.T) {
	w := newWorld(t)
	w.page("/other", `<script>
		window.said = [];
		addEventListener('storage', ({ newValue }) => newValue && said.push(newValue + document.cookie));
	</script>`)
	w.page("/", w.initWith(`{ consent: false, pageviews: false, beforeSend: (event) => event.event != 'Stop' || mtag('consent', false) }`))
	other, tab := w.visit("/other"), w.visit("/")
	tab.do(`mtag('event', 'Stop')`)
	tab.doHeard(`mtag('consent', true)`, other)
	if got := other.get(`said`); strings.Contains(got, "granted") {
		t.Errorf("a grant that was withdrawn: %s", got)
	}
	tab.wantNoTrace()
	tab.goTo(w.gate.url(shopHost) + "/")
	tab.doHeard(`mtag('consent', true)`, other)
	if got := other.get(`said`); !strings.Contains(got, "_muid=") {
		t.Errorf("heard %s, without the cookie", got)
	}
}

// Each case is what the page tells of the visitor's region, its defaults, and whether the tag may work at once.
func TestDefaultsForRegions(t *testing.T) {
	w := newWorld(t)
	tab := w.tab()
	const eu = `gtag('consent', 'default', { analytics_storage: 'denied', region: ['AT', 'DE'] });`
	const all = `gtag('consent', 'default', { analytics_storage: 'granted' });`
	for i, tt := range []struct {
		region, calls string
		granted       bool
	}{
		{`'AT'`, eu + all, false},
		{`'AT'`, all + eu, false},
		{`'AT-9'`, eu + all, false},
		{`'US'`, eu + all, true},
		{`'ATX'`, eu + all, true},
		{`undefined`, eu + all, false},
		{`undefined`, all + eu, false},
		{`undefined`, all, true},
		{`'US-CA'`, `gtag('consent', 'default', { analytics_storage: 'granted', region: ['US'] });
			gtag('consent', 'default', { analytics_storage: 'denied', region: ['US-CA'] });`, false},
		{`'us-ny'`, `gtag('consent', 'default', { analytics_storage: 'granted', region: ['US'] });
			gtag('consent', 'default', { analytics_storage: 'denied', region: ['US-CA'] });`, true},
		{`'AT'`, eu + all + `gtag('consent', 'update', { analytics_storage: 'granted' });`, true},
		{`'AT'`, `gtag('consent', 'default', { analytics_storage: 'granted', wait_for_update: 60000 });`, false},
		{`'AT'`, `gtag('consent', 'default', { analytics_storage: 'granted', wait_for_update: 50 });`, true},
	} {
		path := fmt.Sprint("/region", i)
		w.page(path, gtag+"<script>"+tt.calls+"</script>"+w.initWith(`{ consentMode: true, region: `+tt.region+` }`))
		tab.goTo(w.gate.url(shopHost) + path)
		got := tab.get(`new Promise((resolve) => { mtag('muid', () => resolve(true)); setTimeout(resolve, 300, false) })`)
		if got != fmt.Sprint(tt.granted) {
			t.Errorf("case %d: region %s, %s: granted %s", i, tt.region, tt.calls, got)
		}
		if tt.granted {
			w.wait("the page view", func() bool { return len(w.at(path, true)) == 1 })
		}
	}
	tab.wantNothingStored()
}

// The base script gets the part that it needs by itself.
func TestAPartThatThePageHasNotAskedFor(t *testing.T) {
	w := newWorld(t)
	w.page("/", strings.Replace(w.snippet(true), "{ consent: true }", "{ consent: { analytics_storage: 'granted', ad_storage: 'denied' }, debug: true }", 1))
	tab := w.visit("/?gclid=g1&x=1")
	tab.do(`mtag('event', 'Search')`)
	for _, e := range w.want("PageView", "Search") {
		if consentOf(e)["ad_storage"] != "denied" || e.RawData["pageUrl"] != w.gate.url(shopHost)+"/?x=1" {
			t.Errorf("%s: %v", e.EventName, e.RawData)
		}
	}
	for i, options := range []string{`{ consentMode: true }`, `{ consent: true, debug: true }`, `{ consent: true, beforeSend(event) { event.edited = true } }`} {
		path := fmt.Sprint("/options", i)
		w.page(path, gtag+`<script>gtag('consent', 'default', { analytics_storage: 'granted' })</script>`+
			strings.Replace(w.snippet(true), "{ consent: true }", options, 1))
		tab.goTo(w.gate.url(shopHost) + path)
		w.wait("the page view with "+options, func() bool { return len(w.at(path, true)) == 1 })
		if raw := w.at(path, true)[0].RawData; strings.Contains(options, "beforeSend") && raw["edited"] != true {
			t.Errorf("%s: %v", options, raw)
		}
	}
}

// A part that did not come is asked for again when it is needed again.
func TestAPartThatComesLate(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		window.asked = 0;
		document.documentElement.append = function (script) {
			if (asked++) Element.prototype.append.call(this, script);
			else script.onerror();
		};
	</script>`+w.snippet(true))
	w.gate.setFault(refuse(503))
	tab := w.visit("/")
	tab.do(`mtag('event', 'Login', { email: 'ann@example.com' })`)
	w.wait("the stored copy", func() bool { return strings.Contains(tab.get(`JSON.stringify(localStorage)`), "Login") })
	if tab.get(`asked`) == "1" {
		t.Error("the part came at once, so this has tested nothing")
	}
	if kept := tab.get(`JSON.stringify(localStorage)`); strings.Contains(kept, "ann") {
		t.Errorf("stored: %s", kept)
	}
}

// A device that has slept for hours asks again for a part after five minutes, not after hours.
func TestAPartThatNeverComesAndADeviceThatSleeps(t *testing.T) {
	w := newWorld(t)
	w.page("/", noParts+`<script>{
		const now = performance.now.bind(performance), set = setTimeout;
		window.longest = 0;
		performance.now = () => now() + (window.asleep || 0);
		setTimeout = (call, ms) => {
			longest = Math.max(longest, ms);
			set(call, ms && 10);
		};
	}</script>`+strings.Replace(w.snippet(true), "{ consent: true }", "{ consent: true, debug: true }", 1))
	tab := w.visit("/")
	tab.do(`asleep = 36e6`)
	w.wait("the longest delay", func() bool { return tab.get(`longest > 2e5`) == "true" })
	if got := tab.get(`longest`); got != "301000" {
		t.Errorf("the longest delay is %s ms, want 301000", got)
	}
}

// partTimers makes the tag wait for a part for 350 ms instead of 7 seconds, or without an end. window.partTimers says how many
// timers of this wait run: 0 when it has ended.
func partTimers(endless bool) string {
	return fmt.Sprintf(`<script>{
		const now = performance.now.bind(performance), set = setTimeout;
		let at = 0; // the time does not change during a task, or the first timer could be below its second
		performance.now = () => %v ? 1 : (at ||= (queueMicrotask(() => (at = 0)), now() * 20));
		setTimeout = (call, ms) => {
			const part = ms >= 1e3 && ms < 1e4;
			if (part) window.partTimers = (window.partTimers ?? 0) + 1;
			set(() => { call(); if (part) window.partTimers-- }, part ? ms / 20 : ms);
		};
	}</script>`, endless)
}

// What makes the parts of a page never come, or fail.
const (
	noParts     = `<script>document.documentElement.append = () => {}</script>`
	failedParts = `<script>document.documentElement.append = (script) => {
		script.src = '/missing.js';
		Element.prototype.append.call(document.documentElement, script);
	}</script>`
)

// A withdrawal does not wait for a part that does not come.
func TestAWithdrawalWithoutTheParts(t *testing.T) {
	w := newWorld(t)
	w.page("/", noParts+w.snippet(true))
	w.page("/options", noParts+strings.Replace(w.snippet(true), "{ consent: true }", "{ consent: true, debug: true }", 1))
	other, page, plain := w.tab(), w.tab(), w.tab() // in all cases
	for i, tt := range []struct{ path, calls, withdrawal string }{
		{"/", "mtag('event', 'view_item', {})", "mtag('consent', false)"},
		{"/options", "", "mtag('consent', { analytics_storage: 'denied' })"},
		{"/", "mtag('consent', { ad_storage: 'denied' })", "mtag('consent', false)"},
		{"/", "", "mtag('consent', { analytics_storage: 'denied' })"},
		{"/", "mtag('event', 'view_item', {})", "mtag('consent', { analytics_storage: 'denied', ad_storage: 'granted' })"},
		{"/", "mtag('consent', { ad_storage: 'denied' })", "mtag('consent', { analytics_storage: 'denied' })"},
	} {
		if i == 2 && browserOf(t) == inFirefox {
			break // the others differ in the calls alone
		}
		w.gate.setFault(nil)
		before := len(w.gate.seen())
		other.goTo(w.gate.url(shopHost))
		w.wait("the page view", func() bool { return len(w.gate.seen()) == before+1 })
		w.gate.setFault(refuse(503))
		page.goTo(w.gate.url(shopHost) + tt.path)
		page.do(`mtag('event', 'Waiting'); %s; %s; mtag('event', 'After')`, tt.calls, tt.withdrawal)
		page.wantNoTrace()
		other.wantNoTrace()
		sent := len(w.gate.seen())
		for _, left := range []*tab{page, other} {
			left.do(`dispatchEvent(new Event('online')); mtag('event', 'After')`)
			left.goTo("about:blank")
		}
		plain.goTo(w.gate.url(shopHost) + "/plain") // what the tabs have sent is there by now
		if now := len(w.gate.seen()); now != sent {
			t.Errorf("%s; %s: %d requests after it", tt.calls, tt.withdrawal, now-sent)
		}
	}
}

// Parts that come do not shorten how long others are waited for.
func TestAPartThatIsSlow(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		for (const name of ['navigation', 'NavigateEvent', 'Temporal']) Object.defineProperty(window, name, { value: undefined });
		document.documentElement.append = (script) => setTimeout(() => Element.prototype.append.call(document.documentElement, script), /options/.test(script.src) ? 3000 : 0);
	</script>`+w.snippet(true))
	tab := w.visit("/")
	muid := w.want("PageView")[0].MUID
	tab.wantNothingStored()
	sent := len(w.gate.seen())
	w.gate.setFault(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() })
	tab.do(`mtag('event', 'Aborted')`)
	w.wait("a request under way", func() bool { return len(w.gate.seen()) > sent })
	w.gate.setFault(nil)
	tab.do(`
		mtag('consent', { ad_storage: 'denied' });
		for (let i = 0; i < 3; i++) mtrem.push(['part', 'other' + i, () => {}]);
		mtag('event', 'After');
	`)
	for _, e := range w.want("Aborted", "After", "PageView") {
		if e.MUID != muid {
			t.Errorf("%s: the visitor was %s and is %s", e.EventName, muid, e.MUID)
		}
	}
}

// Click ids that wait are neither sent nor stored when ad_storage is denied, and no part removes them.
func TestAdStorageIsDeniedWithoutTheParts(t *testing.T) {
	w := newWorld(t)
	w.page("/", failedParts+w.snippet(true))
	tab := w.visit("/?gclid=SECRET")
	w.want("PageView")
	tab.wantNothingStored()
	w.gate.setFault(refuse(503))
	tab.do(`mtag('event', 'Waiting')`)
	w.wait("a refusal", func() bool { return w.gate.nowOpen() == 0 && len(w.gate.seen()) > 1 })
	tab.do(`mtag('consent', { ad_storage: 'denied' })`)
	sent := len(w.gate.seen())
	w.gate.setFault(nil)
	tab.do(`dispatchEvent(new Event('online')); mtag('event', 'After')`)
	w.wait("no trace", func() bool { return tab.get(`document.cookie + localStorage.length`) == "0" })
	tab.wantNoTrace()
	if now := len(w.gate.seen()); now != sent {
		t.Errorf("%d requests with click ids", now-sent)
	}
}

// A default that needs a part which does not come gives no consent, and withdraws none.
func TestADefaultWithoutTheParts(t *testing.T) {
	w := newWorld(t)
	muid := "a-visitor"
	w.page("/", partTimers(false)+failedParts+`<script>document.cookie = '_muid=`+muid+`;path=/;domain=shop.localhost'</script>`+
		strings.Replace(w.snippet(true), "{ consent: true }", "{ consent: { analytics_storage: 'granted', ad_storage: 'denied' } }", 1))
	tab := w.visit("/?gclid=SECRET")
	tab.do(`mtag('event', 'Early'); mtag('reset', 2); mtag('set', { given: true })`)
	w.wait("the end of the wait for the part", func() bool { return tab.get(`window.partTimers === 0`) == "true" })
	if got := tab.get(`document.cookie + localStorage.length`); got != "_muid="+muid+"0" || len(w.gate.seen()) > 0 {
		t.Errorf("on the device: %s; sent: %v; console: %v", got, w.gate.seen(), tab.lines())
	}
	tab.do(`mtag('consent', { ad_storage: 'granted' }); mtag('event', 'Late')`)
	for _, e := range w.want("PageView", "Early", "Late") {
		if e.MUID != muid {
			t.Errorf("%s is of %s", e.EventName, e.MUID)
		}
	}
}

// What is on the device and on the wire in each state of consent: nothing without analytics_storage, no click id without
// ad_storage.
func TestEachStateOfConsent(t *testing.T) {
	w := newWorld(t)
	tab := w.tab()
	const denied = `gtag('consent', 'default', { analytics_storage: 'denied', ad_storage: 'denied', wait_for_update: 60000 });`
	for i, tt := range []struct {
		name, options, calls string
		granted, ads         bool
		firefox              bool // it is tested there too
	}{
		{"no call yet", `{ consentMode: true }`, ``, false, false, false},
		{"waiting for an update", `{ consentMode: true }`, `gtag('consent', 'default', { analytics_storage: 'granted', ad_storage: 'granted', wait_for_update: 60000 });`, false, false, false},
		{"denied", `{ consentMode: true }`, denied, false, false, true},
		{"granted", `{ consentMode: true, debug: true }`, denied + `gtag('consent', 'update', { analytics_storage: 'granted', ad_storage: 'granted' });`, true, true, true},
		{"ad_storage denied", `{ consentMode: true, debug: true }`, denied + `gtag('consent', 'update', { analytics_storage: 'granted' });`, true, false, true},
		{"granted, then denied", `{ consent: true }`, `mtag('consent', { analytics_storage: 'denied', ad_storage: 'denied' });`, false, false, false},
		{"only ads granted", `{ consent: false, debug: true }`, `mtag('consent', { ad_storage: 'granted', ad_user_data: 'granted' });`, false, false, false},
		{"granted, then ads denied", `{ consent: true }`, `mtag('consent', { ad_storage: 'denied' });`, true, false, false},
		{"denied, then granted", `{ consent: false }`, `mtag('consent', { analytics_storage: 'granted', ad_storage: 'granted' });`, true, true, false},
		{"denied in an unknown word", `{ consent: true }`, `mtag('consent', { analytics_storage: 'no', ad_storage: 'no' });`, false, false, false},
	} {
		if !tt.firefox && browserOf(t) == inFirefox {
			continue // it differs in the calls alone
		}
		path := fmt.Sprint("/state", i)
		head := gtag + strings.Replace(w.snippetWith("attribution"), "{ consent: true }", tt.options, 1) + "<script>" + tt.calls + "</script>"
		w.page(path, head)
		before := len(w.gate.seen())
		w.gate.setFault(refuse(503))
		tab.goTo(w.gate.url(shopHost) + path + "?gclid=SECRET&utm_source=letter")
		tab.do(`mtag('event', 'Search', { gclid: 'SECRET', email: 'ann@example.com' }); history.pushState({}, '', '?fbclid=SECRET')`)
		device := ""
		look := func() string {
			device += tab.get(`document.cookie + JSON.stringify([localStorage, sessionStorage])`)
			return device
		}
		if tt.granted {
			w.wait("what is stored with "+tt.name, func() bool { return strings.Contains(look(), "Search") })
			w.gate.setFault(nil)
			tab.do(`dispatchEvent(new Event('online'))`)
			w.wait("the events with "+tt.name, func() bool { return len(w.at(path, false)) == 1 })
			tab.wantNothingStored()
		} else {
			tab.get(`new Promise((resolve) => setTimeout(resolve, 1000))`) // the part has come
			tab.wantNoTrace()
		}
		look()
		wire := ""
		for _, r := range w.gate.seen()[before:] {
			wire += fmt.Sprintln(r.path, r.query, r.header, r.body)
		}
		if (wire != "") != tt.granted || strings.Contains(wire, "SECRET") != tt.ads || strings.Contains(device, "SECRET") != tt.ads || strings.Contains(device, "ann@") {
			t.Errorf("%s: on the wire: %s\non the device: %s", tt.name, wire, device)
		}
		tab.do(`mtag('consent', false)`)
		tab.wantNoTrace()
	}
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	for _, r := range w.gate.requests {
		if all := fmt.Sprint(r.query, r.header["Referer"]); r.path == "/script" && (strings.Contains(all, "SECRET") || strings.Contains(all, w.tag)) {
			t.Errorf("a request for a part has %s", all)
		}
	}
}

// What the base script can do alone needs no part: categories of which none has to be left out.
func TestCategoriesWithoutTheParts(t *testing.T) {
	w := newWorld(t)
	w.page("/", noParts+strings.Replace(w.snippet(true), "{ consent: true }", "{ consent: { analytics_storage: 'denied', ad_storage: 'granted' } }", 1))
	tab := w.visit("/")
	tab.do(`mtag('event', 'Early')`)
	tab.wantNoTrace()
	tab.do(`mtag('consent', { analytics_storage: 'granted', ad_user_data: 'denied' }); mtag('event', 'Late')`)
	for _, e := range w.want("PageView", "Early", "Late") {
		if c := consentOf(e); fmt.Sprint(c) != "map[ad_storage:granted ad_user_data:denied analytics_storage:granted]" {
			t.Errorf("%s has consent %v", e.EventName, c)
		}
	}
}

// The calls after one that needs a part are made without the part, when it does not come in time and when the page closes.
// A part that fails is loaded again.
func TestCallsThatWaitForAPart(t *testing.T) {
	w := newWorld(t)
	w.page("/next", "")
	w.page("/never", noParts+w.snippet(true))
	w.page("/failed", partTimers(false)+failedParts+w.snippet(true))
	w.page("/late", partTimers(true)+`<script>
		window.tries = 0;
		document.documentElement.append = (script) => ++tries < 3 ? script.onerror() : Element.prototype.append.call(document.documentElement, script);
	</script>`+w.snippet(true))
	late, failed, left := w.visit("/late"), w.visit("/failed"), w.visit("/never")
	for _, tab := range []*tab{late, failed, left} {
		tab.do(`mtag('event', 'view_item', { value: 1 }); mtag('event', 'Zoom'); mtag('event', 'view_item')`)
	}
	left.goTo(w.gate.url(shopHost) + "/next")
	w.want("PageView", "PageView", "PageView", "Zoom", "Zoom", "Zoom", "ViewItem", "ViewItem")
	w.wait("a warning", func() bool { return failed.warned("not sent: view_item") })
	if got := late.get(`tries`); got != "3" {
		t.Errorf("%s tries, want 3", got)
	}
}

// Without ad_storage no click id is on the device or on the wire.
func TestClickIDsNeedAdStorage(t *testing.T) {
	w := newWorld(t)
	w.page("/", strings.Replace(w.snippetWith("attribution,options,outbound"), "{ consent: true }", "{ consent: { analytics_storage: 'granted', ad_storage: 'denied' } }", 1))
	w.page("/ad", "", "Referrer-Policy", "unsafe-url")
	w.gate.setFault(refuse(503))
	tab := w.tab()
	tab.goTo(w.gate.url(otherHost) + "/ad?gclid=SECRET&q=1")
	tab.do(`location.href = '%s/?fbclid=SECRET&utm_source=letter&gclid=SECRET&gbraid=SECRET&x=1&gad_source=SECRET&srsltid=SECRET&tblci=SECRET&dicbo=SECRET&cjevent=SECRET&awc=SECRET&tduid=SECRET' +
		'&s_kwcid=SECRET&ef_id=SECRET&mc_eid=SECRET&_kx=SECRET&_hsenc=SECRET&__hstc=SECRET&__s=SECRET&oly_enc_id=SECRET&vero_id=SECRET&mkt_tok=SECRET&unicorn_click_id=SECRET#top'`, w.gate.url(shopHost))
	tab.waitFor("/")
	tab.do(`
		addEventListener('click', (event) => event.preventDefault());
		history.pushState({}, '', '/next?wbraid=SECRET&y=1&ttclid=SECRET');
		mtag('event', 'Own', { gclid: 'SECRET', ScCid: 'SECRET', page: { link: 'https://a.example/?msclkid=SECRET' }, fbc: 'SECRET',
			nested: '/go?u=https%%3A%%2F%%2Fa.example%%2F%%3Fgclid%%3DSECRET%%26z%%3D1&li_fat_id=SECRET',
			twice: '/go?u=%%252F%%253Fgclid%%253DSECRET%%2526z%%253D1', first_gclid: 'SECRET' });
		document.body.innerHTML = '<a href="https://www.other.test/?epik=SECRET&v=1&rdt_cid=SECRET&irclickid=SECRET">x</a>';
		document.querySelector('a').click();
	`)
	w.wait("a second try", func() bool { return len(w.gate.seen()) > 1 })
	device := func() string { return tab.get(`JSON.stringify(localStorage) + document.cookie`) }
	stored := func(event string, secret bool) {
		t.Helper()
		w.wait("what is stored", func() bool {
			got := device()
			if strings.Contains(got, "SECRET") && !secret {
				t.Fatalf("on the device: %s", got)
			}
			return strings.Contains(got, event) && strings.Contains(got, "SECRET") == secret
		})
	}
	stored("Own", false)
	w.gate.setFault(nil)
	tab.do(`dispatchEvent(new Event('online'))`)
	events := map[string]event{}
	for _, e := range w.want("PageView", "PageView", "Own", "Click") {
		events[e.EventName+fmt.Sprint(e.RawData["pageUrl"])] = e
	}
	tab.wantNothingStored()
	shop := w.gate.url(shopHost)
	for _, tt := range []struct{ event, field, want string }{
		{"PageView" + shop + "/?utm_source=letter&x=1#top", "referrer", w.gate.url(otherHost) + "/ad?q=1"},
		{"PageView" + shop + "/?utm_source=letter&x=1#top", "utm_source", "letter"},
		{"PageView" + shop + "/next?y=1", "referrer", shop + "/?utm_source=letter&x=1#top"},
		{"Own" + shop + "/next?y=1", "nested", "/go?u=https%3A%2F%2Fa.example%2F%26z%3D1"},
		{"Own" + shop + "/next?y=1", "twice", "/go?u=%252F%2526z%253D1"},
		{"Click" + shop + "/next?y=1", "link_url", "https://www.other.test/?v=1"},
	} {
		if got := events[tt.event].RawData[tt.field]; got != tt.want {
			t.Errorf("%s: %s is %v, want %s", tt.event, tt.field, got, tt.want)
		}
	}
	for _, r := range w.gate.seen() {
		if strings.Contains(r.body+r.query, "SECRET") {
			t.Errorf("on the wire: %s", r.body)
		}
	}

	// What was stored with ad_storage loses its click ids when that is denied.
	tab.do(`mtag('consent', { ad_storage: 'granted' })`)
	w.gate.setFault(refuse(503))
	tab.do(`mtag('event', 'Later', { gclid: 'SECRET' })`)
	stored("Later", true)
	tab.do(`mtag('consent', { ad_storage: 'denied' })`)
	stored("Later", false)
	// What the tab has sent before may still be on its way through the browser. It is there before this answer is.
	tab.get(`fetch('` + w.loader() + `', { mode: 'no-cors', cache: 'no-store' }).then(() => '')`)
	before := len(w.gate.seen())
	w.gate.setFault(nil)
	tab.do(`dispatchEvent(new Event('online'))`)
	tab.wantNothingStored()
	for _, r := range w.gate.seen()[before:] {
		if strings.Contains(r.body, "SECRET") {
			t.Errorf("on the wire: %s", r.body)
		}
	}
}
