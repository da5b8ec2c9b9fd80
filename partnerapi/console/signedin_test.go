package console_test

import (
	"regexp"
	"strings"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

var apiKey = regexp.MustCompile(`^mtp_[a-z0-9]+$`)

func keys(b *tab, p *partner) {
	b.open("/settings")
	b.signIn(p.key)
	b.click("New key")
	b.fill("What it is for", "Ann")
	b.click("Issue key")
	b.see("Copy it now")
	key := b.ask(`document.querySelector('dialog code').textContent`)
	if !apiKey.MatchString(key) {
		b.Fatalf("the key is %q", key)
	}
	b.click("I have it")
	b.gone(key)
	b.see("Never used")

	b.click("Sign out")
	b.see("You are signed out.")
	b.signIn(key)
	b.see("Revoke…")
	b.click("Revoke Ann")
	b.see("you will be signed out")
	b.click("Revoke")
	b.see("Your session has ended. Sign in again to go on where you were.")
	b.signIn(key)
	b.see("This key is not valid")
	b.signIn(p.key)
	b.see("Revoked and expired keys (1)")

	// A key that the service revokes behind the page's back ends its session, too.
	var list struct {
		Keys []struct{ KeyID, Name string }
	}
	p.api("GET", "/key", nil, &list)
	p.run(new(any), "key", "revoke", list.Keys[0].KeyID)
	b.click("Merchants")
	b.see("Your session has ended.")
	if got := b.ask("location.pathname"); got != "/console/merchants" {
		b.Errorf("the address is %s: after signing in, one is not where one was", got)
	}
}

func links(b *tab, p *partner) {
	var link struct{ URL string }
	p.run(&link, "console", "link", "--partner", p.id)
	me := "Sign in as Partner of a link signs in once"
	// To open a link uses nothing up: it signs in when the person says so. It can be opened again.
	for _, answer := range []struct{ button, see string }{{"Cancel", "API key"}, {me, "Your first merchant"}} {
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link.URL))
		b.see(me + "?")
		if got := b.ask("location.href"); strings.Contains(got, "link") {
			b.Errorf("the link is still in the address: %s", got)
		}
		b.click(answer.button)
		b.see(answer.see)
	}
	// Another link replaces the session only when the person says so.
	var other struct{ URL string }
	p.run(&other, "console", "link", "--operator")
	for _, answer := range []struct{ button, see string }{{"Stay signed in", "Your first merchant"}, {"Sign in as an operator", "Accepting events"}} {
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(other.URL))
		b.see("You are signed in as Partner of")
		b.click(answer.button)
		b.see(answer.see)
	}
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link.URL))
	b.see("This link does not work any more")
	b.see("Accepting events") // who was signed in still is
	b.click("Sign out")
	b.see("You are signed out.")
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link.URL))
	b.see("This link does not work any more")
}

func operator(b *tab, p *partner) {
	_, tag := p.newTag("Shoe shop", "shoes.test")
	p.mark(tag, map[string]any{"muid": "ann", "event": "Purchase"})
	var link struct{ URL string }
	p.run(&link, "console", "link", "--operator")
	b.do(chromedp.Navigate(link.URL))
	b.click("Sign in as an operator")
	b.see("Accepting events")
	b.see("The service makes none by itself.")
	b.see("Partner of an operator looks at the service")
	b.click("Audit log")
	b.see("Session begun")
	b.see("Tag generated")
	b.open("/audit") // by its address, too
	b.see("Session begun")
	b.open("/merchants")
	b.see("There is no page at this address.")
}

// sessions shows who is signed in, and ends the session of another browser, then all.
func sessions(b *tab, p *partner) {
	var ann, reader struct{ KeyID, APIKey string }
	p.api("POST", "/key", map[string]string{"name": "Ann"}, &ann)
	p.api("POST", "/key", map[string]any{"name": "Reader", "scope": "read", "personalData": true}, &reader)
	b.open("/settings")
	b.signIn(ann.APIKey)
	b.see("Who is signed in")
	first, second := p.session(p.key), p.session(reader.APIKey)
	b.open("/settings")
	b.click("Sign out Reader")
	b.see("The session has ended")
	b.wait("end of the row", "!document.querySelector('[aria-label=\"Sign out Reader\"]')")
	if first() != 200 || second() != 401 {
		b.Errorf("the others get %d and %d", first(), second())
	}
	b.click("Sign out everywhere…")
	b.see("yours too")
	b.click("Sign out everywhere")
	b.see("All are signed out.")
	if first() != 401 {
		b.Error("another session goes on")
	}
	// Who can only read sees the others, and ends his own.
	p.session(ann.APIKey)
	b.signIn(reader.APIKey)
	b.wait("both sessions", "document.querySelectorAll('[aria-label=\"Who is signed in\"] li').length === 2")
	if text := b.ask("document.body.innerText"); strings.Contains(text, "Sign out everywhere") || strings.Count(text, "Sign out") != 2 {
		b.Errorf("the page offers more than to sign out:\n%s", text)
	}
	b.click("Sign out here")
	b.see("You are signed out.")
}

// keyboard signs in, opens a dialog, stays in it, and leaves it, without a mouse.
func keyboard(b *tab, p *partner) {
	press := func(keys ...string) {
		for _, key := range keys {
			b.do(chromedp.KeyEvent(key))
		}
	}
	focus := func() string {
		return b.ask(`(document.activeElement.labels?.[0] ?? document.activeElement).innerText.trim()`)
	}
	b.open("/")
	b.see("API key")
	for range 5 {
		if press(kb.Tab); focus() == "API key" {
			break
		}
	}
	press(p.key, kb.Enter)
	b.see("Your first merchant")
	if got := focus(); got != "Merchants" {
		b.Errorf("after signing in, the focus is on %q, want the heading", got)
	}
	press(kb.Tab)
	if got := focus(); got != "New merchant" {
		b.Errorf("behind the heading is %q", got)
	}
	press(kb.Enter)
	b.see("The shop's root domain")
	for range 8 {
		press(kb.Tab)
		if inside := b.ask(`document.activeElement === document.body || document.querySelector('dialog').contains(document.activeElement)`); inside != "true" {
			b.Errorf("the focus has left the dialog, to %q", focus())
		}
	}
	press(kb.Escape)
	b.wait("end of the dialog", "!document.querySelector('dialog')")
	if got := focus(); got != "New merchant" {
		b.Errorf("after the dialog, the focus is on %q", got)
	}
	b.open("/merchants")
	b.see("Your first merchant")
	if press(kb.Tab); focus() != "Skip to the content" {
		b.Errorf("the first stop is %q", focus())
	}
}

func readOnly(b *tab, p *partner) {
	id, _ := p.newTag("Shoe shop", "shoes.test")
	var key struct{ APIKey string }
	p.api("POST", "/key", map[string]string{"name": "Reader", "scope": "read"}, &key)
	b.open("/merchants")
	b.signIn(key.APIKey)
	b.see("Read only")
	b.see("Shoe shop")
	if strings.Contains(b.ask("document.body.innerText"), "New merchant") {
		b.Error("the page offers to create a merchant")
	}
	b.open("/merchants/" + id + "/settings")
	b.see("Your key can only read.")
	b.open("/merchants/" + id + "/privacy")
	b.see("No erasure yet.")
	if strings.Contains(b.ask("document.body.innerText"), "Download what is held") {
		b.Error("the page offers personal data")
	}

	b.click("Sign out")
	p.api("POST", "/key", map[string]any{"name": "Support", "scope": "read", "personalData": true}, &key)
	b.signIn(key.APIKey)
	b.fill("Email", "ann@shoes.test")
	b.click("Download what is held")
	b.see("Downloaded: 0 events")
}

// unreachable cuts the connection, and shows what the page says.
func unreachable(b *tab, p *partner) {
	b.open("/merchants")
	b.signIn(p.key)
	b.see("Your first merchant")
	b.offline(true)
	b.click("Settings")
	b.see("The service cannot be reached.")
	b.offline(false)
	b.click("Try again")
	b.see("Without a name")

	id, tag := p.newTag("Shoe shop", "shoes.test")
	p.mark(tag, map[string]any{"muid": "ann", "event": "Purchase"})
	_, err := chromedp.Call(b.ctx, network.SetBlockedURLs, network.SetBlockedURLsParams{
		URLPatterns: []*network.BlockPattern{{URLPattern: "https://*:*/console/assets/chart.js", Block: true}}})
	if err != nil {
		b.Fatal(err)
	}
	b.open("/merchants/" + id + "/events")
	b.see("The chart could not be loaded.")
	b.see("1 event in this time")
}

// slow shows bars after a moment, and progress when an answer takes more than a second.
func slow(b *tab, p *partner) {
	p.api("POST", "/merchant", map[string]string{"name": "Ant"}, nil)
	b.open("/settings")
	b.signIn(p.key)
	b.see("API keys")
	release := p.hold("/v1/partners/merchant")
	defer release()
	b.click("Merchants")
	b.wait("bars", "document.querySelector('.skeleton .bar')")
	b.wait("progress", "document.querySelector('[role=progressbar]')")
	release()
	b.see("Ant")
	b.wait("end of the progress", "!document.querySelector('[role=progressbar], .skeleton .bar')")
}
