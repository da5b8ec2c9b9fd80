package openapi_test

import (
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"mtagd/store/testenv"
)

// TestThePageInABrowser opens the page on a phone and on a desk, in both themes.
func TestThePageInABrowser(t *testing.T) {
	testenv.NotShort(t, "a browser")
	s := newService(t)
	allocator, stop := chromedp.NewExecAllocator(t.Context(),
		chromedp.ExecPath(testenv.Program(t, testenv.Chromium...)), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.NoFirstRun,
		chromedp.Flag("headless", "new"), chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true))
	defer stop()
	ctx, closeTab := chromedp.NewContext(allocator)
	defer closeTab()
	for _, c := range []struct {
		theme  string
		width  int64
		ground string // the colour behind the text
	}{
		{"light", 320, "rgb(255, 255, 255)"},
		{"dark", 1280, "rgb(22, 24, 28)"},
	} {
		must(t, chromedp.Do(ctx, chromedp.EmulateViewport(c.width, 800)))
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: c.theme}}})
		must(t, err)
		must(t, chromedp.Do(ctx, chromedp.Navigate(s.url+"/v1/docs#listEvents")))
		width, err := chromedp.Run(ctx, chromedp.Evaluate[int64]("document.documentElement.scrollWidth"))
		must(t, err)
		if width > c.width {
			t.Errorf("%s: the page is %d pixels wide, the window %d", c.theme, width, c.width)
		}
		// Without the style, which the policy must allow, it would be transparent.
		ground, err := chromedp.Run(ctx, chromedp.Evaluate[string]("getComputedStyle(document.body).backgroundColor"))
		must(t, err)
		if ground != c.ground {
			t.Errorf("%s: the background is %s, want %s", c.theme, ground, c.ground)
		}
		top, err := chromedp.Run(ctx, chromedp.Evaluate[float64]("document.getElementById('listEvents').getBoundingClientRect().top"))
		must(t, err)
		if top < 0 || top > 100 {
			t.Errorf("%s: the anchor leads to %v pixels from the top", c.theme, top)
		}
	}
}
