package sdk_test

import (
	"fmt"
	"strings"
	"testing"

	"mtagd/edge/sdk"
)

// visitWith opens a page of the shop whose tag has extras: the value of ?with=.
func (w *world) visitWith(extras, body string) *tab {
	w.Helper()
	w.page("/", w.snippetWith(extras)+"</head><body>"+body)
	return w.visit("/")
}

// snippetWith returns the installation snippet with extras.
func (w *world) snippetWith(extras string) string {
	return strings.Replace(w.snippet(true), `/script"`, `/script?with=`+extras+`"`, 1)
}

// one waits until the listing has an event besides the page view, and returns the fields of it that are named, as
// "name=value" lines in this order. A field that the event lacks is left out.
func (w *world) one(event string, fields ...string) string {
	w.Helper()
	for _, e := range w.want("PageView", event) {
		if e.EventName == event {
			return e.show(fields...)
		}
	}
	return ""
}

// show returns the fields that are named, as "name=value" lines. A field that the event lacks is left out.
func (e event) show(fields ...string) string {
	var lines strings.Builder
	for _, name := range fields {
		if value, ok := e.RawData[name]; ok {
			fmt.Fprintf(&lines, "%s=%v\n", name, value)
		}
	}
	return lines.String()
}

var linkFields = []string{"link_url", "link_domain", "link_id", "link_classes", "outbound", "link_text", "file_name", "file_extension"}

func TestTheSizeOfEachExtra(t *testing.T) {
	limits := map[string]int{"downloads": 700, "forms": 700, "ga4": 1000, "outbound": 600, "scroll": 400}
	for _, extra := range sdk.Extras() {
		t.Run(extra.Name, func(t *testing.T) {
			if size := compressedSize(t, extra.Script); size > limits[extra.Name] {
				t.Errorf("%d bytes compressed, more than %d", size, limits[extra.Name])
			}
		})
	}
}

func TestWithoutExtrasThereAreNoAutomaticEvents(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.do(`
		document.body.innerHTML = '<a href="https://www.other.test/a.pdf">Away</a><form><input></form>';
		addEventListener('click', (event) => event.preventDefault());
		document.querySelector('a').click();
		document.querySelector('input').dispatchEvent(new InputEvent('input', { bubbles: true }));
		mtag('event', 'End');
	`)
	w.want("PageView", "End")
}

func TestAClickOnALinkToAnotherSite(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("outbound", `<a id="away" class="big blue" href="https://www.other.test/shoes?size=42#red"><b>Away</b></a>`)
	tab.do(`
		addEventListener('click', (event) => event.preventDefault());
		document.querySelector('b').click();
	`)
	want := "link_url=https://www.other.test/shoes?size=42#red\nlink_domain=www.other.test\nlink_id=away\nlink_classes=big blue\noutbound=true\n"
	if got := w.one("Click", linkFields...); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// Each case is a page and what happens in it. The page leaves no page by itself.
func TestWhichClicksAreOutbound(t *testing.T) {
	for _, tt := range []struct {
		name, body, script string
		want               string // the link's domain; empty: no event
	}{
		{"a host of the same site", `<a href="http://pay.shop.localhost/">x</a>`, `link().click()`, ""},
		{"the site without www", `<a href="http://shop.localhost/">x</a>`, `link().click()`, ""},
		{"another page of the host", `<a href="/cart">x</a>`, `link().click()`, ""},
		{"a host that only ends alike", `<a href="http://myshop.localhost/">x</a>`, `link().click()`, "myshop.localhost"},
		{"a new tab", `<a target="_blank" href="http://www.other.test/">x</a>`, `link().click()`, "www.other.test"},
		{"an image map", `<map><area href="http://www.other.test/"></map>`, `document.querySelector('area').click()`, "www.other.test"},
		{"an SVG link", `<svg><a href="http://www.other.test/"><text>x</text></a></svg>`, `click(document.querySelector('text'))`, "www.other.test"},
		{"an SVG link in the old syntax", `<svg><a xlink:href="http://www.other.test/"><text>x</text></a></svg>`,
			`click(document.querySelector('text'))`, "www.other.test"},
		{"a link in a shadow root", `<div></div>`, `
			const root = document.querySelector('div').attachShadow({ mode: 'open' });
			root.innerHTML = '<a href="http://www.other.test/"><b>x</b></a>';
			click(root.querySelector('b'));`, "www.other.test"},
		{"the middle button", `<a href="http://www.other.test/">x</a>`, `click(link(), 'auxclick', 1)`, "www.other.test"},
		{"the right button", `<a href="http://www.other.test/">x</a>`, `click(link(), 'auxclick', 2)`, ""},
		{"a page that stops the event", `<a href="http://www.other.test/">x</a>`, `
			link().addEventListener('click', (event) => event.stopImmediatePropagation());
			link().click();`, "www.other.test"},
		{"a mail address", `<a href="mailto:ann@other.test">x</a>`, `link().click()`, ""},
		{"an invalid address", `<a href="http://">x</a>`, `link().click()`, ""},
		{"no address", `<a>x</a>`, `link().click()`, ""},
		{"no link", `<p>x</p>`, `click(document.querySelector('p'))`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			tab := w.visitWith("outbound", tt.body)
			w.want("PageView")
			tab.do(`
				for (const type of ['click', 'auxclick']) addEventListener(type, (event) => event.preventDefault(), true);
				const link = () => document.querySelector('a');
				const click = (node, type = 'click', button = 0) =>
					node.dispatchEvent(new MouseEvent(type, { bubbles: true, composed: true, cancelable: true, button }));
				%s
				mtag('event', 'End');
			`, tt.script)
			if tt.want == "" {
				w.want("PageView", "End")
				return
			}
			for _, e := range w.want("PageView", "Click", "End") {
				if e.EventName == "Click" && e.RawData["link_domain"] != tt.want {
					t.Errorf("link_domain is %v, want %s", e.RawData["link_domain"], tt.want)
				}
			}
		})
	}
}

// The link is followed: the event must survive the end of its page.
func TestAClickThatLeavesThePageIsRecorded(t *testing.T) {
	w := newWorld(t)
	w.page("/away", "")
	tab := w.visitWith("outbound", fmt.Sprintf(`<a href="%s/away">x</a>`, w.gate.url(otherHost)))
	w.want("PageView")
	tab.do(`document.querySelector('a').click()`)
	w.want("PageView", "Click")
}

func TestAPageThatLoadsTheScriptTwiceSendsEachEventOnce(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("outbound,scroll", `<a href="http://www.other.test/">x</a>`)
	w.want("PageView")
	tab.do(`
		addEventListener('click', (event) => event.preventDefault());
		const again = document.createElement('script');
		again.src = '%s?with=scroll,outbound';
		again.onload = () => (document.querySelector('a').click(), mtag('event', 'End'));
		document.head.append(again);
	`, w.loader())
	w.want("PageView", "Click", "End")
}

func TestAnUnknownExtraIsReportedAndTheOthersWork(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("outbond,downloads", `<a href="/price-list.PDF"> Our
		prices </a>`)
	tab.do(`
		addEventListener('click', (event) => event.preventDefault());
		document.querySelector('a').click();
	`)
	w.want("PageView", "FileDownload")
	if !tab.warned("with= names something unknown; it takes downloads, forms, ") || !tab.warned("?with=outbond,downloads") {
		t.Errorf("no warning: %v", tab.lines())
	}
}

func TestExtrasSendNothingWithoutConsent(t *testing.T) {
	w := newWorld(t)
	w.page("/", strings.Replace(w.snippetWith("outbound"), "consent: true", "consent: false", 1)+
		`</head><body><a href="http://www.other.test/">x</a>`)
	tab := w.visit("/")
	tab.do(`
		addEventListener('click', (event) => event.preventDefault());
		document.querySelector('a').click();
	`)
	tab.wantNothingStored()
	if seen := w.gate.seen(); len(seen) > 0 {
		t.Errorf("sent without consent: %v", seen)
	}
	tab.do(`mtag('consent', true)`)
	w.want("PageView", "Click")
}
