package sdk_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// The hosts of the tests. Pages of the shop and the tag host are of one site, and Chromium trusts localhost as if
// it had TLS; the other shop is of another site, without TLS.
const (
	tagHost   = "tags.shop.localhost"
	shopHost  = "www.shop.localhost"
	otherHost = "www.other.test"
)

// patience bounds every wait; it is no expectation.
const patience = 40 * time.Second

// What all tests share: the program, the browser, and a service with one partner.
var (
	mtagd   string
	browser context.Context
	shared  *service
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8") // most of a test's time is waiting
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "mtagd-sdk-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	mtagd = filepath.Join(dir, "mtagd")
	if out, err := exec.Command("go", "build", "-o", mtagd, "mtagd/cmd/mtagd").CombinedOutput(); err != nil {
		return fail(fmt.Errorf("%w: %s", err, out))
	}
	stop, err := startBrowser(filepath.Join(dir, "profile"))
	if err != nil {
		return fail(err)
	}
	defer stop()
	if shared, err = startService(filepath.Join(dir, "data")); err != nil {
		return fail(err)
	}
	defer shared.kill()
	return m.Run()
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// startBrowser starts headless Chromium, in which every name leads to this machine.
func startBrowser(profile string) (stop func(), err error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("the tests of the browser tag need Chromium; make test installs it: %w", err)
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.NoSandbox, chromedp.NoFirstRun,
		chromedp.Flag("headless", "new"), chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("ignore-certificate-errors", true),
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("host-resolver-rules", "MAP * 127.0.0.1"))
	var close context.CancelFunc
	browser, close = chromedp.NewContext(allocator)
	if err := chromedp.Do(browser); err != nil {
		cancel()
		return nil, err
	}
	return func() { close(); cancel() }, nil
}

// service is a running "mtagd serve".
type service struct {
	data string
	key  string // of its one partner
	cmd  *exec.Cmd
	addr string
}

// startService makes a partner in a new data directory, and serves.
func startService(data string) (*service, error) {
	s := &service{data: data}
	var partner struct{ PartnerID string }
	if err := operate(&partner, "partner", "add", "--name", "Partner", "--data", data); err != nil {
		return nil, err
	}
	var key struct{ APIKey string }
	if err := operate(&key, "key", "issue", "--partner", partner.PartnerID, "--data", data); err != nil {
		return nil, err
	}
	s.key = key.APIKey
	return s, s.start()
}

func operate(result any, args ...string) error {
	out, err := exec.Command(mtagd, args...).Output()
	if err != nil {
		return err
	}
	return json.Unmarshal(out, result)
}

// start serves on a free port.
func (s *service) start() error {
	s.cmd = exec.Command(mtagd, "serve", "--tls", "off", "--data", s.data, "--http", "127.0.0.1:0", "--admin", "off",
		"--base-host", "api.mtagd.test", "--client-tag-host", tagHost, "--cname-target", "cname.mtagd.test", "--log-format", "json")
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		var line struct{ Msg, HTTP string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
			s.addr = line.HTTP
			go io.Copy(io.Discard, stderr)
			return nil
		}
	}
	return errors.Join(errors.New("mtagd ended before it listened"), s.cmd.Wait())
}

// kill ends the service without notice.
func (s *service) kill() {
	s.cmd.Process.Kill() // fails only when it has ended
	s.cmd.Wait()
}

// call asks the partner API.
func (s *service) call(t *testing.T, method, path string, body, result any) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(method, "http://"+s.addr+"/v1/partners"+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "api.mtagd.test"
	req.Header.Set("Authorization", "Bearer "+s.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode >= 300 || json.Unmarshal(answer, result) != nil {
		t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, answer)
	}
}

// newTag makes a merchant with a client-side tag.
func (s *service) newTag(t *testing.T) (merchantID, tagID string) {
	t.Helper()
	var merchant struct{ MerchantID string }
	s.call(t, "POST", "/merchant", map[string]string{"name": "Shop"}, &merchant)
	var tag struct{ TagID string }
	s.call(t, "POST", "/tracktag/generate", map[string]string{"merchantId": merchant.MerchantID, "type": "client-side"}, &tag)
	return merchant.MerchantID, tag.TagID
}

// world is a merchant with a client-side tag, the pages of its shop, and a browser profile that visits them.
type world struct {
	*testing.T
	service  *service
	gate     *gate
	merchant string
	tag      string
	profile  context.Context // of the browser, with its first tab
	inUse    bool            // the first tab is

	mu    sync.Mutex
	pages map[string]page // by path
	asked map[string]bool // paths that pages were asked for
}

// page is a document of a shop.
type page struct {
	html   string
	header http.Header
}

// newWorld makes a merchant in the shared service; on says which other to use.
func newWorld(t *testing.T, on ...*service) *world {
	t.Helper()
	t.Parallel()
	s := shared
	if len(on) > 0 {
		s = on[0]
	}
	w := &world{T: t, service: s, pages: map[string]page{}, asked: map[string]bool{}}
	w.merchant, w.tag = s.newTag(t)
	w.gate = newGate(w)

	profile, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	w.profile = profile
	if err := chromedp.Do(profile); err != nil {
		t.Fatal(err)
	}
	w.page("/", w.snippet(true))
	return w
}

// page sets what a path of every shop answers with: a document with that head.
func (w *world) page(path, head string, header ...string) {
	p := page{"<!doctype html><html><head><title>Shop " + path + "</title>" + head + "</head><body>Shop</body></html>", http.Header{}}
	for i := 0; i < len(header); i += 2 {
		p.header.Set(header[i], header[i+1])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pages[path] = p
}

// servePage answers the requests for shops.
func (w *world) servePage(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	p, ok := w.pages[r.URL.Path]
	w.asked[r.URL.Path] = true
	w.mu.Unlock()
	if !ok {
		http.NotFound(out, r)
		return
	}
	for name := range p.header {
		out.Header().Set(name, p.header.Get(name))
	}
	out.Header().Set("Content-Type", "text/html; charset=utf-8")
	io.WriteString(out, p.html)
}

// wasAsked reports whether a browser has asked for a path of a shop.
func (w *world) wasAsked(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[path]
}

// initCall and loader are the parts of the installation (spec, Browser installation contract).
func (w *world) initCall(consent bool) string {
	return fmt.Sprintf("window.mtrem = window.mtrem || []; function mtag() { mtrem.push(arguments); }\n"+
		"mtag('init', '%s?tagId=%s', { consent: %v });", w.gate.url(tagHost), w.tag, consent)
}

func (w *world) loader() string { return w.gate.url(tagHost) + "/script" }

func (w *world) snippet(consent bool) string {
	return "<script>" + w.initCall(consent) + "</script><script async src=" + w.loader() + "></script>"
}

// event is a record of the listing.
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
		w.service.call(w.T, "GET", "/events?"+query.Encode(), nil, &list)
		all = append(all, list.Events...)
		if !list.Pagination.HasNextPage {
			return all
		}
	}
}

// backend sends an event as a merchant's server does, and returns the status.
func (w *world) backend(event string) int {
	w.Helper()
	req, err := http.NewRequest("POST", "http://"+w.service.addr+"/mark/"+w.tag, strings.NewReader(event))
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

// names are those of events, sorted.
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
		w.Fatalf("listed: %s\nwant:   %s", got, strings.Join(wanted, " "))
	}
	return events
}

// wait waits until something is true.
func (w *world) wait(what string, isTrue func() bool) {
	w.Helper()
	for end := time.Now().Add(patience); !isTrue(); {
		if time.Now().After(end) {
			w.Fatalf("waited in vain for %s; listed: %s; requests: %v", what, names(w.events()), w.gate.seen())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// times repeats a name.
func times(n int, name string) []string { return slices.Repeat([]string{name}, n) }
