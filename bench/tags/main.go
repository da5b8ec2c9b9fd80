// Command tags compares what browser tags cost a page: ours and those of others, in one run, in Chromium with a slowed
// processor.
//
//	make bench-tag
//
// It installs the other tags from npm into a temporary directory, and bundles each with esbuild. A server on loopback serves
// the pages and accepts all events. Each round measures three pages with each tag:
//
//	load     a new visitor's page until it is idle: main thread time, less that of a page without a tag
//	calls    1,000 calls of the tag in a row: how long the page waits for them, and their whole main thread time
//	backlog  the next page after 1,000 events were refused: main thread time, less that of a page without a tag
//
// The table has the medians. Run it on a machine that does nothing else.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
	"github.com/evanw/esbuild/pkg/api"
	"github.com/valyala/fasthttp"

	"mtagd/edge/sdk"
	"mtagd/store/testenv"
)

const (
	slowdown = 4               // how much slower than this machine the processor is
	quiet    = 2 * time.Second // how long to wait after a step for deferred work
	calls    = 1000
)

// tags are the names and scripts of the compared tags. A script starts by itself, and defines track, which makes an event.
var tags = [][2]string{
	{"none", "window.track = () => {};"},
	{"mtagd", string(sdk.Versions()[0].Loader) + `
		mtrem.push(['init', location.origin + '?tagId=cs_bench', { consent: true }]);
		window.track = (i) => mtrem.push(['event', 'Many', { value: i, currency: 'EUR' }]);`},
	{"PostHog", `
		import posthog from 'posthog-js';
		posthog.init('key', { api_host: location.origin });
		window.track = (i) => posthog.capture('Many', { value: i, currency: 'EUR' });`},
	{"Plausible", `
		import { init, track } from '@plausible-analytics/tracker';
		init({ domain: 'shop.example', endpoint: '/api/event', captureOnLocalhost: true });
		window.track = (i) => track('Many', { props: { value: i, currency: 'EUR' } });`},
	{"Snowplow", `
		import { newTracker, trackPageView, trackStructEvent } from '@snowplow/browser-tracker';
		newTracker('sp', location.origin, { appId: 'shop' });
		trackPageView();
		window.track = (i) => trackStructEvent({ category: 'shop', action: 'Many', value: i });`},
	{"Segment", `
		import { AnalyticsBrowser } from '@segment/analytics-next';
		const analytics = AnalyticsBrowser.load({ writeKey: 'key', cdnURL: location.origin });
		analytics.page();
		window.track = (i) => analytics.track('Many', { value: i, currency: 'EUR' });`},
}

// bench is a browser and the server that it sees.
type bench struct {
	browser context.Context
	server  *httptest.Server
	scripts map[string]string // by name of the tag
	refuses atomic.Bool       // the server takes no events
}

func main() {
	rounds := flag.Int("rounds", 5, "rounds; the table has their medians")
	flag.Parse()
	run(*rounds)
}

// check ends the run with an error, after the deferred calls.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

func run(rounds int) {
	dir, err := os.MkdirTemp("", "bench-tag-")
	check(err)
	defer os.RemoveAll(dir)
	b := &bench{scripts: map[string]string{}}
	b.bundle(dir)
	b.server = httptest.NewServer(b)
	defer b.server.Close()
	chromium, err := testenv.Find("chromium")
	check(err)
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.UserDataDir(filepath.Join(dir, "profile")), chromedp.Flag("headless", "new"), chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-dev-shm-usage", true))
	defer cancel()
	b.browser, cancel = chromedp.NewContext(allocator)
	defer cancel()
	check(chromedp.Do(b.browser))
	measured := map[string][4][]float64{} // by name: load, wait for the calls, whole cost of the calls, backlog
	for range rounds {
		var none [4]float64
		for _, tag := range tags {
			fmt.Fprintln(os.Stderr, tag[0]) // a round takes a minute or two
			ms := b.measure(tag[0])
			if tag[0] == "none" {
				none = ms
				continue
			}
			all := measured[tag[0]]
			for i := range ms {
				all[i] = append(all[i], ms[i]-none[i])
			}
			measured[tag[0]] = all
		}
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "main thread at CPU / %d, ms\tgzip, bytes\tload\t%d calls\tall of them\tbacklog\t\n", slowdown, calls)
	for _, tag := range tags[1:] {
		fmt.Fprintf(table, "%s\t%d", tag[0], compressed(b.scripts[tag[0]]))
		for _, all := range measured[tag[0]] {
			slices.Sort(all)
			fmt.Fprintf(table, "\t%.0f", all[len(all)/2])
		}
		fmt.Fprint(table, "\t\n")
	}
	check(table.Flush())
}

// bundle makes the scripts. Ours is the script that the tag host serves.
func (b *bench) bundle(dir string) {
	install := exec.Command("npm", "install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--silent",
		"posthog-js", "@plausible-analytics/tracker", "@snowplow/browser-tracker", "@segment/analytics-next")
	install.Dir, install.Stderr = dir, os.Stderr
	check(install.Run())
	for _, tag := range tags {
		b.scripts[tag[0]] = tag[1]
		if !strings.Contains(tag[1], "import ") {
			continue
		}
		built := api.Build(api.BuildOptions{
			Stdin:  &api.StdinOptions{Contents: tag[1], ResolveDir: dir},
			Bundle: true, MinifySyntax: true, MinifyWhitespace: true, MinifyIdentifiers: true,
			Format: api.FormatIIFE, Target: api.ES2020, Define: map[string]string{"process.env.NODE_ENV": `"production"`},
		})
		if len(built.Errors) > 0 {
			panic(tag[0] + ": " + built.Errors[0].Text)
		}
		b.scripts[tag[0]] = string(built.OutputFiles[0].Contents)
	}
}

// compressed returns the length of a script after gzip.
func compressed(script string) int {
	return len(fasthttp.AppendGzipBytesLevel(nil, []byte(script), fasthttp.CompressBestCompression))
}

// ServeHTTP serves the pages /TAG and their scripts, and answers all other requests as the tags' services would.
func (b *bench) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	if script, ok := b.scripts[strings.TrimSuffix(name, ".js")]; ok {
		if !strings.HasSuffix(name, ".js") {
			out.Header().Set("Content-Type", "text/html")
			script = "<!doctype html><title>Shop</title><script async src=/" + name + ".js></script><body>Shop"
		}
		io.WriteString(out, script)
		return
	}
	out.Header().Set("Mtag", "1")
	out.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasSuffix(r.URL.Path, "/settings"):
		host := strings.TrimPrefix(b.server.URL, "http://")
		fmt.Fprintf(out, `{"integrations":{"Segment.io":{"apiKey":"key","apiHost":%q,"protocol":"http"}}}`, host)
	case b.refuses.Load() && r.Method == http.MethodPost:
		out.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(out, "{}")
	default:
		out.WriteHeader(http.StatusCreated)
		io.WriteString(out, "{}")
	}
}

// measure returns what a tag costs a new visitor, in ms: the load, the wait for 1,000 calls, the whole cost of these calls,
// and the load after 1,000 calls whose events were refused.
func (b *bench) measure(name string) (ms [4]float64) {
	profile, end := chromedp.NewContext(b.browser, chromedp.WithNewBrowserContext())
	defer end()
	check(chromedp.Do(profile)) // opens the tab, which ends with its context
	ctx, cancel := context.WithTimeout(profile, 5*time.Minute)
	defer cancel()
	open := func(path string) { check(chromedp.Do(ctx, chromedp.Navigate(b.server.URL+"/"+path))) }
	call := func() (ms float64) {
		ms, err := chromedp.Run(ctx, chromedp.Evaluate[float64](fmt.Sprintf(
			"(() => { const t = performance.now(); for (let i = 0; i < %d; i++) track(i); return performance.now() - t })()", calls)))
		check(err)
		return ms
	}
	open("empty")
	_, err := chromedp.Call(ctx, performance.Enable, performance.EnableParams{})
	check(err)
	_, err = chromedp.Call(ctx, emulation.SetCPUThrottlingRate, emulation.SetCPUThrottlingRateParams{Rate: slowdown})
	check(err)
	b.refuses.Store(false)
	ms[0] = mainThread(ctx, func() { open(name) })
	ms[2] = mainThread(ctx, func() { ms[1] = call() })
	b.refuses.Store(true)
	call()
	open("empty")
	b.refuses.Store(false)
	ms[3] = mainThread(ctx, func() { open(name) })
	return ms
}

// mainThread does a step, and returns how long the main thread was busy with it, in ms. Nothing shows when deferred work has
// ended, so the wait is the same for all tags.
func mainThread(ctx context.Context, step func()) float64 {
	before := busy(ctx)
	step()
	time.Sleep(quiet)
	return busy(ctx) - before
}

// busy returns how long the main thread has been busy, in ms.
func busy(ctx context.Context) float64 {
	got, err := chromedp.Call(ctx, performance.GetMetrics, cdp.Empty{})
	check(err)
	for _, m := range got.Metrics {
		if m.Name == "TaskDuration" {
			return m.Value * 1000
		}
	}
	panic("the browser has no TaskDuration")
}
