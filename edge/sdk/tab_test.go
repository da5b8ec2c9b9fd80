package sdk_test

import (
	"context"
	"fmt"
	"strings"
	"sync"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// tab is a tab of a world's profile.
type tab struct {
	*world
	ctx context.Context

	mu      sync.Mutex
	console []string
}

// tab opens an empty tab. The test fails if a page in it throws an exception.
func (w *world) tab() *tab {
	w.Helper()
	ctx, cancel := w.profile, func() {}
	if w.inUse {
		ctx, cancel = chromedp.NewContext(w.profile)
	}
	w.inUse = true
	w.Cleanup(cancel)
	messages := chromedp.Console(ctx)
	// The first action opens the tab, and the end of its context closes the tab: so it gets ctx, not a shorter one.
	if err := chromedp.Do(ctx); err != nil {
		w.Fatal(err)
	}
	t := &tab{world: w, ctx: ctx}
	go func() {
		for m, err := range messages {
			if err != nil {
				return // the tab is closed
			}
			t.mu.Lock()
			t.console = append(t.console, string(m.Type)+": "+m.Text)
			t.mu.Unlock()
		}
	}()
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
	_, err := chromedp.CallBrowser(w.profile, target.CreateTarget, target.CreateTargetParams{
		URL: w.gate.url(shopHost) + path, BrowserContextID: chromedp.FromContext(w.profile).BrowserContextID,
	})
	if err != nil {
		w.Fatal(err)
	}
}

// run performs an action in the tab. It fails when the page does not react within waitLimit, as when a script never
// ends.
func run[T any](t *tab, action chromedp.Action[T]) (T, error) {
	ctx, stop := context.WithTimeout(t.ctx, waitLimit)
	defer stop()
	value, err := chromedp.Run(ctx, action)
	if ctx.Err() != nil {
		err = fmt.Errorf("the page does not answer: %w; requests: %v; console: %q", err, t.gate.seen(), t.lines())
	}
	return value, err
}

func (t *tab) act(action chromedp.Action[chromedp.Void]) {
	t.Helper()
	if _, err := run(t, action); err != nil {
		t.Fatal(err)
	}
}

// goTo loads a page.
func (t *tab) goTo(url string) {
	t.Helper()
	t.act(chromedp.Navigate(url))
}

// waitFor waits until the tab has navigated to a page by itself.
func (t *tab) waitFor(path string) {
	t.Helper()
	t.wait(path, func() bool {
		there, err := run(t, chromedp.Evaluate[bool](`location.pathname == '`+path+`' && document.readyState == 'complete'`))
		if err != nil {
			t.Log(err) // expected while the page is being replaced
		}
		return err == nil && there
	})
}

// minimize minimizes the window of the tab.
func (t *tab) minimize() {
	t.Helper()
	window, err := chromedp.CallBrowser(t.ctx, cdpbrowser.GetWindowForTarget,
		cdpbrowser.GetWindowForTargetParams{TargetID: chromedp.FromContext(t.ctx).Target.TargetID})
	if err == nil {
		_, err = chromedp.CallBrowser(t.ctx, cdpbrowser.SetWindowBounds, cdpbrowser.SetWindowBoundsParams{
			WindowID: window.WindowID, Bounds: &cdpbrowser.Bounds{WindowState: cdpbrowser.WindowStateMinimized},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// do runs statements in the page.
func (t *tab) do(script string, args ...any) {
	t.Helper()
	t.act(chromedp.Evaluate[chromedp.Void]("{" + fmt.Sprintf(script, args...) + "\n}"))
}

// get returns the value of an expression in the page as text. It waits for a promise.
func (t *tab) get(expression string) string {
	t.Helper()
	text, err := run(t, chromedp.Evaluate[string](
		"Promise.resolve("+expression+").then(String)", func(p *runtime.EvaluateParams) { chromedp.EvalAwaitPromise(p) }))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// close closes the tab as a user would.
func (t *tab) close() {
	t.Helper()
	id := chromedp.FromContext(t.ctx).Target.TargetID
	if _, err := chromedp.CallBrowser(t.ctx, target.CloseTarget, target.CloseTargetParams{TargetID: id}); err != nil {
		t.Fatal(err)
	}
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
