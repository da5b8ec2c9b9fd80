package console_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"mtagd/store/testenv"
)

// page is a page of the console, by its name in the guide. operator is true for those that only operators have.
type page struct {
	name, path, text string // text is on the page when it is complete
	operator         bool
}

// sample fills a partner with merchants and events, and returns the pages that show them.
func sample(p *partner) []page {
	p.Helper()
	full, tag := p.newTag("Nordlicht Shoes", "nordlicht.test")
	names := []string{"PageView", "PageView", "PageView", "ViewItem", "ViewItem", "AddToCart", "Search", "PageView", "BeginCheckout", "Purchase"}
	now := time.Now()
	for hour := 0; hour < 30*24; hour += 100 {
		var batch []map[string]any
		for i := range 100 {
			at := now.Add(-time.Duration(hour+i) * time.Hour)
			for n := range 1 + (hour+i*7)%5*(720-hour)/400 {
				batch = append(batch, map[string]any{"muid": fmt.Sprintf("7c1e%04d-visitor", (i*13+n)%211), "event": names[(i*3+n*7)%len(names)],
					"event_time": at.Add(-time.Duration(n*7) * time.Minute).Format(time.RFC3339), "value": 19.5 + float64(i%40), "currency": "EUR"})
			}
		}
		p.mark(tag, batch)
	}
	quiet, quietTag := p.newTag("Papier & Tinte", "papier.test")
	for _, muid := range []string{"ann", "bob"} {
		p.mark(quietTag, map[string]any{"muid": muid, "event": "PageView", "event_time": now.Add(-4 * 24 * time.Hour).Format(time.RFC3339)})
	}
	for _, wrong := range []map[string]any{
		{"muid": "ann", "event": "add_to_cart", "value": 25},
		{"email": "ann@nordlicht.test", "event": "Purchase", "value": 89, "currency": "EUR"},
		{"event": "Purchase", "value": 89, "currency": "EUR", "products": []any{map[string]any{"id": "boot-7", "price": 89}}},
		{"muid": "ann", "value": 25},
		{"muid": "ann", "event": "add_to_cart", "value": 30},
	} {
		if status, answer := p.try("POST", tagHost, "/mark/"+tag, wrong, ""); status < 400 {
			p.Fatalf("%d %s", status, answer)
		}
	}
	waiting, _ := p.newTag("Oak & Iron", "oak.test")
	var m struct{ MerchantID string }
	p.api("POST", "/merchant", map[string]string{"name": "Kaffee Klause", "domain": "kaffee.test"}, &m)
	dns := m.MerchantID
	p.api("POST", "/tracktag/generate", map[string]string{"merchantId": dns, "type": "server-side", "domain": "kaffee.test"}, nil)
	p.api("POST", "/merchant", map[string]string{"name": "Velvet Records", "domain": "velvet.test"}, &m)
	p.api("POST", "/merchant/"+full+"/destinations", map[string]any{"type": "meta", "paused": true, "settings": map[string]string{"pixelId": "123456"},
		"secrets": map[string]string{"accessToken": "secret"}}, nil)
	p.api("POST", "/erasures", map[string]string{"merchantId": quiet, "muid": "ann"}, nil)
	p.api("POST", "/key", map[string]string{"name": "Warehouse import", "scope": "read"}, nil)
	return []page{
		{name: "merchants", path: "/merchants", text: "Silent since"},
		{name: "no-tag", path: "/merchants/" + m.MerchantID, text: "Add the first tag"},
		{name: "dns", path: "/merchants/" + dns, text: "Check now"},
		{name: "install", path: "/merchants/" + waiting, text: "Waiting for the first event."},
		{name: "events", path: "/merchants/" + full + "/events", text: "As a table"},
		{name: "live", path: "/merchants/" + full + "/live", text: "Connected"},
		{name: "refused", path: "/merchants/" + full + "/refused", text: "add_to_cart"},
		{name: "delivery", path: "/merchants/" + full + "/delivery", text: "New destination"},
		{name: "privacy", path: "/merchants/" + quiet + "/privacy", text: "era_"},
		{name: "merchant-settings", path: "/merchants/" + full + "/settings", text: "Who may use identifiers"},
		{name: "settings", path: "/settings", text: "of 50,000"},
		{name: "nothing", path: "/merchants?search=nothing", text: "No merchant matches."},
		{name: "overview", path: "/overview", text: "Accepting events", operator: true},
		{name: "audit", path: "/audit", text: "Session begun", operator: true},
	}
}

// asPartner and asOperator begin a session. A new one replaces the one before; asked is called when the page asks whether it
// may.
func (b *tab) asPartner(p *partner) {
	b.Helper()
	b.open("/")
	b.signIn(p.key)
	b.see("Merchants")
}

func (b *tab) asOperator(p *partner, asked func()) {
	b.Helper()
	var link struct{ URL string }
	p.run(&link, "console", "link", "--operator")
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link.URL))
	b.see("Sign in as an operator?")
	asked()
	b.click("Sign in as an operator")
	b.see("Overview")
}

var (
	themes = []string{"light", "dark"}
	widths = []int64{320, middle, 1280}
)

const middle = 768

// everyPage looks at each page as axe-core does, which stands for a screen reader and for eyes that see colours badly, and
// whether it fits the window.
func everyPage(b *tab, p *partner) {
	testenv.Program(b, "npm")
	axe, err := os.ReadFile(filepath.Join("app", "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		testenv.Missing(b, "the packages of the console are not installed: make node")
	}
	// check looks at a page as it is now. What is opened on a page is looked at in fewer ways.
	check := func(name string, themes []string, widths []int64) {
		b.Helper()
		b.do(chromedp.Evaluate[chromedp.Void](string(axe) + ";void 0")) // past the page's policy, as the debugger
		rules := "resultTypes: ['violations']"
		for i, theme := range themes {
			if i > 0 { // it has other colours, and the rest is the same
				rules = "runOnly: ['color-contrast', 'link-in-text-block'], " + rules
			}
			for _, width := range widths {
				if i > 0 && width == middle {
					continue
				}
				b.look(theme, width, 800)
				if got := b.ask("document.documentElement.scrollWidth - document.documentElement.clientWidth"); got != "0" {
					b.Errorf("%s is %s pixels too wide for a window of %d", name, got, width)
				}
				if width == middle {
					continue // it has the style of the widest window: only the fit is another
				}
				violations := b.ask(`axe.run({ ` + rules + ` }).then((r) => r.violations.map((v) =>
					v.id + ': ' + v.nodes.map((n) => n.html.slice(0, 200) + ' ' + n.failureSummary).join('; ')).join('\n'))`)
				if violations != "" {
					b.Errorf("%s, %s, %d pixels wide:\n%s", name, theme, width, violations)
				}
			}
		}
	}
	b.open("/")
	b.see("API key")
	check("sign-in", themes, widths)
	pages := sample(p)
	b.asPartner(p)
	for _, page := range pages {
		if !page.operator {
			b.open(page.path)
			b.see(page.text)
			check(page.name, themes, widths)
		}
	}
	opened := func(name string) { check(name, themes[1:], widths[:1]) }
	b.open("/merchants")
	b.click("New merchant")
	b.click("Create merchant")
	opened("new merchant")
	for _, page := range pages {
		switch page.name {
		case "dns":
			b.open(page.path)
			b.click("Check now")
			b.see("The record is not right.")
			opened("wrong record")
		case "events":
			b.open(page.path + "?names=Purchase&from=2026-01-01")
			b.click("As a table")
			b.do(chromedp.Click(chromedp.CSS("details.event > summary")))
			opened("open event")
		case "refused":
			b.open(page.path)
			b.do(chromedp.Click(chromedp.CSS("details.event > summary")))
			b.click("Try")
			b.see("It would be recorded.")
			opened("tried event")
		case "delivery":
			b.open(page.path)
			b.see(page.text)
			b.choose("Type", "googleads")
			b.see("serviceAccountKey")
			b.do(chromedp.Click(chromedp.CSS("details.event > summary")))
			opened("open destination")
		case "privacy":
			b.open(page.path)
			b.wait("receipt", "document.querySelector('.receipt a')")
			b.ask(`document.querySelector('.receipt a').click()`)
			b.see("between identifiers.")
			opened("receipt")
		case "merchant-settings":
			b.open(page.path)
			b.click("For a number of days")
			b.click("Delete…")
			b.see("Its tags stop working at once.")
			opened("delete merchant")
		case "settings":
			b.open(page.path)
			b.click("New key")
			opened("new key")
		}
	}
	b.asOperator(p, func() { opened("use the link") })
	for _, page := range pages {
		if page.operator {
			b.open(page.path)
			b.see(page.text)
			check(page.name, themes, widths)
		}
	}
}

// TestTypes checks the types of the program in the browser.
func TestTypes(t *testing.T) {
	if _, err := os.Stat("app/node_modules"); err != nil {
		testenv.Missing(t, "the packages of the console are not installed: make node")
	}
	check := exec.Command(testenv.Program(t, "npm"), "run", "--silent", "check")
	check.Dir = "app"
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// firstViewLimit is how many bytes the first view may take to load, as they are sent.
const firstViewLimit = 100_000

func firstView(b *tab, _ *partner) {
	b.open("/")
	b.see("API key")
	size, err := strconv.Atoi(b.ask(`[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
		.map((e) => e.transferSize).reduce((sum, n) => sum + n)`))
	if err != nil {
		b.Fatal(err)
	}
	if size > firstViewLimit {
		b.Errorf("the first view takes %d bytes, want at most %d", size, firstViewLimit)
	}
	b.Logf("the first view takes %d bytes", size)
}

// offline cuts the connections of the tab, or allows them again.
func (b *tab) offline(is bool) {
	b.Helper()
	_, err := chromedp.Call(b.ctx, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{
		MatchedNetworkConditions: []*network.Conditions{{Offline: is, DownloadThroughput: -1, UploadThroughput: -1}}})
	if err != nil {
		b.Fatal(err)
	}
}
