package sdk_test

import (
	"encoding/json"
	"fmt"
	"slices"
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

// one waits until the listing has an event besides the page view, and returns its automatic fields as JSON.
func (w *world) one(name string) string {
	w.Helper()
	for _, e := range w.want("PageView", name) {
		if e.EventName == name {
			return e.fields(automaticFields)
		}
	}
	return ""
}

// fields returns those of an event's fields that are named, as JSON.
func (e event) fields(names string) string {
	found := map[string]any{}
	for name := range strings.FieldsSeq(names) {
		if value, ok := e.RawData[name]; ok {
			found[name] = value
		}
	}
	text, err := json.Marshal(found)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// automaticFields are the fields of all automatic events.
const automaticFields = "link_url link_domain link_id link_classes link_text outbound file_name file_extension " +
	"form_id form_name form_destination form_submit_text percent_scrolled"

func TestTheSizeOfEachExtra(t *testing.T) {
	limits := map[string]int{"attribution": 930, "backlog": 900, "downloads": 700, "forms": 700, "ga4": 1620, "link": 1250, "names": 1080, "older": 450, "options": 1910, "outbound": 600, "scroll": 400}
	for _, extra := range sdk.Versions()[0].Extras {
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
	const want = `{"link_classes":"big blue","link_domain":"www.other.test","link_id":"away",` +
		`"link_url":"https://www.other.test/shoes?size=42#red","outbound":true}`
	if got := w.one("Click"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Each case is the body of the page and what happens in it.
func TestWhichClicksAreOutbound(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("outbound", "")
	tab.do(`
		for (const type of ['click', 'auxclick']) addEventListener(type, (event) => event.preventDefault(), true);
		window.link = () => document.querySelector('a');
		window.click = (node, type = 'click', button = 0) =>
			node.dispatchEvent(new MouseEvent(type, { bubbles: true, composed: true, cancelable: true, button }));
	`)
	wanted, domains := []string{"PageView", "End"}, map[string]string{}
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
		tab.do("document.body.innerHTML = %q; mtag('set', { test: %q }); %s", tt.body, tt.name, tt.script)
		if tt.want != "" {
			wanted, domains[tt.name] = append(wanted, "Click"), tt.want
		}
	}
	tab.do(`mtag('event', 'End')`)
	for _, e := range w.want(wanted...) {
		name, _ := e.RawData["test"].(string)
		if e.EventName == "Click" && (domains[name] == "" || e.RawData["link_domain"] != domains[name]) {
			t.Errorf("%s: link_domain is %v, want %q", name, e.RawData["link_domain"], domains[name])
		}
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
	tab := w.visitWith("outbond,downloads", `<a href="/a.pdf">x</a>`)
	tab.do(`
		addEventListener('click', (event) => event.preventDefault());
		document.querySelector('a').click();
	`)
	w.want("PageView", "FileDownload")
	if !tab.warned("with= names something unknown; it takes attribution, backlog, downloads, forms, ga4, link, ") || !tab.warned("?with=outbond,downloads") {
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

func TestADownload(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("downloads", `<a id="prices" href="/files/Price%20list.PDF?v=2"> Our
		<b>prices</b> </a>`)
	tab.do(`
		addEventListener('click', (event) => event.preventDefault());
		document.querySelector('b').click();
	`)
	want := fmt.Sprintf(`{"file_extension":"pdf","file_name":"/files/Price%%20list.PDF","link_domain":"www.shop.localhost",`+
		`"link_id":"prices","link_text":"Our prices","link_url":"%s/files/Price%%20list.PDF?v=2"}`, w.gate.url(shopHost))
	if got := w.one("FileDownload"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The list is GA4's.
func TestWhichFilesAreDownloads(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("downloads,outbound", `<a>x</a>`)
	tab.do(`
		addEventListener('click', (event) => event.preventDefault());
		const click = (href) => (document.querySelector('a').setAttribute('href', href), document.querySelector('a').click());
		for (const name of ['a.xls', 'a.xlsx', 'a.pptx', 'a.pps', 'a.mpg', 'a.mid', 'a.gz', 'http://www.other.test/a.zip']) click(name);
		for (const name of ['a.html', 'apdf', 'a.pdf.html', 'a?file=a.pdf', 'a#a.pdf', 'mailto:a.pdf', 'data:,a.pdf']) click(name);
		mtag('event', 'End');
	`)
	var files []string
	for _, e := range w.want(append(repeat(8, "FileDownload"), "PageView", "Click", "End")...) {
		if extension, ok := e.RawData["file_extension"].(string); ok {
			files = append(files, extension)
		}
	}
	slices.Sort(files)
	if got, want := strings.Join(files, " "), "gz mid mpg pps pptx xls xlsx zip"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAForm(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("forms", `
		<form id="signup" name="newsletter" action="/subscribe">
			<input name="email" type="email"> <input name="id" value="secret"> <input name="action" value="secret">
			<select name="plan"><option>gold <option>secret</select> <textarea name="notes"></textarea>
			<button name="how" value="secret"> Sign
				me up </button>
		</form>`)
	tab.do(`
		addEventListener('submit', (event) => event.preventDefault());
		for (const field of document.querySelectorAll('input, textarea, select')) {
			field.focus();
			field.value = 'secret';
			field.dispatchEvent(new InputEvent('input', { bubbles: true, composed: true, data: 'secret' }));
		}
		document.querySelector('[type=email]').value = 'ann@secret.test';
		document.querySelector('button').click();
	`)
	form := fmt.Sprintf(`"form_destination":"%s/subscribe","form_id":"signup","form_name":"newsletter"`, w.gate.url(shopHost))
	want := map[string]string{"PageView": "{}", "FormStart": "{" + form + "}", "FormSubmit": "{" + form + `,"form_submit_text":"Sign me up"}`}
	for _, e := range w.want("PageView", "FormStart", "FormSubmit") {
		if got := e.fields(automaticFields); got != want[e.EventName] {
			t.Errorf("%s has %s\nwant %s", e.EventName, got, want[e.EventName])
		}
	}
	for _, r := range w.gate.seen() {
		if strings.Contains(r.body, "secret") {
			t.Errorf("the value of a field was sent: %s", r.body)
		}
	}
}

func TestFormsOfAllKinds(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("forms", "")
	tab.do("addEventListener('submit', (event) => event.preventDefault(), true)")
	wanted, fields := []string{"PageView"}, map[any]string{}
	for _, tt := range []struct{ name, body, script, want string }{
		{"a submit button that is an input, for another address",
			`<form action="/a"><input type="submit" value="Buy now" formaction="/b"></form>`,
			`document.querySelector('input').click()`, `{"form_destination":"%s/b","form_submit_text":"Buy now"}`},
		{"no address, and submitted by a script", `<form name="f"></form>`,
			`document.querySelector('form').requestSubmit()`, `{"form_destination":"%s/","form_name":"f"}`},
		{"a page that stops the event", `<form action="/a"><button></button></form>`, `
			document.querySelector('form').addEventListener('submit', (event) => event.stopImmediatePropagation(), true);
			document.querySelector('button').click();`, `{"form_destination":"%s/a"}`},
		{"an address that is not valid", `<form action="http://"><button>Go</button></form>`,
			`document.querySelector('button').click()`, `{"form_submit_text":"Go"}`},
	} {
		tab.do("document.body.innerHTML = %q; mtag('set', { test: %q }); %s", tt.body, tt.name, tt.script)
		wanted, fields[tt.name] = append(wanted, "FormSubmit"), strings.ReplaceAll(tt.want, "%s", w.gate.url(shopHost))
	}
	for _, e := range w.want(wanted...) {
		if got, want := e.fields(automaticFields), fields[e.RawData["test"]]; e.EventName == "FormSubmit" && got != want {
			t.Errorf("%s: got  %s\nwant %s", e.RawData["test"], got, want)
		}
	}
}

func TestAFormInAShadowRootAndFieldsOutsideOfForms(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("forms", `<input id="alone"><input id="linked" form="f"><form id="f"></form><div></div>`)
	tab.do(`
		addEventListener('submit', (event) => event.preventDefault(), true);
		const root = document.querySelector('div').attachShadow({ mode: 'open' });
		root.innerHTML = '<form id="inside"><input><button>Go</button></form>';
		const type = (field) => field.dispatchEvent(new InputEvent('input', { bubbles: true, composed: true }));
		type(document.querySelector('#alone'));
		type(document.querySelector('#linked'));
		type(root.querySelector('input'));
		type(root.querySelector('input'));
		root.querySelector('form').addEventListener('submit', (event) => event.preventDefault());
		root.querySelector('button').click();
		mtag('event', 'End');
	`)
	got := ""
	for _, e := range w.want("PageView", "FormStart", "FormStart", "FormSubmit", "End") {
		if id, ok := e.RawData["form_id"]; ok {
			got += fmt.Sprintf("%s %s\n", e.EventName, id)
		}
	}
	for _, want := range []string{"FormStart f\n", "FormStart inside\n", "FormSubmit inside\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("got:\n%sbut not %s", got, want)
		}
	}
}

// The page is ten windows high, so 90 % of it are visible from the eighth window on.
const highPage = `<style>body { margin: 0; height: 1000vh }</style>`

func (t *tab) scrollTo(windows float64) {
	t.Helper()
	t.get(fmt.Sprintf(`new Promise((done) => {
		addEventListener('scroll', () => setTimeout(done, 300), { once: true });
		scrollTo(0, innerHeight * %v);
	})`, windows))
}

func TestScrollIsSentOncePerPageView(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("scroll", highPage)
	tab.scrollTo(7.5)
	tab.do(`mtag('event', 'Above')`)
	tab.scrollTo(8.5)
	tab.scrollTo(9)
	tab.scrollTo(1)
	tab.scrollTo(9)
	for _, e := range w.want("PageView", "Above", "Scroll") {
		if e.EventName == "Scroll" && e.fields(automaticFields) != `{"percent_scrolled":90}` {
			t.Errorf("Scroll has %s", e.fields(automaticFields))
		}
	}
	order := ""
	for _, r := range w.gate.seen() {
		for _, e := range r.events() {
			order += e["event"].(string) + " "
		}
	}
	if order != "PageView Above Scroll " {
		t.Errorf("sent: %s", order)
	}

	tab.do(`history.pushState({}, '', '/next')`)
	tab.scrollTo(1)
	tab.do(`mtag('event', 'AboveAgain')`)
	tab.scrollTo(9)
	for _, e := range w.want("PageView", "PageView", "Above", "AboveAgain", "Scroll", "Scroll") {
		if e.EventName == "Scroll" {
			order += e.RawData["pageUrl"].(string) + " "
		}
	}
	if at := w.gate.url(shopHost); !strings.Contains(order, at+"/ ") || !strings.Contains(order, at+"/next ") {
		t.Errorf("pages: %s", order)
	}
}

// A single-page application changes the address, then replaces the page, which is short at first, and then goes to its top.
func TestANavigationAtTheEndOfAPageIsNoScroll(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("scroll", highPage)
	tab.scrollTo(9)
	w.want("PageView", "Scroll")
	tab.get(`new Promise((done) => {
		scrollBy(0, -10);
		requestAnimationFrame(() => {
			history.pushState({}, '', '/next');
			document.body.style.height = '150vh';
			setTimeout(() => {
				document.body.style.height = '';
				scrollTo(0, 0);
				setTimeout(done, 500);
			}, 50);
		});
	})`)
	tab.do(`mtag('event', 'End')`)
	w.want("PageView", "PageView", "Scroll", "End")
}

func TestANavigationJustAfterScrollingIsNoScrollOfTheNextPage(t *testing.T) {
	w := newWorld(t)
	tab := w.visitWith("scroll", highPage)
	tab.get(`new Promise((done) => {
		addEventListener('scroll', () => {
			history.pushState({}, '', '/next');
			setTimeout(done, 500);
		}, { once: true });
		scrollTo(0, innerHeight * 9);
	})`)
	tab.do(`mtag('event', 'End')`)
	w.want("PageView", "PageView", "End")
}

func TestScrollAfterAReturnFromTheBackForwardCache(t *testing.T) {
	w := newWorld(t)
	w.page("/next", "")
	tab := w.visitWith("scroll", highPage)
	tab.scrollTo(9)
	w.want("PageView", "Scroll")
	tab.do(`window.kept = true`)
	tab.goTo(w.gate.url(shopHost) + "/next")
	tab.do(`history.back()`)
	tab.waitFor("/")
	w.want("PageView", "PageView", "Scroll")
	if kept := tab.get(`window.kept`); kept != "true" {
		t.Error("the page did not come from the cache, so this has tested nothing")
	}
	tab.scrollTo(1)
	tab.scrollTo(9)
	w.want("PageView", "PageView", "Scroll", "Scroll")
}
