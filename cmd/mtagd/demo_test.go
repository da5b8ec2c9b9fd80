//go:build !race

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"mtagd/store/testenv"
)

// openBrowser starts headless Chromium for one test.
func openBrowser(t *testing.T, flags ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	allocator, stop := chromedp.NewExecAllocator(t.Context(), append(flags,
		chromedp.ExecPath(testenv.Program(t, testenv.Chromium...)), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.NoFirstRun,
		chromedp.Flag("headless", "new"), chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-features", "SpareRendererForSitePerProcess"), // no process in advance for a page that may never come
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1440, 900))...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(allocator)
	t.Cleanup(closeTab)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // only what hangs should reach it
	t.Cleanup(cancel)
	return ctx
}

// screenshot is set by make screenshot.
var screenshot = flag.String("screenshot", "", "write pictures of the demo shop, with its panel full of events, and of the console to this folder")

// A visitor of the demo shop sends an event with each step, and sees it in the panel.
func TestDemoShop(t *testing.T) {
	url, key, _ := startDev(t, t.TempDir())
	ctx := openBrowser(t)
	console := chromedp.Console(ctx)
	do := func(steps ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		for _, step := range steps {
			err := chromedp.Do(ctx, step)
			for err != nil && strings.Contains(err.Error(), "Could not find node") { // the page has drawn it again meanwhile
				err = chromedp.Do(ctx, step)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	follow := func(link, to string) {
		t.Helper()
		// Not by the mouse: Chromium may lose the answer to a click that leaves the page.
		do(chromedp.WaitVisible(chromedp.CSS(link)), chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`void document.querySelector(%q).click()`, link)),
			chromedp.WaitReady(chromedp.CSS(to)))
	}
	ask := func(expression string) string {
		t.Helper()
		answer, err := chromedp.Run(ctx, chromedp.Evaluate[string](expression))
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	waitFor := func(what, expression string) {
		t.Helper()
		for ask(`String(Boolean(`+expression+`))`) != "true" {
			select {
			case <-ctx.Done():
				t.Fatalf("no %s; the panel says %s", what, ask(`document.querySelector('[data-visitor]').innerText`))
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	const (
		bannerOpen = `document.querySelector('[data-banner]')?.checkVisibility()`
		visitor    = `document.querySelector('[data-visitor]').textContent`
		stored     = `document.cookie + Object.keys(localStorage).filter((key) => key.startsWith('_mtag'))`
	)

	// Before the visitor has agreed, the tag stores nothing.
	do(chromedp.Navigate(url + "/demo/"))
	waitFor("banner", bannerOpen)
	do(chromedp.Click(chromedp.CSS("[data-choose=no]")))
	waitFor("closed banner", `!`+bannerOpen)
	follow("[data-ad]", `[data-page=home]`)
	waitFor("script of the tag", `performance.getEntriesByType('resource').some((r) => r.name.endsWith('/script?with=attribution'))`)
	waitFor("loaded page", `document.readyState == 'complete'`)
	if got := ask(bannerOpen + ` + ' ' + (` + stored + `)`); got != "false " {
		t.Errorf("after the visitor has declined, the banner and what is stored are %q", got)
	}

	// The visitor came by an ad and agrees: the panel shows the click.
	do(chromedp.Click(chromedp.CSS("[data-change]")))
	waitFor("focus in the banner", `document.activeElement.matches('[data-banner]')`)
	do(chromedp.Click(chromedp.CSS("[data-choose=yes]")))
	waitFor("attribution", `['gclid=demo-click', 'utm_source=google', 'ad_storage granted', 'Sessionsince ']
		.every((text) => `+visitor+`.includes(text))`)
	do(chromedp.Click(chromedp.CSS("[data-events] summary")))
	waitFor("first touch", `document.querySelector('[data-events] dl')?.textContent.includes('first_gclid=demo-click')`)

	do(chromedp.SendKeys(chromedp.CSS("[name=q]"), "cup\r"), chromedp.WaitVisible(chromedp.CSS(".intro.small")))
	follow(`a[href="/demo/product/mug-dune"]`, "[data-add]")
	do(chromedp.Click(chromedp.CSS("[data-wish]")), chromedp.Click(chromedp.CSS("[data-add]")))
	follow(`a[href="/demo/product/dripper-halo"]`, "[data-product=dripper-halo]")
	do(chromedp.Click(chromedp.CSS("[data-add]")))
	follow(".to-cart", "[data-lines] li:nth-child(2)")
	do(chromedp.Click(chromedp.CSS("[data-lines] li:nth-child(2) [data-remove]")))
	follow(`a[href="/demo/checkout"]`, "[data-brief] li")
	do(chromedp.Click(chromedp.CSS("[name=tier][value=express]")), chromedp.Click(chromedp.CSS("[name=payment][value=invoice]")))
	follow("[data-checkout] .primary", "[data-refund]")
	do(chromedp.Click(chromedp.CSS("[data-refund]")))
	// A backend's event may have any fields.
	do(chromedp.Evaluate[chromedp.Void](`void fetch('/mark/' + document.querySelector('.tag code').textContent,
		{ method: 'POST', body: '{"muid":"m","event":"Contact","value":"25","products":"none"}' })`))

	want := []string{
		"AddPaymentInfo", "AddShippingInfo", "AddToCart", "AddToCart", "AddToWishlist", "BeginCheckout", "Contact",
		"PageView", "PageView", "PageView", "PageView", "PageView", "PageView", "PageView",
		"Purchase", "Refund", "RemoveFromCart", "Search", "ViewCart", "ViewContent", "ViewItem", "ViewItem",
	}
	names := func() []string {
		text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`[...document.querySelectorAll('[data-events] strong')].map((e) => e.textContent).sort().join(' ')`))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(text)
	}
	for len(names()) < len(want) {
		select {
		case <-ctx.Done():
			t.Fatalf("the panel has %v", names())
		case <-time.After(50 * time.Millisecond):
		}
	}
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("the panel has %v\nwant %v", got, want)
	}

	merchant := regexp.MustCompile(`"merchantId":"([^"]+)"`)
	_, list := get(t, url+"/v1/partners/merchant", key)
	_, list = get(t, url+"/v1/partners/events?events=Purchase&merchantId="+merchant.FindStringSubmatch(list)[1], key)
	var purchases struct {
		Events []struct {
			RawData struct {
				Value         float64
				Currency      string
				ShippingCost  float64 `json:"shipping_cost"`
				TransactionID string  `json:"transaction_id"`
				Email         string
				GCLID         string
				UTMSource     string `json:"utm_source"`
				SessionID     string `json:"session_id"`
				Consent       map[string]string
				Products      []struct {
					ID       string
					Quantity int
				}
			} `json:"raw_data"`
		}
	}
	if err := json.Unmarshal([]byte(list), &purchases); err != nil || len(purchases.Events) != 1 {
		t.Fatalf("%v: %s", err, list)
	}
	p := purchases.Events[0].RawData
	if p.Value != 28 || p.Currency != "EUR" || p.ShippingCost != 9.9 || p.TransactionID == "" || p.Email != "ann@example.com" ||
		len(p.Products) != 1 || p.Products[0].ID != "mug-dune" || p.Products[0].Quantity != 1 {
		t.Errorf("the purchase is %+v", p)
	}
	if p.GCLID != "demo-click" || p.UTMSource != "google" || p.SessionID == "" || p.Consent["ad_storage"] != "granted" {
		t.Errorf("the attribution of the purchase is %+v", p)
	}

	if *screenshot != "" {
		do(chromedp.Navigate(url + "/demo/"))
		for len(names()) <= len(want) {
			time.Sleep(50 * time.Millisecond)
		}
		do(chromedp.Evaluate[chromedp.Void](`void document.getAnimations().forEach((a) => a.finish())`))
		picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err == nil {
			err = os.WriteFile(filepath.Join(*screenshot, "screenshot.png"), picture, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	do(chromedp.Click(chromedp.CSS("[data-change]")), chromedp.Click(chromedp.CSS("[data-choose=no]")))
	waitFor("empty storage", `(`+stored+`) === ''`)
	waitFor("word about consent", visitor+`.startsWith('Without consent')`)

	chromedp.Cancel(ctx)
	for m, err := range console {
		if err != nil {
			break
		}
		t.Errorf("in the console: %v", m)
	}
}

// TestConsoleScreenshot takes the first picture of the README.
func TestConsoleScreenshot(t *testing.T) {
	if *screenshot == "" {
		t.Skip("make screenshot runs this")
	}
	url, key, link := startDev(t, t.TempDir())
	_, list := get(t, url+"/v1/partners/merchant?name=Kiln", key)
	merchant := regexp.MustCompile(`"merchantId":"([^"]+)"`).FindStringSubmatch(list)[1]
	ctx := openBrowser(t)
	err := chromedp.Do(ctx,
		chromedp.EmulateViewport(1100, 860), chromedp.Navigate(link), chromedp.Click(chromedp.CSS("form button[type=submit]")),
		chromedp.WaitVisible(chromedp.CSS(`a[href*="`+merchant+`"]`)), chromedp.Navigate(url+"/console/merchants/"+merchant+"/events"),
		chromedp.WaitVisible(chromedp.CSS(".chart canvas")), chromedp.Sleep(2*time.Second)) // the chart draws itself again
	if err != nil {
		t.Fatal(err)
	}
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(*screenshot, "console.png"), picture, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// On a phone each page fits the screen's width. The panel's handle is in view without scrolling and shows the latest
// event; the keyboard opens and closes the panel.
func TestDemoShopOnAPhone(t *testing.T) {
	url, _, _ := startDev(t, t.TempDir())
	ctx := openBrowser(t)
	do := func(steps ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		if err := chromedp.Do(ctx, steps...); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(expression string) string {
		t.Helper()
		answer, err := chromedp.Run(ctx, chromedp.Evaluate[string](expression))
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	waitFor := func(expression, want string) {
		t.Helper()
		for ask(expression) != want {
			select {
			case <-ctx.Done():
				t.Fatalf("%s is %q, want %q", expression, ask(expression), want)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	const (
		fits         = `String(document.documentElement.scrollWidth <= innerWidth) + document.documentElement.scrollWidth`
		inView       = `(({ top, bottom, left, right }) => String(top >= 0 && bottom <= innerHeight && left >= 0 && right <= innerWidth && bottom - top > 40))(document.querySelector('[data-handle]').getBoundingClientRect())`
		bannerInView = `String([...document.querySelectorAll('[data-choose]')].every((button) => {
			const { left, right, top, bottom } = button.getBoundingClientRect();
			return button.contains(document.elementFromPoint((left + right) / 2, (top + bottom) / 2));
		}))`
		visible = `String(document.querySelector('[data-events]').checkVisibility())`
	)
	do(chromedp.Navigate(url+"/demo/"), chromedp.Evaluate[chromedp.Void](
		`localStorage.setItem('cart', '[{"id":"mug-dune","glaze":"rust","quantity":2},{"id":"cups-pebble","glaze":"ink","quantity":12}]')`))
	for _, width := range []int64{360, 320} {
		for _, path := range []string{"", "?q=mug", "?q=none", "product/mug-dune", "product/cups-pebble", "cart", "checkout", "thank-you"} {
			do(chromedp.EmulateViewport(width, 740, chromedp.EmulateMobile), chromedp.Navigate(url+"/demo/"+path))
			if got, want := ask(fits), fmt.Sprint("true", width); got != want {
				t.Errorf("/demo/%s on %d pixels: %s, want %s", path, width, got, want)
			}
			if ask(inView) != "true" {
				t.Errorf("/demo/%s on %d pixels: the handle is not in view", path, width)
			}
			if ask(bannerInView) != "true" {
				t.Errorf("/demo/%s on %d pixels: the banner's buttons cannot be reached", path, width)
			}
		}
	}

	do(chromedp.Navigate(url+"/demo/cart"), chromedp.Click(chromedp.CSS("[data-choose=yes]")))
	waitFor(`document.querySelector('[data-latest]').textContent`, "ViewCart")
	if ask(visible) != "false" {
		t.Error("the panel is open before anybody has opened it")
	}
	do(chromedp.Focus(chromedp.CSS("[data-handle]")), chromedp.KeyEvent(kb.Enter))
	waitFor(visible, "true")
	do(chromedp.Focus(chromedp.CSS("[data-ad]")), chromedp.KeyEvent(kb.Escape))
	waitFor(visible, "false")
	if ask(`String(document.activeElement.matches('[data-handle]'))`) != "true" {
		t.Error("the focus is lost in the closed panel")
	}
}

// Each page contains the two script elements of the browser installation contract, in the right order and with the demo
// merchant's tag. No page contains the API key.
func TestDemoPages(t *testing.T) {
	url, key, _ := startDev(t, t.TempDir())
	_, merchants := get(t, url+"/v1/partners/merchant", key)
	tag := regexp.MustCompile(`"tagId":"(cs_[^"]+)"`).FindStringSubmatch(merchants)
	if tag == nil {
		t.Fatalf("the demo merchant has no tag: %s", merchants)
	}
	if _, page := get(t, url+"/demo/?q=%3Ci%3E%22%7B%7Btag%7D%7D", ""); strings.Contains(page, "<i>") || strings.Count(page, "&lt;i&gt;&#34;{{tag}}") != 2 {
		t.Errorf("a search for <i>\"{{tag}} is not shown as text:\n%s", page)
	}
	for _, path := range []string{"", "?q=mug", "product/mug-dune", "cart", "checkout", "thank-you"} {
		status, page := get(t, url+"/demo/"+path, "")
		if status != 200 {
			t.Errorf("%s: %d %s", path, status, page)
		}
		init := strings.Index(page, `mtag('init', '`+url+`?tagId=`+tag[1]+`', { consent: localStorage`)
		loader := strings.Index(page, `<script async src="`+url+`/script?with=attribution">`)
		if init < 0 || loader < init {
			t.Errorf("%s: init at %d, loader at %d:\n%s", path, init, loader, page)
		}
		if strings.Contains(page, "mtp_") {
			t.Errorf("%s has an API key in it", path)
		}
	}
	if status, body := get(t, url+"/demo/events", ""); status != 200 || !strings.Contains(body, `"events":[`) || strings.Contains(body, "mtp_") {
		t.Errorf("%d %s", status, body)
	}
	for _, path := range []string{"other", "mug-dune", "product/", "product/none", "layout.html", "../demo.key"} {
		if status, _ := get(t, url+"/demo/"+path, ""); status != 404 {
			t.Errorf("%s is answered with %d", path, status)
		}
	}
}
