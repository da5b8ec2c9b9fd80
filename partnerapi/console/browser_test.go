package console_test

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"mtagd/store/testenv"
)

// startBrowser starts headless Chromium, which finds the hosts of a service and no others.
func startBrowser(t testing.TB, s *service) context.Context {
	t.Helper()
	rules := "MAP *.test " + s.proxy.Listener.Addr().String() + ", MAP * ~NOTFOUND"
	allocator, stop := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(testenv.Program(t, testenv.Chromium...)), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.NoFirstRun,
		chromedp.Flag("headless", "new"), chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("lang", "en-US"),
		chromedp.Flag("disable-features", "SpareRendererForSitePerProcess"), // no process in advance for a page that may never come
		chromedp.Flag("ignore-certificate-errors", true), chromedp.Flag("host-resolver-rules", rules))
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(allocator)
	t.Cleanup(closeTab)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := chromedp.CallBrowser(ctx, cdpbrowser.SetDownloadBehavior, cdpbrowser.SetDownloadBehaviorParams{Behavior: cdpbrowser.SetDownloadBehaviorBehaviorDeny})
	if err != nil {
		t.Fatal(err)
	}
	return ctx
}

// tab is a tab of its own profile. What the page may not do fails the test: an exception, a violation of the
// Content-Security-Policy, a request to another host.
type tab struct {
	testing.TB
	ctx context.Context

	mu     sync.Mutex
	faults []string
	failed []string // requests without an answer: some tests want them, and they explain why others fail
}

func newTab(t testing.TB, browser context.Context) *tab {
	t.Helper()
	ctx, closeProfile := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(closeProfile)
	b := &tab{TB: t, ctx: ctx}
	b.do(chromedp.EmulateViewport(1280, 800))
	if err := chromedp.Listen(ctx, b.watch); err != nil {
		t.Fatal(err)
	}
	_, err := chromedp.Call(ctx, cdplog.Enable, cdp.Empty{})
	if err == nil {
		_, err = chromedp.Call(ctx, network.Enable, network.EnableParams{})
	}
	if err == nil {
		_, err = chromedp.Call(ctx, runtime.Enable, cdp.Empty{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, fault := range b.faults {
			t.Errorf("the page: %s", fault)
		}
		if t.Failed() {
			t.Logf("failed requests: %q", b.failed)
		}
	})
	return b
}

func (b *tab) watch(event any) {
	fault := ""
	switch e := event.(type) {
	case *cdplog.EventEntryAdded:
		if e.Entry.Source == cdplog.EntrySourceSecurity || strings.Contains(e.Entry.Text, "Content Security Policy") {
			fault = e.Entry.Text
		}
	case *runtime.EventExceptionThrown:
		fault = e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			fault += " " + e.ExceptionDetails.Exception.Description
		}
	case *network.EventLoadingFailed:
		b.mu.Lock()
		b.failed = append(b.failed, e.ErrorText)
		b.mu.Unlock()
	case *network.EventRequestWillBeSent:
		u, err := url.Parse(e.Request.URL)
		if err != nil || u.Scheme != "data" && u.Scheme != "blob" && u.Host != baseHost {
			fault = "it has requested " + e.Request.URL
		}
	}
	if fault != "" {
		b.mu.Lock()
		b.faults = append(b.faults, fault)
		b.mu.Unlock()
	}
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	// The first action opens the tab, which lives as long as its context: so that gets none with a limit.
	if chromedp.FromContext(b.ctx).Target == nil {
		ctx = b.ctx
	}
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.Fatal(err)
	}
}

// ask returns the value of an expression, or of its promise, as text.
func (b *tab) ask(expression string) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	answer, err := chromedp.Run(ctx, chromedp.Evaluate[string]("Promise.resolve("+expression+").then(String)", chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatalf("%s: %v", expression, err)
	}
	return answer
}

// open shows a page of the console.
func (b *tab) open(path string) {
	b.Helper()
	b.do(chromedp.Navigate(consoleURL + path))
}

// wait waits until an expression is true.
func (b *tab) wait(what, expression string) {
	b.Helper()
	for end := time.Now().Add(waitLimit); b.ask("Boolean("+expression+")") != "true"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("no %s at %s; the page says:\n%s", what, b.ask("location.href"), b.ask("document.body.innerText"))
		}
	}
}

// see waits until a text is on the page.
func (b *tab) see(text string) {
	b.Helper()
	b.wait(strconv.Quote(text), "document.body?.innerText.replace(/\\s+/g, ' ').includes("+strconv.Quote(text)+")")
}

// gone waits until a text is not on the page any more.
func (b *tab) gone(text string) {
	b.Helper()
	b.wait("end of "+strconv.Quote(text), "document.body?.innerText.includes("+strconv.Quote(text)+") === false")
}

// named is a function of the page: the element that can be used, and has a name. Only those in an open dialog count, and
// those in the header come last.
const named = `((name) => {
	const scope = document.querySelector('dialog[open]') ?? document;
	const all = [...scope.querySelectorAll('button, a[href], summary, label, input[aria-label], select[aria-label]')];
	all.sort((a, b) => Boolean(a.closest('header')) - Boolean(b.closest('header')));
	const text = (e) => (e.getAttribute('aria-label') ?? e.innerText).replace(/\s+/g, ' ').trim();
	return all.find((e) => e.checkVisibility() && text(e) === name) ?? all.find((e) => e.checkVisibility() && e.localName === 'label' && text(e).startsWith(name));
})`

// click clicks on what has a name, with the mouse.
func (b *tab) click(name string) {
	b.Helper()
	find := named + "(" + strconv.Quote(name) + ")"
	b.wait(strconv.Quote(name)+" to click on", find)
	place := func() string {
		return b.ask(`((e) => {
			e?.scrollIntoView({ block: 'center', behavior: 'instant' });
			const { left, top, width, height } = e?.getBoundingClientRect() ?? {};
			return (left + Math.min(width / 2, 40)) + ' ' + (top + height / 2);
		})(` + find + `)`)
	}
	at := ""
	for next := place(); next != at; next = place() { // what still loads may move it
		at = next
		time.Sleep(100 * time.Millisecond)
	}
	var x, y float64
	if _, err := fmt.Sscan(at, &x, &y); err != nil {
		b.Fatal(err)
	}
	b.do(chromedp.MouseClickXY(x, y))
}

// fill replaces the text of the field with a label.
func (b *tab) fill(label, text string) {
	b.Helper()
	find := `((e) => e?.localName === 'label' ? e.control : e)(` + named + "(" + strconv.Quote(label) + "))"
	b.wait("field "+strconv.Quote(label), find)
	b.ask(`((e) => { e.focus(); e.select(); })(` + find + `)`)
	b.do(chromedp.KeyEvent(kb.Delete), chromedp.KeyEvent(text))
}

// choose chooses an option of the select with a label.
func (b *tab) choose(label, value string) {
	b.Helper()
	find := "((e) => e?.control ?? e)(" + named + "(" + strconv.Quote(label) + "))"
	b.wait(fmt.Sprintf("option %q of %q", value, label), fmt.Sprintf("[...%s?.options ?? []].some((o) => o.value === %q)", find, value))
	b.ask(fmt.Sprintf("((e) => { e.value = %q; e.dispatchEvent(new Event('change', { bubbles: true })); })(%s)", value, find))
}

func (b *tab) signIn(key string) {
	b.Helper()
	b.fill("API key", key)
	b.do(chromedp.KeyEvent(kb.Enter))
}

// look sets the theme and the size of the window.
func (b *tab) look(theme string, width, height int64) {
	b.Helper()
	b.do(chromedp.EmulateViewport(width, height))
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
	if err != nil {
		b.Fatal(err)
	}
}
