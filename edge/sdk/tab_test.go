package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"mtagd/store/testenv"
)

// tab is a tab of a world's profile.
type tab struct {
	*world
	driver driver
	ctx    context.Context // the tab for chromedp, which only drives Chromium; nil in Firefox

	mu      sync.Mutex
	console []string
}

// tab opens an empty tab. The test fails if a page in it throws an exception.
func (w *world) tab() *tab {
	w.Helper()
	t := &tab{world: w}
	var err error
	t.driver, err = w.visitor.newTab(func(line string) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.console = append(t.console, line)
	})
	if err != nil {
		w.Fatal(err)
	}
	if c, ok := t.driver.(*chromiumTab); ok {
		t.ctx = c.ctx
	}
	w.Cleanup(func() {
		for _, line := range t.lines() {
			if strings.HasPrefix(line, string(chromedp.ConsoleException)) {
				w.Errorf("in the console: %s", line)
			}
		}
	})
	return t
}

// visit opens a page of the shop in a new tab.
func (w *world) visit(path string) *tab {
	w.Helper()
	t := w.tab()
	t.goTo(w.gate.url(shopHost) + path)
	return t
}

// visitUndriven opens a page of the shop in a tab that the test does not drive. It is closed with the profile.
func (w *world) visitUndriven(path string) {
	w.Helper()
	w.undriven = true
	_, err := chromedp.CallBrowser(w.profile, target.CreateTarget, target.CreateTargetParams{
		URL: w.gate.url(shopHost) + path, BrowserContextID: chromedp.FromContext(w.profile).BrowserContextID,
	})
	if err != nil {
		w.Fatal(err)
	}
}

// check ends the test when the tab has failed.
func (t *tab) check(err error) {
	t.Helper()
	if errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the page does not answer; requests: %v; console: %q", t.gate.seen(), t.lines())
	}
	if isTooOld(err) {
		testenv.Missing(t, "a newer browser, for "+t.Name()+", is not installed: "+err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// isTooOld reports whether a browser does not know a command, or its parameters.
func isTooOld(err error) bool {
	if e, ok := errors.AsType[*cdproto.Error](err); ok {
		return e.Code == -32601 || e.Code == -32602 // of JSON-RPC: no such method, invalid parameters
	}
	return errors.Is(err, errTooOld)
}

// goTo loads a page.
func (t *tab) goTo(url string) {
	t.Helper()
	t.check(t.driver.navigate(url))
}

// waitFor waits until the tab has navigated to a page by itself.
func (t *tab) waitFor(path string) {
	t.Helper()
	t.wait(path, func() bool {
		there, err := t.driver.text(`location.pathname == '` + path + `' && document.readyState == 'complete'`)
		if err != nil {
			t.Log(err) // expected while the page is being replaced
		}
		return there == "true"
	})
}

// minimize minimizes the window of the tab.
func (t *tab) minimize() {
	t.Helper()
	t.check(t.driver.minimize())
}

// do runs statements in the page.
func (t *tab) do(script string, args ...any) {
	t.Helper()
	t.check(t.driver.run("{" + fmt.Sprintf(script, args...) + "\n}"))
}

// doHeard runs statements in the page, and waits until other tabs have heard of what they change in localStorage. Chromium drops the
// storage events that are on their way to a process when that process first reads localStorage, so the other tabs read it before.
func (t *tab) doHeard(script string, by ...*tab) {
	t.Helper()
	for _, other := range by {
		other.do(`localStorage.length; window.heard = new Promise((resolve) => addEventListener('storage', ({ key }) => key == 'heard' && resolve(key)))`)
	}
	// A tab gets the storage events in order, so those of the tag come before this one.
	t.do("%s; localStorage.setItem('heard', ''); localStorage.removeItem('heard')", script)
	for _, other := range by {
		other.get(`heard`)
	}
}

// get returns the value of an expression in the page as text. It waits for a promise.
func (t *tab) get(expression string) string {
	t.Helper()
	text, err := t.driver.text(expression)
	t.check(err)
	return text
}

// close closes the tab as a user would.
func (t *tab) close() {
	t.Helper()
	t.check(t.driver.close())
}

// lines returns the lines of the console, each after its kind.
func (t *tab) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.console...)
}

// warned reports whether the tag has written a warning with that text.
func (t *tab) warned(text string) bool {
	for _, line := range t.lines() {
		if strings.HasPrefix(line, "warning: mtag:") && strings.Contains(line, text) {
			return true
		}
	}
	return false
}
