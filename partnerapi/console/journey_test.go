package console_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"mtagd/store/testenv"
)

// TestInABrowser goes through the console in Chromium, against the real program. Each journey has its own partner and its
// own browser profile.
func TestInABrowser(t *testing.T) {
	testenv.NotShort(t, "a browser")
	s := newService(t)
	browser := startBrowser(t, s)
	for _, journey := range []struct {
		name string
		run  func(*tab, *partner)
	}{
		{"from nothing to the first event", firstEvent},
		{"list, rename and delete merchants", merchants},
		{"every status of a tag", statuses},
		{"the chart, the list and the export of events", events},
		{"live events", live},
		{"what was refused", refused},
		{"a destination is created, and shows what it would send", destinations},
		{"a person is erased", erasure},
		{"API keys, until the session's own is revoked", keys},
		{"a link signs in once", links},
		{"who is signed in, and is not any more", sessions},
		{"an operator looks at the service", operator},
		{"with the keyboard alone", keyboard},
		{"a key that can only read", readOnly},
		{"the service does not answer", unreachable},
		{"the service is slow", slow},
		{"every page, in both themes and three widths", everyPage},
		{"the first view is small", firstView},
	} {
		t.Run(journey.name, func(t *testing.T) {
			journey.run(newTab(t, browser), (&service{t, s.process}).newPartner("Partner of "+journey.name))
		})
	}
}

// The form asks for what the type of the destination needs, and says what is wrong.
func destinations(b *tab, p *partner) {
	m, _ := p.newTag("Shoe shop", "shoes.test")
	b.open("/merchants/" + m + "/delivery")
	b.signIn(p.key)
	b.see("There are no destinations yet.")
	b.choose("Type", "googleads")
	b.fill("customerId", "123")
	b.fill("conversions", "Purchase=7")
	b.fill("serviceAccountKey", "none")
	b.click("Create")
	b.see("must be the key of a service account")
	b.choose("Type", "pinterest")
	b.fill("adAccountId", "549755885175")
	b.fill("eventNames", "Booking = custom")
	b.click("test")
	b.fill("accessToken", "very secret")
	b.click("Create")
	b.see("pinterest, 0 events delivered")
	b.click("Active pinterest pinterest, 0 events delivered Nothing was sent yet")
	b.click("Show what would be sent")
	b.see("https://api.pinterest.com/v5/ad_accounts/549755885175/events?test=true")
	b.gone("very secret")
}

// A partner creates a merchant, gets its DNS record right at the third try, and installs the tag. The console shows each
// step.
func firstEvent(b *tab, p *partner) {
	b.open("/")
	b.signIn("mtp_wrong")
	b.see("This key is not valid")
	b.signIn(" Bearer " + p.key + " ")
	b.see("Your first merchant")

	b.click("New merchant")
	b.click("Create merchant")
	b.see("A merchant needs a name.")
	b.fill("Name", "Shoe shop")
	b.fill("Domain (optional)", "shoes.test")
	b.click("Create merchant")
	b.see("Add the first tag")
	if title := b.ask("document.title"); title != "Tags of Shoe shop · mtagd" {
		b.Errorf("the title is %q", title)
	}
	if focus := b.ask("document.activeElement.innerText"); focus != "Tags" {
		b.Errorf("after the move, the focus is on %q, want the new heading", focus)
	}
	b.click("Generate server-side tag")
	b.see("Next: create this DNS record")
	host := b.ask(`[...document.querySelectorAll('.tag code')].map((e) => e.textContent).find((t) => /^mtag-.*\.shoes\.test$/.test(t))`)

	b.click("Check now")
	b.see("The record is not right.")
	p.zone.set(host, "elsewhere.test")
	b.click("Check now")
	b.see(host + " points to elsewhere.test")
	p.zone.set(host, cnameTarget)
	b.click("Check now")
	b.see("Next: install the tag")
	b.see("Waiting for the first event.")

	if snippet := b.ask(`document.querySelector('.code code').textContent`); !strings.Contains(snippet, "consent: false") {
		b.Errorf("before a choice, the snippet is %s", snippet)
	}
	b.click("Consent is given Only for pages that the visitor reaches after agreeing")
	p.shop("www.shoes.test", b.ask(`document.querySelector('.code code').textContent`))
	visitor, closeVisitor := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	defer closeVisitor()
	if err := chromedp.Do(visitor, chromedp.Navigate("https://www.shoes.test/")); err != nil {
		b.Fatal(err)
	}
	b.see("The first event is here.")
	b.see("Receiving")

	b.click("See the event")
	b.see("PageView 1")
	b.open("/merchants")
	b.see("Receiving")
	b.gone("The first event is here.")
}

func merchants(b *tab, p *partner) {
	for _, name := range []string{"Ant", "Bee", "Cow", "Beech"} {
		p.api("POST", "/merchant", map[string]string{"name": name, "domain": strings.ToLower(name) + ".test"}, nil)
	}
	b.open("/merchants?search=be")
	b.signIn(p.key)
	b.see("Beech")
	b.gone("Ant")
	b.fill("Search by name", "cow")
	b.see("cow.test")
	b.gone("Beech")
	if got := b.ask("location.search"); got != "?search=cow" {
		b.Errorf("the address has %q", got)
	}
	b.fill("Search by name", "none")
	b.see("No merchant matches.")
	b.fill("Search by name", "cow")
	b.click("Cow")
	b.see("Add the first tag")
	b.do(chromedp.NavigateBack())
	b.see("No tag yet")
	b.click("Cow")
	b.see("Add the first tag")
	b.click("Settings")
	b.see("Delete the merchant")
	_, id, _ := strings.Cut(b.ask("location.pathname"), "/merchants/")
	id = strings.TrimSuffix(id, "/settings")
	b.fill("Name", "Cow & Calf")
	b.click("Save name")
	b.see("Saved")
	b.see("Cow & Calf")
	b.click("For a number of days")
	b.fill("Days", "30")
	b.click("Save retention")
	b.click("Keep 30 days")
	b.gone("As the operator of the service has set it for all")
	var merchant struct{ RetentionDays int }
	p.api("GET", "/merchant/"+id, nil, &merchant)
	if merchant.RetentionDays != 30 {
		b.Errorf("the retention is %d days", merchant.RetentionDays)
	}

	b.click("Delete…")
	b.fill("Type Cow & Calf to confirm", "Cow")
	if got := b.ask(`document.querySelector('dialog [type=submit]').disabled`); got != "true" {
		b.Error("the wrong name lets one delete the merchant")
	}
	b.fill("Type Cow & Calf to confirm", "Cow & Calf")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.see("Beech")
	b.gone("cow.test")
	b.open("/merchants/" + id)
	b.see("You have no merchant with this id.")

	b.open("/merchants")
	b.click("New merchant")
	b.see("can ask for that person's muid")
	b.fill("Name", "Dog")
	b.click("Require a secret for identifiers")
	b.click("Create merchant")
	b.see("A secret is required.")
	b.see("Create a secret")
	b.open("/nowhere")
	b.see("There is no page at this address.")
}

// statuses shows a tag in every state, in the list and on the merchant's page.
func statuses(b *tab, p *partner) {
	var m, t struct{ MerchantID, TagID string }
	p.api("POST", "/merchant", map[string]string{"name": "Shoe shop"}, &m)
	p.api("POST", "/tracktag/generate", map[string]string{"merchantId": m.MerchantID, "type": "server-side", "domain": "states.test"}, &t)
	type fields = map[string]any
	ready := fields{"lifecycle": "waiting_for_events", "isVerified": true, "isConnected": true, "status": "active",
		"dns": fields{"verdict": "correct", "code": "ok", "detail": "right", "checkedAt": "2026-11-20T08:30:00Z"}}
	certificate := func(status, detail string) fields {
		return fields{"certificate": fields{"status": status, "detail": detail, "notAfter": nil, "nextTry": "2036-11-20T08:30:00Z"}}
	}
	b.open("/merchants")
	b.signIn(p.key)
	b.see("Shoe shop") // leaving the page before would end the request that signs in
	for _, c := range []struct {
		answer         []fields
		status, advice string
	}{
		{[]fields{}, "Waiting for DNS", "Next: create this DNS record"},
		{[]fields{ready, certificate("pending", "")}, "Waiting for certificate", "The certificate of mtag-"},
		{[]fields{ready, certificate("failed", "the CA has refused it")}, "Certificate failed", "the CA has refused it"},
		{[]fields{ready, certificate("valid", "")}, "Waiting for first event", "Next: install the tag"},
		{[]fields{ready, {"lifecycle": "receiving", "lastEventAt": "2020-01-31T08:30:00Z"}}, "Silent since 01/31/2020", "Is the snippet still on the pages of the shop?"},
		{[]fields{ready, {"isConnected": false}}, "DNS changed", "The record was right, and is not any more."},
		{[]fields{ready, {"domainLost": true}}, "Domain lost", "This tag has lost its domain."},
		{[]fields{ready, {"suspended": true}}, "Suspended", "The operator has suspended this tag."},
	} {
		p.answer("/v1/partners/tracktag/"+t.TagID, func(tag map[string]any) {
			for _, some := range c.answer {
				maps.Copy(tag, some)
			}
		})
		b.open("/merchants")
		b.see(c.status)
		b.click("Shoe shop")
		b.see(c.status)
		b.see(c.advice)
	}
}

func events(b *tab, p *partner) {
	id, tag := p.newTag("Shoe shop", "shoes.test")
	var batch []map[string]any
	for i := range 60 {
		name := []string{"PageView", "PageView", "Purchase"}[i%3]
		batch = append(batch, map[string]any{"muid": "visitor-1", "event": name, "value": i, "event_time": time.Now().Add(-time.Duration(i) * 11 * time.Hour).Format(time.RFC3339)})
	}
	p.mark(tag, batch)
	b.open("/merchants/" + id + "/events")
	b.signIn(p.key)
	b.see("PageView 40")
	b.see("Purchase 20")
	b.wait("chart", "document.querySelector('.chart canvas')")
	b.see("60 events in this time")
	b.see("Page 1 of 3")
	b.click("Next")
	b.see("Page 2 of 3")
	b.click("Filters")
	b.choose("Bots", "true")
	b.see("No events here.")
	b.open(strings.TrimPrefix(b.ask("location.pathname + location.search"), "/console")) // a colleague who gets the address
	b.see("No events here.")
	b.choose("Bots", "")
	b.see("60 events in this time")
	b.click("As a table")
	b.see("Day PageView Purchase All")
	// A link sends no header of its own.
	if lines := b.ask(`fetch(document.querySelector('a[download]').href).then((r) => r.text()).then((t) => t.trim().split('\n').length)`); lines != "61" {
		b.Errorf("the CSV file has %s lines, want 61", lines)
	}
}

// live shows events as they come in, and filters them.
func live(b *tab, p *partner) {
	id, tag := p.newTag("Shoe shop", "shoes.test")
	b.open("/merchants/" + id + "/live")
	b.signIn(p.key)
	b.see("Connected")
	p.mark(tag, map[string]any{"muid": "ann", "event": "Purchase", "products": []any{map[string]any{"id": "boot-7"}}})
	p.mark(tag, map[string]any{"muid": "bob", "event": "Login"})
	b.see("2 events since you opened this page")
	b.do(chromedp.Click(chromedp.CSS("details.event:last-of-type > summary")))
	b.see(`id: "boot-7"`)
	b.fill("Visitor (muid)", "bob")
	b.gone("Purchase")
	b.see("Login")
	if got := b.ask("location.search"); got != "?muid=bob" {
		b.Errorf("the address has %q", got)
	}
	b.click("Pause")
	p.mark(tag, map[string]any{"muid": "bob", "event": "Search"})
	b.click("Go on")
	b.see("Search") // it came while the page did not look
}

// refused shows why events are missing, and tries an event.
func refused(b *tab, p *partner) {
	id, tag := p.newTag("Shoe shop", "shoes.test")
	b.open("/merchants/" + id + "/refused")
	b.signIn(p.key)
	b.see("Nothing was refused.")
	for range 2 {
		if status, answer := p.try("POST", tagHost, "/mark/"+tag, map[string]any{"muid": "ann@shoes.test", "event": "add_to_cart"}, ""); status != 400 {
			b.Fatalf("%d %s", status, answer)
		}
	}
	b.click("Look again")
	b.see("add_to_cart")
	b.see("2 times,")
	b.do(chromedp.Click(chromedp.CSS("details.event > summary")))
	b.see("Did you mean AddToCart?")
	b.see("Place /event")
	if strings.Contains(b.ask("document.body.innerText"), "ann@shoes.test") {
		b.Error("the page shows the person's email")
	}

	b.fill("Event as JSON", `{"muid":"ann","event":"Purchase","value":"25"`)
	b.click("Try")
	b.see("It would be refused.")
	b.fill("Event as JSON", `{"muid":"ann","event":"Purchse","value":"25"}`)
	b.click("Try")
	b.see("It would be recorded.")
	b.see("Better: Purchase")
	var list struct{ Pagination struct{ TotalItems int } }
	p.api("GET", "/events?merchantId="+id, nil, &list)
	if list.Pagination.TotalItems != 0 {
		b.Errorf("the try has recorded %d events", list.Pagination.TotalItems)
	}
}

func erasure(b *tab, p *partner) {
	id, tag := p.newTag("Shoe shop", "shoes.test")
	p.mark(tag, []any{
		map[string]any{"muid": "ann", "email": "ann@shoes.test", "event": "Purchase"},
		map[string]any{"muid": "ann", "event": "PageView"},
		map[string]any{"muid": "bob", "event": "PageView"},
	})
	b.open("/merchants/" + id + "/privacy")
	b.signIn(p.key)
	b.see("No erasure yet.")
	b.click("Erase…")
	b.see("Say who the person is.")
	b.fill("Email", "ann@shoes.test")
	b.click("Download what is held")
	b.see("Downloaded: 1 event. Not taken: 1 event that only claimed links lead to")
	b.click("Also take what only claimed links lead to")
	b.click("Download what is held")
	b.see("Downloaded: 2 events")
	b.click("Erase…")
	b.see("This cannot be undone.")
	b.click("Erase")
	b.see("Erased: 2 events and 1 link between identifiers.")
	receipt := b.ask("new URLSearchParams(location.search).get('receipt')")
	b.wait("receipt in the list", "document.querySelector('.receipt')?.innerText.includes("+`"`+receipt+`"`+") && document.querySelector('.receipt').innerText.includes('Done')")
	if strings.Contains(b.ask("document.body.innerText"), "ann@shoes.test") {
		b.Error("the page still names the person")
	}
	b.open("/merchants/" + id + "/events")
	b.see("1 event in this time")
}
