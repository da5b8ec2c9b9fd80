package sdk_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// attributed returns the fields of an event that say where its visitor came from, as "name=value name=value", without
// the session.
func attributed(e event) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(e.RawData)) {
		if regexp.MustCompile(`^(first_|utm_|fb)|clk?id$|braid$`).MatchString(name) {
			all = append(all, fmt.Sprintf("%s=%v", name, e.RawData[name]))
		}
	}
	return strings.Join(all, " ")
}

// attributed opens a page of the shop with the part attribution.
func (w *world) attributed(path string) *tab {
	w.Helper()
	w.page("/", w.snippetWith("attribution"))
	return w.visit(path)
}

// last returns the newest of the merchant's events, of which there are n.
func (w *world) last(n int) event {
	w.Helper()
	var events []event
	w.wait("the events", func() bool {
		events = w.events()
		return len(events) == n
	})
	return events[n-1]
}

func TestTheCampaignStaysWithTheVisitor(t *testing.T) {
	w := newWorld(t)
	// Chromium sends no Referer when the test navigates.
	tab := w.attributed("/?q=shoes&utm_source=letter&utm_medium=email&utm_campaign=sch%C3%B6ne+Schuhe&utm_term=&gclid=g1")
	const letter = "first_gclid=g1 first_utm_campaign=schöne Schuhe first_utm_medium=email first_utm_source=letter"
	const lastLetter = " utm_campaign=schöne Schuhe utm_medium=email utm_source=letter"
	if got := attributed(w.last(1)); got != letter+" gclid=g1"+lastLetter {
		t.Errorf("the landing page: %s", got)
	}
	tab.goTo(w.gate.url("checkout.shop.localhost") + "/")
	if got := attributed(w.last(2)); got != letter+" gclid=g1"+lastLetter {
		t.Errorf("the next page, on another host: %s", got)
	}
	tab.goTo(w.gate.url(shopHost) + "/?utm_source=partner&msclkid=m1&wbraid=w1")
	if got := attributed(w.last(3)); got != letter+" gclid=g1 msclkid=m1 utm_source=partner wbraid=w1" {
		t.Errorf("another campaign: %s", got)
	}
	tab.goTo(w.gate.url(shopHost) + "/?gclid=g2&ttclid=t1&gbraid=b1")
	if got := attributed(w.last(4)); got != letter+" gbraid=b1 gclid=g2 msclkid=m1 ttclid=t1 wbraid=w1" {
		t.Errorf("a click without utm fields: %s", got)
	}
}

func TestTheReferrerOfTheFirstPage(t *testing.T) {
	w := newWorld(t)
	w.page("/search", "", "Referrer-Policy", "unsafe-url")
	w.page("/next", w.snippetWith("attribution"))
	w.page("/", w.snippetWith("attribution"))
	tab := w.tab()
	from := w.gate.url(otherHost) + "/search"
	tab.goTo(from)
	tab.do(`location.href = '%s/'`, w.gate.url(shopHost))
	tab.waitFor("/")
	w.want("PageView")
	tab.do(`location.href = '/next'`)
	tab.waitFor("/next")
	for _, e := range w.want("PageView", "PageView") {
		if e.RawData["first_referrer"] != from {
			t.Errorf("%v: first_referrer is %v, want %s", e.RawData["pageUrl"], e.RawData["first_referrer"], from)
		}
	}
}

// Meta's server API wants fb.1.<time in ms>.<fbclid>. Where Meta's pixel has set its own cookies, they count.
func TestMetasClickAndBrowser(t *testing.T) {
	w := newWorld(t)
	before := time.Now().UnixMilli()
	tab := w.attributed("/?fbclid=IwAR0_x-1")
	e := w.last(1)
	var at int64
	var click string
	if fbc, _ := e.RawData["fbc"].(string); !regexp.MustCompile(`^fb\.1\.\d{13}\.IwAR0_x-1$`).MatchString(fbc) {
		t.Fatalf("fbc is %q", fbc)
	} else if _, err := fmt.Sscanf(fbc, "fb.1.%d.%s", &at, &click); err != nil || at < before || at > time.Now().UnixMilli() {
		t.Errorf("fbc is %q, not of the time of the click (%v)", fbc, err)
	}
	if e.RawData["fbclid"] != nil || e.RawData["fbp"] != nil {
		t.Errorf("fbclid %v, fbp %v", e.RawData["fbclid"], e.RawData["fbp"])
	}
	tab.goTo(w.gate.url(shopHost) + "/")
	if again := w.last(2).RawData["fbc"]; again != e.RawData["fbc"] {
		t.Errorf("fbc is %v on the next page, want %v", again, e.RawData["fbc"])
	}
	pixel := fmt.Sprintf("fb.1.%d.IwAR0_x-1", at+1500)
	tab.do(`document.cookie = '_fbp=fb.1.1700000000000.42;path=/'; document.cookie = '_fbc=%s;path=/'`, pixel)
	tab.goTo(w.gate.url(shopHost) + "/")
	if raw := w.last(3).RawData; raw["fbp"] != "fb.1.1700000000000.42" || raw["fbc"] != pixel {
		t.Errorf("fbp %v, fbc %v", raw["fbp"], raw["fbc"])
	}
}

func TestASessionEndsAfter30MinutesWithoutAnEvent(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		const now = Date.now;
		let ahead = 0; // minutes
		Date.now = () => now() + ahead * 60000;
	</script>`+w.snippetWith("attribution"))
	tab := w.visit("/")
	tab.do(`ahead = 29; mtag('event', 'SameSession')`)
	tab.do(`ahead = 58; mtag('event', 'SameSession')`)
	tab.do(`ahead = 89; mtag('event', 'NextSession')`)
	w.want("PageView", "SameSession", "SameSession", "NextSession")
	tab.do(`mtag('event', 'NextSession')`)
	byName := map[string]map[any]bool{}
	for _, e := range w.want("PageView", "SameSession", "SameSession", "NextSession", "NextSession") {
		name := strings.Replace(e.EventName, "PageView", "SameSession", 1)
		if byName[name] == nil {
			byName[name] = map[any]bool{}
		}
		byName[name][e.RawData["session_id"]] = true
		if id, _ := e.RawData["session_id"].(string); !regexp.MustCompile(`^\d{13}$`).MatchString(id) {
			t.Errorf("session_id is %v", e.RawData["session_id"])
		}
	}
	if len(byName["SameSession"]) != 1 || len(byName["NextSession"]) != 1 || fmt.Sprint(byName["SameSession"]) == fmt.Sprint(byName["NextSession"]) {
		t.Errorf("sessions: %v", byName)
	}
}

// The landing page asks for consent. What its URL said goes with the events that have waited, even when the page has
// changed its URL meanwhile. A withdrawal removes it from the device.
func TestAttributionNeedsConsent(t *testing.T) {
	w := newWorld(t)
	w.page("/", noteStorage+w.deny(w.snippetWith("attribution")))
	noted := w.visit("/?utm_source=letter&gclid=g1")
	noted.wantNoTrace()
	noted.close()
	w.page("/", w.deny(w.snippetWith("attribution")))
	tab := w.visit("/?utm_source=letter&gclid=g1")
	tab.do(`history.replaceState({}, '', '/clean')`)
	tab.wantNoTrace()
	tab.do(`mtag('consent', true)`)
	const want = "first_gclid=g1 first_utm_source=letter gclid=g1 utm_source=letter"
	for _, e := range w.want("PageView", "PageView") {
		if got := attributed(e); got != want {
			t.Errorf("%v: %s", e.RawData["pageUrl"], got)
		}
	}
	w.cookie("_mtag.visit")
	tab.wantNothingStored()
	tab.do(`mtag('consent', false)`)
	tab.wantNoTrace()
}

// A link with endless parameters must not make the shop's server refuse the visitor's next requests. A value that is too
// long counts as a touch all the same: what it replaces is over.
func TestTheCookieOfTheVisitIsBounded(t *testing.T) {
	w := newWorld(t)
	tab := w.attributed("/?utm_source=letter&utm_medium=email&gclid=g1&msclkid=m1")
	w.want("PageView")
	tab.goTo(w.gate.url(shopHost) + "/?utm_source=partner&gclid=" + strings.Repeat("x", 3500))
	const first = "first_gclid=g1 first_msclkid=m1 first_utm_medium=email first_utm_source=letter"
	if got := attributed(w.last(2)); got != first+" msclkid=m1 utm_source=partner" {
		t.Errorf("a long click id: %s", got)
	}
	many := ""
	for i := range 20 {
		many += fmt.Sprintf("&utm_x%d=%s", i, strings.Repeat("y", 120))
	}
	tab.goTo(w.gate.url(shopHost) + "/?utm_source=last" + many)
	if got := attributed(w.last(3)); !strings.Contains(got, "utm_source=last") {
		t.Errorf("many parameters: %s", got)
	}
	if c := w.cookie("_mtag.visit"); len(c.Value) > 3000 || !strings.Contains(c.Value, "utm_source=last") {
		t.Errorf("the cookie has %d bytes", len(c.Value))
	}
}

// Newsletters put addresses into their links. They are in the address of the page, but never in the cookie.
func TestAnEmailInACampaignIsNotStored(t *testing.T) {
	w := newWorld(t)
	w.page("/from", `<meta name="referrer" content="unsafe-url">`)
	w.page("/", w.snippetWith("attribution"))
	tab := w.tab()
	tab.goTo(w.gate.url(otherHost) + "/from?user=bob@example.com")
	tab.do(`location.href = '%s/?utm_source=letter&utm_medium=email&utm_content=ann%%40example.com&utm_phone=4312345'`, w.gate.url(shopHost))
	tab.waitFor("/")
	if got := attributed(w.want("PageView")[0]); !strings.Contains(got, "utm_medium=email utm_source=letter") {
		t.Errorf("the campaign: %s", got)
	}
	tab.wantNothingStored()
	if value := w.cookie("_mtag.visit").Value; !strings.Contains(value, "utm_medium=email") || strings.Contains(value, "example.com") || strings.Contains(value, "4312345") {
		t.Errorf("the cookie: %s", value)
	}
}

// What is repeated counts once, the first, as in GA4. The site itself is no first touch. The click ids of all platforms
// are known.
func TestWhatIsATouch(t *testing.T) {
	w := newWorld(t)
	w.page("/cart", "", "Referrer-Policy", "unsafe-url")
	tab := w.tab()
	tab.goTo(w.gate.url("blog.shop.localhost") + "/cart")
	w.page("/", w.snippetWith("attribution"))
	tab.do(`location.href = '%s/?utm_source=first&utm_source=second&UTM_MEDIUM=x&ScCid=1&li_fat_id=2&epik=3&rdt_cid=4&irclickid=5&gad_source=6&twclid=7&plan=8'`, w.gate.url(shopHost))
	tab.waitFor("/")
	raw := w.want("PageView")[0].RawData
	if raw["first_referrer"] != nil || raw["referrer"] != w.gate.url("blog.shop.localhost")+"/cart" {
		t.Errorf("first_referrer %v, referrer %v", raw["first_referrer"], raw["referrer"])
	}
	for name, want := range map[string]any{"utm_source": "first", "first_utm_source": "first", "ScCid": "1", "li_fat_id": "2", "epik": "3",
		"rdt_cid": "4", "irclickid": "5", "gad_source": "6", "twclid": "7", "plan": nil, "UTM_MEDIUM": nil} {
		if raw[name] != want {
			t.Errorf("%s is %v, want %v", name, raw[name], want)
		}
	}
}

// A page without cookies keeps its own attribution and session.
func TestAttributionWithoutCookies(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippetWith("attribution"), "Content-Security-Policy", "sandbox allow-scripts")
	tab := w.attributed("/?utm_source=letter")
	w.want("PageView")
	tab.do(`Date.now = ((now) => () => now() + 5000)(Date.now); mtag('event', 'Later')`)
	events := w.want("PageView", "Later")
	for _, e := range events {
		if e.RawData["utm_source"] != "letter" || e.RawData["session_id"] != events[0].RawData["session_id"] {
			t.Errorf("%s: %v", e.EventName, e.RawData)
		}
	}
}
