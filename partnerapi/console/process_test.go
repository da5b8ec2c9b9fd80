package console_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"mtagd/tlsmgr/dnstest"
)

// The hosts of the service under test. A proxy in front of it ends TLS, and has the pages of the shops, too.
const (
	baseHost    = "api.mtagd.test"
	tagHost     = "tags.mtagd.test"
	cnameTarget = "cname.mtagd.test"
	consoleURL  = "https://" + baseHost + "/console"
)

// waitLimit bounds every wait. Only what hangs should reach it.
const waitLimit = time.Minute

// service is a running process, as one test uses it.
type service struct {
	testing.TB
	*process
}

// process is the real program, "mtagd serve", with a proxy and a DNS of its own.
type process struct {
	program string // its file
	data    string
	address string // host:port of plain HTTP
	proxy   *httptest.Server
	zone    *zone

	mu    sync.Mutex
	shops map[string]string               // pages by host
	held  map[string]chan struct{}        // requests for these paths wait until the channel is closed
	other map[string]func(map[string]any) // change the JSON of what is answered at these paths
}

func newService(t testing.TB) *service {
	t.Helper()
	s := &service{t, &process{program: filepath.Join(t.TempDir(), "mtagd"), data: t.TempDir(), zone: &zone{records: map[string]string{}},
		shops: map[string]string{}, held: map[string]chan struct{}{}, other: map[string]func(map[string]any){}}}
	if out, err := exec.Command("go", "build", "-pgo=off", "-ldflags=-s -w", "-o", s.program, "mtagd/cmd/mtagd").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.start(dnstest.Run(t, s.zone).Address)
	target, err := url.Parse("http://" + s.address)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer // also of each request that a page breaks off
	proxy := &httputil.ReverseProxy{ModifyResponse: s.change, FlushInterval: -1, ErrorLog: stdlog.New(&log, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}}
	s.proxy = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		page, isShop := s.shops[r.Host]
		released := s.held[r.URL.Path]
		s.mu.Unlock()
		if released != nil {
			select {
			case <-released:
			case <-r.Context().Done():
			}
		}
		if isShop {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, page) // a browser that has gone needs no page
			return
		}
		// Else the answer closes the request's body, and breaks off if the proxy has not seen the end of that yet.
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			panic(err)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.proxy.Close()
		if t.Failed() {
			t.Logf("the proxy:\n%s", &log)
		}
	})
	t.Cleanup(s.proxy.CloseClientConnections) // streams do not end by themselves
	return s
}

// start runs the program until the end of the test, and waits until it listens.
func (s *service) start(resolver string) {
	s.Helper()
	_, port, _ := strings.Cut(resolver, ":")
	cmd := exec.Command(s.program, "serve", "--tls", "off", "--data", s.data, "--http", "127.0.0.1:0", "--admin", "off",
		"--base-host", baseHost, "--client-tag-host", tagHost, "--cname-target", cnameTarget,
		"--dns-resolver", resolver, "--dns-port", port, "--dns-allow-private", "--log-format", "json")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	listening, ended := make(chan string, 1), make(chan string, 1)
	go func() {
		var log strings.Builder
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			log.WriteString(lines.Text() + "\n")
			var line struct{ Msg, HTTP string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
				listening <- line.HTTP
			}
		}
		ended <- log.String()
	}()
	s.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			s.Error(err)
		}
		log := <-ended
		if err := cmd.Wait(); err != nil || s.Failed() {
			s.Logf("mtagd serve: %v\n%s", err, log)
		}
	})
	select {
	case s.address = <-listening:
	case log := <-ended:
		ended <- log
		s.Fatalf("mtagd serve ended: %s", log)
	case <-time.After(waitLimit):
		s.Fatal("mtagd serve does not listen")
	}
}

// run runs a command of the program beside the running service, and reads the JSON of its answer.
func (s *service) run(into any, args ...string) {
	s.Helper()
	cmd := exec.Command(s.program, append(args, "--data", s.data)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		s.Fatalf("mtagd %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// partner is a partner with an API key.
type partner struct {
	*service
	id, key string
}

func (s *service) newPartner(name string) *partner {
	s.Helper()
	var made struct{ ID, PartnerID string }
	s.run(&made, "partner", "add", "--name", name)
	p := &partner{service: s, id: made.ID + made.PartnerID}
	var key struct{ APIKey string }
	s.run(&key, "key", "issue", "--partner", p.id)
	p.key = key.APIKey
	return p
}

// api sends a request to the partner API, and reads the JSON of its answer into the last argument, if that is not nil.
func (p *partner) api(method, path string, body, into any) {
	p.Helper()
	answer := p.send(method, baseHost, "/v1/partners"+path, body, p.key)
	if into == nil {
		return
	}
	if err := json.Unmarshal(answer, into); err != nil {
		p.Fatalf("%s %s: %v: %s", method, path, err, answer)
	}
}

// newTag makes a merchant with a client-side tag.
func (p *partner) newTag(merchant, domain string) (merchantID, tagID string) {
	p.Helper()
	var m, t struct{ MerchantID, TagID string }
	p.api("POST", "/merchant", map[string]string{"name": merchant, "domain": domain}, &m)
	p.api("POST", "/tracktag/generate", map[string]string{"merchantId": m.MerchantID, "type": "client-side"}, &t)
	return m.MerchantID, t.TagID
}

// mark sends events to the shared tag host.
func (s *service) mark(tag string, events any) {
	s.Helper()
	s.send("POST", tagHost, "/mark/"+tag, events, "")
}

// send sends a request past the proxy. An answer of 400 or more fails the test.
func (s *service) send(method, host, path string, body any, key string) []byte {
	s.Helper()
	status, answer := s.try(method, host, path, body, key)
	if status >= 400 {
		s.Fatalf("%s %s: %d: %s", method, path, status, answer)
	}
	return answer
}

// try sends a request past the proxy, which may fail.
func (s *service) try(method, host, path string, body any, key string) (status int, answer []byte) {
	s.Helper()
	var encoded bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&encoded).Encode(body); err != nil {
			s.Fatal(err)
		}
	}
	req, err := http.NewRequest(method, "http://"+s.address+path, &encoded)
	if err != nil {
		s.Fatal(err)
	}
	req.Host = host
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		s.Fatal(err)
	}
	return resp.StatusCode, answer
}

// session signs in as another browser would. The function asks whether that is still signed in: 200, or else 401.
func (s *service) session(key string) (status func() int) {
	s.Helper()
	ask := func(method, cookie, body string) *http.Response {
		req, err := http.NewRequest(method, "http://"+s.address+"/console/session", strings.NewReader(body))
		if err != nil {
			s.Fatal(err)
		}
		req.Host = baseHost
		req.Header.Set("Cookie", cookie)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			s.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	cookie, _, ok := strings.Cut(ask("POST", "", `{"apiKey":"`+key+`"}`).Header.Get("Set-Cookie"), ";")
	if !ok {
		s.Fatal("the key does not sign in")
	}
	return func() int { return ask("GET", cookie, "").StatusCode }
}

// hold lets requests for a path wait until the returned function is called.
func (s *service) hold(path string) (release func()) {
	released := make(chan struct{})
	s.mu.Lock()
	s.held[path] = released
	s.mu.Unlock()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		delete(s.held, path)
		s.mu.Unlock()
		close(released)
	})
}

// answer changes the JSON of what is answered at a path from now on, to what needs days or other machines to come about.
func (s *service) answer(path string, change func(map[string]any)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.other[path] = change
}

// change changes an answer as answer says.
func (p *process) change(r *http.Response) error {
	p.mu.Lock()
	change := p.other[r.Request.URL.Path]
	p.mu.Unlock()
	if change == nil {
		return nil
	}
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return err
	}
	change(body)
	changed, err := json.Marshal(body)
	r.Body = io.NopCloser(bytes.NewReader(changed))
	r.ContentLength = int64(len(changed))
	r.Header.Set("Content-Length", fmt.Sprint(len(changed)))
	return err
}

// shop serves a page with a snippet at a host.
func (s *service) shop(host, snippet string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shops[host] = "<!doctype html><html lang=en><head><title>Shop</title>" + snippet + "</head><body>Shop</body></html>"
}

// zone is a resolver that knows the CNAME target, and the CNAME records that a test sets.
type zone struct {
	mu      sync.Mutex
	records map[string]string // targets by name
}

func (z *zone) set(name, target string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.records[dns.CanonicalName(name)] = dns.CanonicalName(target)
}

func (z *zone) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg).SetReply(query)
	reply.RecursionAvailable = query.RecursionDesired
	question := query.Question[0]
	name := dns.CanonicalName(question.Name)
	z.mu.Lock()
	target, found := z.records[name]
	z.mu.Unlock()
	if found {
		reply.Answer = append(reply.Answer, record("%s 60 IN CNAME %s", name, target))
		name = target
	}
	switch {
	case name == cnameTarget+"." && question.Qtype == dns.TypeA:
		reply.Answer = append(reply.Answer, record("%s 60 IN A 192.0.2.1", name))
	case name != cnameTarget+".":
		reply.Rcode = dns.RcodeNameError
	}
	w.WriteMsg(reply) // if the answer is lost, the client times out
}

func record(format string, args ...any) dns.RR {
	rr, err := dns.NewRR(fmt.Sprintf(format, args...))
	if err != nil {
		panic(err)
	}
	return rr
}
