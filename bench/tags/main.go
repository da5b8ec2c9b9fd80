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
// Each measurement is printed as it comes, and the table at the end has the medians. Run it on a machine that does nothing
// else. A tag that npm does not have comes from a file, whose script starts by itself and defines track(i), which makes an
// event. For Umami, whose tracker is in its repository at src/tracker/index.js:
//
//	(sed 's/__COLLECT_API_HOST__//; s,__COLLECT_API_ENDPOINT__,/api/send,' src/tracker/index.js | go tool esbuild --minify
//	echo 'window.track = (i) => umami.track("Many", { value: i, currency: "EUR" });') >umami.js
//	make bench-tag BENCHFLAGS="--script Umami=umami.js"
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
	limit    = 5 * time.Minute // rounds that would end later do not begin
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
	rounds := flag.Int("rounds", 3, "rounds; the table has their medians")
	flag.Func("script", "NAME=FILE, one more tag", func(value string) error {
		name, file, _ := strings.Cut(value, "=")
		script, err := os.ReadFile(file)
		tags = append(tags, [2]string{name, string(script)})
		return err
	})
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
	start := time.Now()
	for round := 0; round < rounds && (round == 0 || time.Since(start)/time.Duration(round)*time.Duration(round+1) < limit); round++ {
		var none [4]float64
		for _, tag := range tags {
			ms := b.measure(tag[0])
			if tag[0] == "none" {
				none = ms
				continue
			}
			all := measured[tag[0]]
			for i := range ms {
				ms[i] -= none[i]
				all[i] = append(all[i], ms[i])
			}
			measured[tag[0]] = all
			fmt.Fprintf(os.Stderr, "round %d: %s: %.0f\n", round+1, tag[0], ms)
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
			script = "<!doctype html><title>Shop</title><script async data-website-id=shop src=/" + name + ".js></script><body>Shop"
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
	check(chromedp.Do(profile)) // opens a tab, which ends with its context
	b.refuses.Store(false)
	ctx, end := open(profile)
	b.visit(ctx, name)
	ms[0] = busy(ctx)
	ms[1] = call(ctx)
	time.Sleep(quiet)
	ms[2] = busy(ctx) - ms[0]
	b.refuses.Store(true)
	call(ctx)
	b.visit(ctx, "empty")
	end()
	b.refuses.Store(false)
	ctx, end = open(profile)
	defer end()
	b.visit(ctx, name)
	ms[3] = busy(ctx)
	return ms
}

// open opens an empty tab, whose main thread time is counted. The browser may change the process of a tab when it navigates,
// and then counts from zero: so each page that is measured has a tab of its own.
func open(profile context.Context) (tab context.Context, end func()) {
	tab, end = chromedp.NewContext(profile)
	check(chromedp.Do(tab))
	_, err := chromedp.Call(tab, performance.Enable, performance.EnableParams{})
	check(err)
	_, err = chromedp.Call(tab, emulation.SetCPUThrottlingRate, emulation.SetCPUThrottlingRateParams{Rate: slowdown})
	check(err)
	return tab, end
}

// visit opens a page and waits for its deferred work. Nothing shows when that has ended, so the wait is the same for all tags.
func (b *bench) visit(tab context.Context, path string) {
	check(chromedp.Do(tab, chromedp.Navigate(b.server.URL+"/"+path)))
	time.Sleep(quiet)
}

// call makes 1,000 calls, and returns for how long the page waited, in ms.
func call(tab context.Context) float64 {
	ctx, cancel := context.WithTimeout(tab, 2*time.Minute)
	defer cancel()
	ms, err := chromedp.Run(ctx, chromedp.Evaluate[float64](fmt.Sprintf(
		"(() => { const t = performance.now(); for (let i = 0; i < %d; i++) track(i); return performance.now() - t })()", calls)))
	check(err)
	return ms
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
