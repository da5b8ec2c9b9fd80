package openapi_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"mtagd/store/testenv"
)

// TestThePageInABrowser opens the page on a phone and on a desk. It must have each operation and each schema, and show what
// an operation takes, answers and how it is called.
func TestThePageInABrowser(t *testing.T) {
	testenv.NotShort(t, "a browser")
	s := newService(t)
	allocator, stop := chromedp.NewExecAllocator(t.Context(),
		chromedp.ExecPath(testenv.Program(t, testenv.Chromium...)), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.NoFirstRun,
		chromedp.Flag("headless", "new"), chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-features", "SpareRendererForSitePerProcess"), // no process in advance for a page that may never come
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true))
	defer stop()
	ctx, closeTab := chromedp.NewContext(allocator)
	defer closeTab()
	evaluate := func(script string) string {
		text, err := chromedp.Run(ctx, chromedp.Evaluate[string](script))
		must(t, err)
		return text
	}
	const opened = "#operations-Events-listEvents.is-open"
	for _, width := range []int64{320, 1280} {
		must(t, chromedp.Do(ctx, chromedp.EmulateViewport(width, 800)))
		must(t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
		must(t, chromedp.Do(ctx, chromedp.Navigate(s.url+"/v1/docs#/Events/listEvents")))
		must(t, chromedp.Do(ctx, chromedp.WaitVisible(chromedp.CSS(opened+" pre.example"))))
		if shown, err := chromedp.Run(ctx, chromedp.Evaluate[int]("document.querySelectorAll('.opblock').length")); err != nil || shown != len(s.document.Operations()) {
			t.Errorf("the page has %d operations, want %d: %v", shown, len(s.document.Operations()), err)
		}
		if shown, err := chromedp.Run(ctx, chromedp.Evaluate[int]("document.querySelectorAll('.models .json-schema-2020-12-accordion, .models .model-container').length")); err != nil || shown < len(s.document.Components.Schemas) {
			t.Errorf("the page has %d schemas, want %d: %v", shown, len(s.document.Components.Schemas), err)
		}
		text := evaluate("document.querySelector('" + opened + "').innerText")
		for _, part := range []string{"startDate", "sortOrder", "401", "currentPage", "curl '" + s.url + "/v1/partners/events?merchantId="} {
			if !strings.Contains(text, part) {
				t.Errorf("the operation does not show %q:\n%s", part, text)
			}
		}
		if wide, err := chromedp.Run(ctx, chromedp.Evaluate[int64]("document.documentElement.scrollWidth")); err != nil || wide > width {
			t.Errorf("the page is %d pixels wide, the window %d: %v", wide, width, err)
		}
		// Without the style, which the policy must allow, it would be transparent.
		if colour := evaluate("getComputedStyle(document.querySelector('" + opened + "')).borderTopColor"); colour != "rgb(97, 175, 254)" {
			t.Errorf("the border of the operation is %s", colour)
		}
	}
}
