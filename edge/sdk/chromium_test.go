package sdk_test

import (
	"context"
	"sync/atomic"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/storage"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// chromium is headless Chromium, driven by the Chrome DevTools Protocol.
type chromium struct {
	ctx   context.Context
	close context.CancelFunc

	profiles pool[*chromiumProfile]
}

// startChromium starts Chromium with a new data directory. It resolves every host name to this machine.
func startChromium(path, dir string) (browser, error) {
	allocator, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(dir), chromedp.NoSandbox, chromedp.NoFirstRun,
		chromedp.Flag("headless", "new"), chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("ignore-certificate-errors", true),
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("disable-features", "SpareRendererForSitePerProcess"), // no process in advance for a page that may never come
		chromedp.Flag("host-resolver-rules", "MAP * 127.0.0.1"))
	ctx, close := chromedp.NewContext(allocator)
	if err := chromedp.Do(ctx); err != nil {
		cancel()
		return nil, err
	}
	return &chromium{ctx: ctx, close: func() { close(); cancel() }}, nil
}

func (c *chromium) stop() { c.close() }

func (c *chromium) newProfile() (profile, error) {
	if p, ok := c.profiles.take(); ok {
		return p, nil
	}
	ctx, cancel := chromedp.NewContext(c.ctx, chromedp.WithNewBrowserContext())
	if err := chromedp.Do(ctx); err != nil {
		cancel()
		return nil, err
	}
	return &chromiumProfile{browser: c, ctx: ctx, cancel: cancel}, nil
}

// chromiumProfile is a browser context. It has a first tab.
type chromiumProfile struct {
	browser *chromium
	ctx     context.Context
	cancel  context.CancelFunc
	inUse   bool           // the first tab is in use
	tabs    []*chromiumTab // of the test
	free    []*chromiumTab // of earlier tests
	changed bool           // a tab is not as it was
}

func (p *chromiumProfile) leave(url string) {
	for _, t := range p.tabs {
		if !t.closed && t.navigate(url) == nil {
			t.console.Store(nil)
			p.free = append(p.free, t)
		}
	}
	p.tabs = nil
}

func (p *chromiumProfile) close(reuse bool) {
	_, err := chromedp.CallBrowser(p.ctx, storage.ClearCookies,
		storage.ClearCookiesParams{BrowserContextID: chromedp.FromContext(p.ctx).BrowserContextID})
	if !reuse || p.changed || err != nil {
		p.cancel()
		return
	}
	p.browser.profiles.put(p)
}

func (p *chromiumProfile) newTab(console func(line string)) (driver, error) {
	if last := len(p.free) - 1; last >= 0 {
		t := p.free[last]
		p.free, p.tabs = p.free[:last], append(p.tabs, t)
		t.console.Store(&console)
		return t, nil
	}
	ctx, cancel := p.ctx, p.cancel
	if p.inUse {
		ctx, cancel = chromedp.NewContext(p.ctx)
	}
	p.inUse = true
	messages := chromedp.Console(ctx)
	// The first action opens the tab, and the end of its context closes the tab: so it gets ctx, not a shorter one.
	if err := chromedp.Do(ctx); err != nil {
		cancel()
		return nil, err
	}
	t := &chromiumTab{profile: p, ctx: ctx}
	t.console.Store(&console)
	p.tabs = append(p.tabs, t)
	go func() {
		for m, err := range messages {
			if err != nil {
				return // the tab is closed
			}
			if console := t.console.Load(); console != nil {
				(*console)(string(m.Type) + ": " + m.Text)
			}
		}
	}()
	return t, nil
}

func (p *chromiumProfile) cookies() ([]*network.Cookie, error) {
	jar, err := chromedp.CallBrowser(p.ctx, storage.GetCookies,
		storage.GetCookiesParams{BrowserContextID: chromedp.FromContext(p.ctx).BrowserContextID})
	if err != nil {
		return nil, err
	}
	return jar.Cookies, nil
}

// chromiumTab is a tab. It is closed with its profile.
type chromiumTab struct {
	profile *chromiumProfile
	ctx     context.Context
	console atomic.Pointer[func(line string)] // of the test; nil between tests
	closed  bool
}

func (c *chromiumTab) navigate(url string) error {
	_, err := runLimited(c.ctx, chromedp.Navigate(url))
	return err
}

func (c *chromiumTab) run(script string) error {
	_, err := runLimited(c.ctx, chromedp.Evaluate[chromedp.Void](script))
	return err
}

func (c *chromiumTab) text(expression string) (string, error) {
	return runLimited(c.ctx, chromedp.Evaluate[string](
		"Promise.resolve("+expression+").then(String)", func(p *runtime.EvaluateParams) { chromedp.EvalAwaitPromise(p) }))
}

// runLimited performs an action in a tab, for at most waitLimit.
func runLimited[T any](tab context.Context, action chromedp.Action[T]) (T, error) {
	ctx, stop := context.WithTimeout(tab, waitLimit)
	defer stop()
	value, err := chromedp.Run(ctx, action)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return value, err
}

// offline cuts nothing off. Chromium can do that too, but the network process hears of it in its own time: before and after
// a request that the page makes next.
func (c *chromiumTab) offline(is bool) error {
	c.profile.changed = true
	_, err := chromedp.Call(c.ctx, network.OverrideNetworkState,
		network.OverrideNetworkStateParams{Offline: is, DownloadThroughput: -1, UploadThroughput: -1})
	return err
}

func (c *chromiumTab) minimize() error {
	c.profile.changed = true
	window, err := chromedp.CallBrowser(c.ctx, cdpbrowser.GetWindowForTarget,
		cdpbrowser.GetWindowForTargetParams{TargetID: chromedp.FromContext(c.ctx).Target.TargetID})
	if err != nil {
		return err
	}
	_, err = chromedp.CallBrowser(c.ctx, cdpbrowser.SetWindowBounds, cdpbrowser.SetWindowBoundsParams{
		WindowID: window.WindowID, Bounds: &cdpbrowser.Bounds{WindowState: cdpbrowser.WindowStateMinimized},
	})
	return err
}

func (c *chromiumTab) close() error {
	c.closed = true
	id := chromedp.FromContext(c.ctx).Target.TargetID
	_, err := chromedp.CallBrowser(c.ctx, target.CloseTarget, target.CloseTargetParams{TargetID: id})
	return err
}
