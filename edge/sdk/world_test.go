package sdk_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/partnerapi"
	"mtagd/store"
	"mtagd/store/testenv"
)

// world is a merchant with a client-side tag, the pages of its shop, and a browser profile that visits them.
type world struct {
	testing.TB
	service  *service
	gate     *gate
	merchant string
	tag      string
	visitor  profile         // the browser profile
	profile  context.Context // the same for chromedp, which only drives Chromium; nil in Firefox
	undriven bool            // it has a tab that the test does not drive

	mu    sync.Mutex
	pages map[string]page // by path
	asked map[string]bool // paths that were requested
}

// page is a document of a shop.
type page struct {
	html   string
	header http.Header
}

// newWorld makes a merchant in the shared service, or in another one.
func newWorld(t testing.TB, on ...*service) *world {
	t.Helper()
	if t, ok := t.(*testing.T); ok {
		t.Parallel()
	}
	if browserOf(t) == nil {
		testenv.Program(t, testenv.Chromium...)
	}
	s := shared
	if len(on) > 0 {
		s = on[0]
	}
	w := &world{TB: t, service: s, pages: map[string]page{}, asked: map[string]bool{}}
	w.merchant, w.tag = s.newTag(t)
	var err error
	if w.visitor, err = browserOf(t).newProfile(); err != nil {
		t.Fatal(err)
	}
	// No answer brings a cookie after the gate is closed. Pages in the back/forward cache do not end.
	t.Cleanup(func() { w.visitor.close(!t.Failed() && !w.undriven && !strings.Contains(t.Name(), "BackForwardCache")) })
	w.gate = newGate(w)
	t.Cleanup(func() {
		if !t.Failed() { // a page that does not answer does not end
			w.page("/left", "")
			w.visitor.leave(w.gate.url(shopHost) + "/left")
		}
	})
	if c, ok := w.visitor.(*chromiumProfile); ok {
		w.profile = c.ctx
	}
	w.page("/", w.snippet(true))
	return w
}

// page sets the document at a path, for the hosts of all shops.
func (w *world) page(path, head string, header ...string) {
	p := page{"<!doctype html><html><head><title>Shop " + path + "</title>" + head + "</head><body>Shop</body></html>", http.Header{}}
	for i := 0; i < len(header); i += 2 {
		p.header.Set(header[i], header[i+1])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pages[path] = p
}

// servePage answers a request to the host of a shop.
func (w *world) servePage(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	p, ok := w.pages[r.URL.Path]
	w.asked[r.URL.Path] = true
	w.mu.Unlock()
	if !ok {
		http.NotFound(out, r)
		return
	}
	out.Header().Set("Content-Type", "text/html; charset=utf-8")
	for name := range p.header {
		out.Header().Set(name, p.header.Get(name))
	}
	io.WriteString(out, p.html)
}

// wasAsked reports whether the browser has requested a path of a shop.
func (w *world) wasAsked(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[path]
}

// snippet returns the installation snippet of the partner API, with the choice of consent that a site fills in.
func (w *world) snippet(consent bool) string {
	snippet := partnerapi.Snippet(w.gate.url(tagHost), store.TagID(w.tag))
	return strings.Replace(snippet, "consent: false", fmt.Sprintf("consent: %v", consent), 1)
}

// initCall returns the script of the snippet's first element.
func (w *world) initCall(consent bool) string {
	first, _, _ := strings.Cut(w.snippet(consent), "</script>")
	return strings.TrimPrefix(first, "<script>")
}

// loader returns the source of the snippet's second element.
func (w *world) loader() string { return w.gate.url(tagHost) + "/script" }

// event is a listed event.
type event struct {
	ID        string
	MUID      string
	EventName string         `json:"event_name"`
	EventTime string         `json:"event_time"`
	RawData   map[string]any `json:"raw_data"`
}

// events lists the merchant's events, oldest first.
func (w *world) events() []event {
	w.Helper()
	var all []event
	for page := 1; ; page++ {
		var list struct {
			Events     []event
			Pagination struct{ HasNextPage bool }
		}
		query := url.Values{"merchantId": {w.merchant}, "limit": {"100"}, "sortOrder": {"asc"}, "page": {fmt.Sprint(page)}}
		w.service.call(w.TB, "GET", "/events?"+query.Encode(), nil, &list)
		all = append(all, list.Events...)
		if !list.Pagination.HasNextPage {
			return all
		}
	}
}

// backend sends an event as a merchant's server does, and returns the status.
func (w *world) backend(event string) int {
	w.Helper()
	req, err := http.NewRequest("POST", "http://"+*w.service.addr.Load()+"/mark/"+w.tag, strings.NewReader(event))
	if err != nil {
		w.Fatal(err)
	}
	req.Host = tagHost
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// names returns the names of events, sorted.
func names(events []event) string {
	var all []string
	for _, e := range events {
		all = append(all, e.EventName)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// want waits until the listing has these events, each as often as it is named, and returns them.
func (w *world) want(wanted ...string) []event {
	w.Helper()
	slices.Sort(wanted)
	var events []event
	w.wait("the events", func() bool {
		events = w.events()
		return len(events) >= len(wanted)
	})
	if got := names(events); got != strings.Join(wanted, " ") {
		w.Fatalf("listed: %s\nwant:   %s\nevents: %v\nrequests: %v", got, strings.Join(wanted, " "), events, w.gate.seen())
	}
	return events
}

// wait waits until something is true.
func (w *world) wait(what string, isTrue func() bool) {
	w.Helper()
	if !w.waitUpTo(waitLimit, isTrue) {
		w.Fatalf("waited in vain for %s; listed: %s; requests: %v", what, names(w.events()), w.gate.seen())
	}
}

// waitUpTo waits until something is true, and reports whether it is. It looks at least once.
func (w *world) waitUpTo(limit time.Duration, isTrue func() bool) bool {
	w.Helper()
	for end := time.Now().Add(limit); !isTrue(); {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(100 * time.Millisecond) // many tests wait at a time, and each look costs the browser something
	}
	return true
}

// repeat returns a name n times.
func repeat(n int, name string) []string { return slices.Repeat([]string{name}, n) }
