package sdk_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestCallsBeforeAndAfterTheLoaderRunInOrder(t *testing.T) {
	w := newWorld(t)
	w.page("/", "<script>"+w.initCall(true)+`
		mtag('event', 'AsArguments', { n: 1 });
		mtrem.push(['event', 'AsArray', { n: 2 }]);
		mtrem.push(['event', 'OneOf'], ['event', 'Two']);
	</script><script async src=`+w.loader()+`></script>`)
	tab := w.visit("/")
	w.want("PageView", "AsArguments", "AsArray", "OneOf", "Two")
	tab.do(`mtag('event', 'LaterAsArguments'); mtrem.push(['event', 'LaterAsArray'])`)
	w.want("PageView", "AsArguments", "AsArray", "OneOf", "Two", "LaterAsArguments", "LaterAsArray")
	var order []string
	for _, r := range w.gate.seen() {
		for _, e := range r.events() {
			order = append(order, e["event"].(string))
		}
	}
	if got, want := strings.Join(order, " "), "PageView AsArguments AsArray OneOf Two LaterAsArguments LaterAsArray"; got != want {
		t.Errorf("sent: %s\nwant: %s", got, want)
	}
}

// The requests need no preflight.
func TestAnEventHasItsFieldsAndThoseOfThePage(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.do(`
		mtag('set', { plan: 'gold' });
		const products = [{ id: 'p1', name: 'Schöne Schuhe 👟' }];
		mtag('event', { type: 'Purchase', value: 89, currency: 'EUR', products });
		products.push('changed after the call');
		mtag('event', 'Search', { search_term: 'shoes', plan: 'silver' });
	`)
	for _, e := range w.want("PageView", "Purchase", "Search") {
		raw := e.RawData
		for _, field := range []string{"event_id", "event_time", "pageUrl", "pageTitle", "language", "screen", "timezone"} {
			if text, ok := raw[field].(string); !ok || text == "" {
				t.Errorf("%s: %s is %v", e.EventName, field, raw[field])
			}
		}
		if raw["pageUrl"] != w.gate.url(shopHost)+"/" || raw["pageTitle"] != "Shop /" || raw["muid"] != e.MUID || raw["referrer"] != "" {
			t.Errorf("%s: %v", e.EventName, raw)
		}
		switch e.EventName {
		case "Purchase":
			if fmt.Sprint(raw["products"]) != "[map[id:p1 name:Schöne Schuhe 👟]]" || raw["value"] != 89.0 || raw["plan"] != "gold" {
				t.Errorf("Purchase: %v", raw)
			}
		case "Search":
			if raw["plan"] != "silver" {
				t.Errorf("a field of mtag('set') has replaced the event's own: %v", raw)
			}
		}
	}
	for _, r := range w.gate.seen() {
		if r.method != "POST" || r.header.Get("Content-Type") != "text/plain;charset=UTF-8" {
			t.Errorf("%v with %v, want a POST of text/plain", r, r.header)
		}
	}
}

// Whatever event_id a page sets, even a number or null, the event is recorded, and only once when it is sent again.
func TestAnEventIDThatThePageSets(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(cutAnswer)
	tab := w.visit("/")
	tab.do(`
		mtag('set', { event_id: 'of many events' });
		for (const [name, event_id] of [['Number', 4711], ['Text', 'order-1'], ['Absent', undefined], ['Null', null], ['Empty', '']])
			mtag('event', name, { event_id });
	`)
	w.wait("a second try", func() bool { return len(w.gate.seen()) > 2 })
	w.gate.setFault(nil)
	tab.wantNothingStored()
	wanted := map[string]string{"Number": "4711", "Text": "order-1"}
	for _, e := range w.want("PageView", "Number", "Text", "Absent", "Null", "Empty") {
		id, _ := e.RawData["event_id"].(string)
		if want := wanted[e.EventName]; id != want && !(want == "" && madeID.MatchString(id)) {
			t.Errorf("%s has event_id %v, want %q, or a made one when that is empty", e.EventName, e.RawData["event_id"], want)
		}
	}
}

func TestOneTagPerPage(t *testing.T) {
	w := newWorld(t)
	_, other := w.service.newTag(t)
	tab := w.visit("/")
	w.want("PageView")
	tab.do(`
		mtag('init', '%s?tagId=%s', { consent: false });
		const again = document.createElement('script');
		again.src = '%s?again';
		again.onload = () => mtag('event', 'AfterTheSecondLoader');
		document.head.append(again);
	`, w.gate.url(tagHost), other, w.loader())
	w.want("PageView", "AfterTheSecondLoader")
	if !tab.warned("wrong: " + w.gate.url(tagHost) + "?tagId=" + other) {
		t.Errorf("no warning: %v", tab.lines())
	}
	for _, r := range w.gate.seen() {
		if r.path != "/mark/"+w.tag {
			t.Errorf("the second init has sent %v", r)
		}
	}
}

// The first snippet counts. The events of the page go to its tag, once, and the console names what is not used.
func TestTheSnippetInstalledTwice(t *testing.T) {
	w := newWorld(t)
	tab := w.tab()
	wanted := []string{}
	for i, tt := range []struct {
		name             string
		sameTag, consent bool
	}{{"the same", true, true}, {"another consent", true, false}, {"another tag", false, true}, {"another tag and consent", false, false}} {
		unused := w.tag
		if !tt.sameTag {
			_, unused = w.service.newTag(t)
		}
		path := fmt.Sprint("/twice", i)
		w.page(path, w.snippet(true)+strings.ReplaceAll(w.snippet(tt.consent), w.tag, unused))
		tab.goTo(w.gate.url(shopHost) + path)
		tab.do(`mtag('event', 'Search')`)
		wanted = append(wanted, "PageView", "Search")
		w.want(wanted...)
		tab.wantNothingStored()
		want := "wrong: " + w.gate.url(tagHost) + "?tagId=" + unused
		if lines := tab.lines(); strings.Count(fmt.Sprint(lines), "mtag:") != i+1 || !strings.Contains(lines[len(lines)-1], want) {
			t.Errorf("%s: console: %q, want one more line: %s", tt.name, lines, want)
		}
	}
	for _, r := range w.gate.seen() {
		if r.path != "/mark/"+w.tag {
			t.Errorf("a second snippet has sent %v", r)
		}
	}
}

func TestTheSnippetInsertedDynamically(t *testing.T) {
	w := newWorld(t)
	w.page("/", "")
	w.visit("/").do(`
		const add = (script) => document.head.append(Object.assign(document.createElement('script'), script));
		add({ text: %q });
		add({ src: %q, async: true });
	`, w.initCall(true), w.loader())
	w.want("PageView")
}

// A tag manager inserts custom HTML as text, and then creates its script elements again so that they run.
func TestTheSnippetAsATagManagersCustomHTML(t *testing.T) {
	w := newWorld(t)
	w.page("/", "")
	w.visit("/").do(`
		const box = document.createElement('div');
		box.innerHTML = %q;
		document.body.append(box);
		for (const dead of box.querySelectorAll('script')) {
			const live = document.createElement('script');
			for (const { name, value } of dead.attributes) live.setAttribute(name, value);
			live.text = dead.text;
			dead.replaceWith(live);
		}
	`, w.snippet(true))
	w.want("PageView")
}

func TestAStrictContentSecurityPolicy(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script nonce="n0">`+w.initCall(true)+`</script><script async src=`+w.loader()+`></script>`,
		"Content-Security-Policy", "default-src 'none'; require-trusted-types-for 'script'; "+
			"script-src 'nonce-n0' "+w.gate.url(tagHost)+"; connect-src "+w.gate.url(tagHost))
	tab := w.visit("/")
	w.want("PageView")
	tab.goTo("about:blank")
	for _, line := range tab.lines() {
		if strings.Contains(strings.ReplaceAll(line, "-", " "), "Content Security Policy") {
			t.Error(line)
		}
	}
}

// Trusted Types forbid the tag to load parts: what waited for consent is sent without older.
func TestTrustedTypesInABrowserWithoutTemporal(t *testing.T) {
	w := newWorld(t)
	w.page("/", "<script>delete window.Temporal</script>"+w.snippet(false), "Content-Security-Policy", "require-trusted-types-for 'script'")
	tab := w.visit("/")
	tab.do(`mtag('event', 'Early'); mtag('consent', true)`)
	w.want("PageView", "Early")
}

func TestALoaderThatLoadsLateMissesNothing(t *testing.T) {
	w := newWorld(t)
	w.page("/", "<script>"+w.initCall(true)+` mtag('event', 'Early')</script>`)
	tab := w.visit("/")
	tab.do(`
		mtag('event', 'WhileWaiting');
		document.head.append(Object.assign(document.createElement('script'), { src: %q }));
	`, w.loader())
	w.want("PageView", "Early", "WhileWaiting")
}

func TestIdentifyLinksTheVisitorToBackendEvents(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.do(`mtag('event', 'Login'); mtag('identify', { email: 'Ann@Example.com' }); mtag('event', 'Search')`)
	seen := w.want("PageView", "Login", "Search")
	status := 0
	w.wait("the backend's event", func() bool {
		status = w.backend(`{"email":"ann@example.com","event":"Refund"}`)
		return status != http.StatusNotFound
	})
	if status != http.StatusCreated {
		t.Fatalf("the backend's event got %d, want 201", status)
	}
	for _, e := range w.want("PageView", "Login", "Search", "Refund") {
		if e.MUID != seen[0].MUID {
			t.Errorf("%s is of %s, want %s", e.EventName, e.MUID, seen[0].MUID)
		}
	}
}

// A wrong call is reported in the console and does not affect other calls.
func TestMistakesAreReported(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	for _, tt := range []struct{ call, warning string }{
		{`mtag('evnet', 'X')`, "is not a function"},
		{`mtag('consent', 'true')`, "wrong: true"},
		{`mtag('consent', true)`, ""},
		{`mtag('event', 'Big', { n: 1n })`, "BigInt"},
		{`mtag('event', 'NoJSON', { toJSON() {} })`, "undefined"},
		{`mtag('event', 'not pascal case')`, "event must be a PascalCase name"},
		{`mtag('event')`, "event is required"},
		{`mtrem.push(null)`, ""},
	} {
		tab.do("%s", tt.call)
		w.wait("a warning about "+tt.call, func() bool { return tab.warned(tt.warning) })
	}
	tab.do(`mtag('event', 'Good')`)
	w.want("PageView", "Good")
}

// Nothing is sent to the page's own host by mistake.
func TestAnInitURLThatIsWrongIsReported(t *testing.T) {
	w := newWorld(t)
	w.page("/", "<script async src="+w.loader()+"></script>")
	tab := w.visit("/")
	for _, url := range []string{
		"tags.shop.localhost?tagId=x", "localhost:8080?tagId=x", "/t?tagId=x", "//tags.shop.localhost?tagId=x", "?tagId=x",
		"https://?tagId=x", w.gate.url(tagHost), w.gate.url(tagHost) + "?tagId=", w.gate.url(tagHost) + "?notagId=x", "undefined",
	} {
		tab.do(`mtrem.push(['init', %q, { consent: true }], ['event', 'Early'])`, url)
		w.wait("a warning", func() bool { return tab.warned("wrong: " + url) })
	}
	tab.do(`mtrem.push(['event', 'Last'])`)
	tab.wantNoTrace()
	if w.wasAsked("/mark/x") || w.wasAsked("/t/mark/x") {
		t.Error("the tag has sent events to the page's host")
	}
	tab.do("%s", w.initCall(true))
	w.want(append(repeat(10, "Early"), "Last", "PageView")...)
}
