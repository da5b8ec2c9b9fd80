package sdk_test

import (
	"net/url"
	"strings"
	"testing"
)

// The visitor of a shop follows links and sends forms to another site of the merchant, and to others.
func TestTheVisitorIsCarriedToAnotherSite(t *testing.T) {
	w := newWorld(t)
	other := w.gate.url(otherHost)
	head := w.snippetWith("link") + `<script>mtag('link', ['other.test', 'shop.localhost'])</script>`
	w.page("/", head)
	w.page("/later", `<script>Date.now = ((now) => () => now() + 121e3)(Date.now)</script>`+head)
	w.page("/denied", w.deny(head))
	w.page("/elsewhere", `<script>Object.defineProperty(Navigator.prototype, 'language', { value: 'tlh' })</script>`+head)
	tab := w.visit("/")
	shop := w.want("PageView")[0].MUID
	tab.wantNothingStored()
	views := 1
	last := func() event {
		views++
		return w.last(views)
	}
	leave := func(html, act string) (e event, at string) {
		tab.do(`document.body.innerHTML = %q; document.querySelector('%s').click()`, html, act)
		e = last()
		tab.waitFor("/")
		return e, tab.get(`location.href`)
	}

	e, at := leave(`<a href="`+other+`/?x=1#y">x</a>`, "a")
	if at != other+"/?x=1#y" {
		t.Errorf("the other site is at %s", at)
	}
	if e.MUID != shop || e.RawData["pageUrl"] != other+"/?x=1#y" || strings.Contains(e.RawData["referrer"].(string), "_mtag") {
		t.Errorf("a link: %s (%s), %v", e.MUID, shop, e.RawData)
	}
	tab.goTo(other + "/")
	if e := last(); e.MUID != shop {
		t.Errorf("the next page: %s, want %s", e.MUID, shop)
	}
	for _, method := range []string{"get", "post"} {
		tab.do(`mtag('consent', false)`) // the other site forgets
		tab.goTo(w.gate.url(shopHost) + "/")
		if e := last(); e.MUID != shop {
			t.Fatalf("the shop has another visitor")
		}
		e, at := leave(`<form method="`+method+`" action="`+other+`/"><input name="q" value="1"><button>x</button></form>`, "button")
		if e.MUID != shop || strings.Contains(at, "_mtag") || method == "get" && at != other+"/?q=1" {
			t.Errorf("a form with %s: %s, want %s; %s", method, e.MUID, shop, at)
		}
	}

	// The method is the button's, or the form's, which may have a field of that name. Other parameters stay as they are.
	for i, tt := range []struct{ html, act, want string }{
		{`<form action="` + other + `/"><input name="method" value="card"><button>x</button></form>`, "button", "/?method=card"},
		{`<form action="` + other + `/?a=b%20c"><button formmethod="post">x</button></form>`, "button", "/?a=b%20c"},
		{`<form method="post" action="` + other + `/"><input name="q"><button formmethod="GET">x</button></form>`, "button", "/?q="},
		{`<a href="` + other + `/?a=b%20c&sig=x~y%2Fz&flag#h">x</a>`, "a", "/?a=b%20c&sig=x~y%2Fz&flag#h"},
	} {
		tab.do(`mtag('consent', false)`)
		tab.goTo(w.gate.url(shopHost) + "/")
		last()
		if e, at := leave(tt.html, tt.act); e.MUID != shop || at != other+tt.want {
			t.Errorf("case %d: %s, want %s; %s", i, e.MUID, shop, at)
		}
	}

	if browserOf(t) == inFirefox {
		return // only the tag's own code decides the rest
	}

	// What carries nobody.
	tab.goTo(w.gate.url(shopHost) + "/")
	last()
	tab.do(`
		addEventListener('click', (event) => event.preventDefault());
		window.click = (href) => {
			document.body.innerHTML = '<a>x</a>';
			document.querySelector('a').href = href;
			document.querySelector('a').click();
			return document.querySelector('a').href;
		};
	`)
	token := func(href string) string {
		address, err := url.Parse(tab.get(`click('` + href + `')`))
		if err != nil {
			t.Fatal(err)
		}
		return address.Query().Get("_mtag")
	}
	for _, foreign := range []string{"https://www.stranger.example/", "https://notother.test/", w.gate.url("blog.shop.localhost") + "/"} {
		if got := token(foreign); got != "" {
			t.Errorf("%s gets the visitor", foreign)
		}
	}
	good := token(other + "/")
	if !strings.HasPrefix(good, shop+"~") {
		t.Fatalf("the token is %q", good)
	}
	tab.goTo(other + "/")
	last()
	for path, sent := range map[string]string{
		"/later":     good,
		"/elsewhere": good,
		"/":          strings.Replace(good, shop[:4], "0000", 1),
	} {
		tab.do(`mtag('consent', false)`)
		tab.goTo(other + path + "?_mtag=" + url.QueryEscape(sent))
		if e := last(); e.MUID == shop || strings.HasPrefix(e.MUID, "0000") || strings.Contains(e.RawData["pageUrl"].(string), "_mtag") {
			t.Errorf("%s: %s, %v", path, e.MUID, e.RawData["pageUrl"])
		}
	}
	tab.do(`mtag('consent', false)`)

	// A click that has not left the page has put the visitor into a link and a form. A withdrawal takes the next ones out.
	tab.goTo(w.gate.url(shopHost) + "/")
	last()
	tab.do(`
		addEventListener('click', (event) => event.target.localName == 'a' && event.preventDefault());
		addEventListener('submit', (event) => event.preventDefault());
		document.body.innerHTML = '<a href="%[1]s/">x</a><form action="%[1]s/"><button>x</button></form><form method="post" action="%[1]s/"><button>x</button></form>';
		window.clickAll = () => document.querySelectorAll('a, button').forEach((all) => all.click());
		clickAll();
	`, other)
	if n := strings.Count(tab.get(`document.body.innerHTML`), "_mtag"); n != 3 {
		t.Fatalf("the visitor is in %d addresses, want 3", n)
	}
	tab.do(`mtag('consent', false); clickAll()`)
	if got := tab.get(`document.body.innerHTML`); strings.Contains(got, "_mtag") {
		t.Errorf("after a withdrawal: %s", got)
	}
	tab.goTo(other + "/denied?_mtag=" + url.QueryEscape(good))
	tab.do(`mtag('event', 'Waits')`)
	if got := tab.get(`document.cookie + location.search`); got != "" {
		t.Errorf("without consent: %s", got)
	}
	tab.goTo(w.gate.url(shopHost) + "/denied")
	tab.do(`
		addEventListener('click', (event) => event.preventDefault());
		document.body.innerHTML = '<a href="%s/">x</a>';
		document.querySelector('a').click();
	`, other)
	if got := tab.get(`document.querySelector('a').search`); got != "" {
		t.Errorf("without consent the shop sends %s", got)
	}
}
