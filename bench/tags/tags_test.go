// Package tags compares what browser tags cost a page: ours and those of others, in one run, in Chromium.
//
//	make bench-tag
//
// It installs the other tags from npm into a temporary directory, and bundles each with esbuild. A server on loopback serves
// the pages and accepts all events. Each round measures with each tag:
//
//	load     a new visitor's page, from its start until it is idle
//	calls    1,000 calls of the tag in a row, without what it does later
//	after    what the tag does later with them, until the page is idle
//	backlog  the next page, after 1,000 events were refused
//
// A figure is the processor time that the main thread spends in the tag's scripts, from EvaluateScript to the last
// timer, and in microtasks, as the browser's own trace has it. The longest task is a whole task in which a script ran,
// but for that of the calls. Both are multiplied by slowdown, for a slow phone. Left out are waits (for cookies,
// storage and the network), tasks without scripts (layout, most garbage collection), other threads and other processes.
// What tracing itself costs is included. On a busy machine all figures rise, by up to a half.
//
// Each measurement is printed as it comes, and the table at the end has the medians. A tag that npm does not have is
// a file, whose script starts by itself and defines track(i), which makes an event. For Umami (src/tracker/index.js):
//
//	(sed 's/__COLLECT_API_HOST__//; s,__COLLECT_API_ENDPOINT__,/api/send,' src/tracker/index.js | go tool esbuild --minify
//	echo 'window.track = (i) => umami.track("Many", { value: i, currency: "EUR" });') >umami.js
//	make bench-tag BENCHFLAGS="--script Umami=$PWD/umami.js"
package tags

import (
	"cmp"
	"context"
	"encoding/json"
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
	"testing"
	"text/tabwriter"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/tracing"
	"github.com/chromedp/chromedp"
	"github.com/evanw/esbuild/pkg/api"
	"github.com/valyala/fasthttp"

	"mtagd/edge/sdk"
	"mtagd/store/testenv"
)

const (
	slowdown = 4               // how much slower than this machine a phone is
	quiet    = 2 * time.Second // how long to wait after a step for deferred work
	calls    = 1000
	many     = ";window.many = function many() { for (let i = 0; i < %d; i++) track(i) }"
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
	*testing.B
	browser context.Context
	server  *httptest.Server
	scripts map[string]string // by name of the tag
	refuses atomic.Bool       // the server takes no events
}

var rounds = flag.Int("rounds", 3, "rounds; the table has their medians")

func init() {
	flag.Func("script", "NAME=FILE, one more tag", func(value string) error {
		name, file, _ := strings.Cut(value, "=")
		script, err := os.ReadFile(file)
		tags = append(tags, [2]string{name, string(script)})
		return err
	})
}

func (b *bench) check(err error) {
	b.Helper()
	testenv.Check(b, err)
}

func BenchmarkTags(of *testing.B) {
	chromium := testenv.Program(of, "chromium")
	dir := of.TempDir()
	b := &bench{B: of, scripts: map[string]string{}}
	b.bundle(dir)
	b.server = httptest.NewServer(b)
	b.server.URL = strings.Replace(b.server.URL, "127.0.0.1", "www.shop.localhost", 1) // as deep as most shops
	defer b.server.Close()
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.UserDataDir(filepath.Join(dir, "profile")), chromedp.Flag("headless", "new"), chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-dev-shm-usage", true))
	defer cancel()
	b.browser, cancel = chromedp.NewContext(allocator)
	defer cancel()
	b.check(chromedp.Do(b.browser))
	measured := map[string][figures][]float64{} // by name
	start := time.Now()
	for round := 0; round < *rounds && (round == 0 || time.Since(start)/time.Duration(round)*time.Duration(round+1) < limit); round++ {
		for _, tag := range tags {
			ms, all := b.measure(tag[0]), measured[tag[0]]
			for i := range ms {
				all[i] = append(all[i], ms[i])
			}
			measured[tag[0]] = all
			fmt.Fprintf(os.Stderr, "round %d: %s: %.1f\n", round+1, tag[0], ms)
		}
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "main thread at CPU / %d, ms\tgzip, bytes\tload\t%d calls\tafter\tbacklog\tlongest task\t\n", slowdown, calls)
	for _, tag := range tags {
		fmt.Fprintf(table, "%s\t%d", tag[0], compressed(b.scripts[tag[0]]))
		for _, all := range measured[tag[0]] {
			slices.Sort(all)
			fmt.Fprintf(table, "\t%.1f", all[len(all)/2])
		}
		fmt.Fprint(table, "\t\n")
	}
	b.check(table.Flush())
}

// bundle makes the scripts. Ours is the script that the tag host serves.
func (b *bench) bundle(dir string) {
	install := exec.Command("npm", "install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--silent",
		"posthog-js", "@plausible-analytics/tracker", "@snowplow/browser-tracker", "@segment/analytics-next")
	install.Dir, install.Stderr = dir, os.Stderr
	b.check(install.Run())
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
			b.Fatal(tag[0] + ": " + built.Errors[0].Text)
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
		if strings.HasSuffix(name, ".js") {
			script += fmt.Sprintf(many, calls)
		} else {
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

// figures is how many figures a measurement has: load, calls, after, backlog, longest task.
const figures = 5

// measure returns what a tag costs a new visitor, in ms.
func (b *bench) measure(name string) (ms [figures]float64) {
	profile, end := chromedp.NewContext(b.browser, chromedp.WithNewBrowserContext())
	defer end()
	b.check(chromedp.Do(profile)) // opens a tab, which ends with its context
	b.refuses.Store(false)
	var longest [3]float64
	_, ms[0], longest[0] = b.cost(profile, func() { b.visit(profile, name) })
	ms[1], ms[2], longest[1] = b.cost(profile, func() { b.call(profile) })
	b.refuses.Store(true)
	b.call(profile)
	b.visit(profile, "empty")
	b.refuses.Store(false)
	_, ms[3], longest[2] = b.cost(profile, func() { b.visit(profile, name) })
	ms[4] = slices.Max(longest[:])
	return ms
}

// visit opens a page and waits for its deferred work. Nothing shows its end, so the wait is the same for all tags.
func (b *bench) visit(tab context.Context, path string) {
	b.check(chromedp.Do(tab, chromedp.Navigate(b.server.URL+"/"+path)))
	time.Sleep(quiet)
}

// call makes 1,000 calls, and waits for their deferred work.
func (b *bench) call(tab context.Context) {
	ctx, cancel := context.WithTimeout(tab, 2*time.Minute)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Evaluate[chromedp.Void]("new Promise((done) => { setTimeout(many); setTimeout(done) })",
		func(p *runtime.EvaluateParams) { chromedp.EvalAwaitPromise(p) }))
	b.check(err)
	time.Sleep(quiet)
}

// traced is an event of Chromium's trace. Times are in µs.
type traced struct {
	Name     string
	Phase    string `json:"ph"`
	PID, TID int
	TS, Dur  float64
	CPU      float64 `json:"tdur"` // how long its thread had the processor
	Args     struct {
		Data struct{ URL, FunctionName string }
	}
}

// cost returns what the calls and the other scripts cost the main thread of a page while work is done, and the longest
// task of the latter, in ms.
func (b *bench) cost(tab context.Context, work func()) (called, sum, longest float64) {
	var events []traced
	complete := make(chan struct{})
	ctx, stop := context.WithTimeout(tab, 2*time.Minute)
	defer stop()
	b.check(chromedp.Listen(ctx, func(event any) {
		switch event := event.(type) {
		case *tracing.EventDataCollected:
			for _, text := range event.Value {
				var e traced
				if json.Unmarshal(text, &e) == nil && e.Phase == "X" { // other phases have other fields
					events = append(events, e)
				}
			}
		case *tracing.EventTracingComplete:
			close(complete)
		}
	}))
	_, err := chromedp.Call(ctx, tracing.Start, tracing.StartParams{TraceConfig: &tracing.TraceConfig{
		IncludedCategories: []string{"devtools.timeline", "disabled-by-default-devtools.timeline"},
	}})
	b.check(err)
	work()
	_, err = chromedp.Call(ctx, tracing.End, cdp.Empty{})
	b.check(err)
	<-complete
	slices.SortFunc(events, func(a, b traced) int { return cmp.Or(cmp.Compare(a.TS, b.TS), cmp.Compare(b.Dur, a.Dur)) })
	own := map[int]bool{} // processes that ran the scripts
	for _, e := range events {
		if strings.HasPrefix(e.Args.Data.URL, b.server.URL) {
			own[e.PID] = true
		}
	}
	type thread struct{ pid, tid int }
	tasks, scripts := map[thread]traced{}, map[thread]traced{} // the last that has begun
	var calling traced                                         // the task of the calls
	for _, e := range events {
		on := thread{e.PID, e.TID}
		begins := func(last map[thread]traced) bool {
			if e.TS < last[on].TS+last[on].Dur {
				return false
			}
			last[on] = e
			return true
		}
		switch {
		case e.Name == "RunTask":
			begins(tasks)
		case !own[e.PID] || e.Name != "RunMicrotasks" && !strings.HasPrefix(e.Args.Data.URL, b.server.URL):
		case e.Name == "RunMicrotasks" || e.Name == "EvaluateScript" || e.Name == "FunctionCall" || e.Name == "v8.compile":
			ms := e.CPU * slowdown / 1000
			switch first := begins(scripts); {
			case strings.HasSuffix(e.Args.Data.FunctionName, "many"):
				called += ms
				calling = tasks[on]
			case first:
				sum += ms
			}
			if tasks[on] != calling {
				longest = max(longest, tasks[on].CPU*slowdown/1000)
			}
		}
	}
	return called, sum, longest
}
