package sdk_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"
	"time"
)

// gate is the only server that the browser sees. It passes requests for the tag host on to the service, unless a test
// has set a fault. It answers all other requests with pages of shops.
type gate struct {
	server *httptest.Server
	tls    *httptest.Server

	mu       sync.Mutex
	requests []request
	open     int // requests for /mark and /id without an answer yet
	fault    fault
}

// request is a request of the tag.
type request struct {
	method, path string
	query        string
	header       http.Header
	body         string
	time         time.Time
	status       int // of the answer; 0 before it
}

func (r request) String() string { return fmt.Sprintf("%s %s %d", r.method, r.path, r.status) }

// events returns the events in the body of a request.
func (r request) events() []map[string]any {
	var many []map[string]any
	if json.Unmarshal([]byte(r.body), &many) == nil {
		return many
	}
	var one map[string]any
	if json.Unmarshal([]byte(r.body), &one) == nil {
		return []map[string]any{one}
	}
	return nil
}

// fault answers a request instead of the service, or passes it on.
type fault func(out http.ResponseWriter, r *http.Request, service http.Handler)

var ports sync.Map // of gates so far

// listen listens on a port that no gate has had, so that the pages of worlds have different origins.
func listen(t testing.TB) net.Listener {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if _, had := ports.LoadOrStore(l.Addr().String(), true); !had {
			return l
		}
		defer l.Close() // until another one is found
	}
}

func newGate(w *world) *gate {
	g := &gate{}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", *w.service.addr.Load(), r.In.Host
		},
		ErrorHandler: func(out http.ResponseWriter, r *http.Request, err error) {
			panic(http.ErrAbortHandler) // the service is not running: close the browser's connection too
		},
	}
	handler := http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host)
		if host != tagHost {
			w.servePage(out, r)
			return
		}
		g.serve(out, r, forward)
	})
	server := func() *httptest.Server {
		return &httptest.Server{Listener: listen(w), Config: &http.Server{Handler: handler}}
	}
	g.server, g.tls = server(), server()
	g.server.Start()
	g.tls.StartTLS()
	w.Cleanup(func() {
		g.server.CloseClientConnections()
		g.server.Close()
		g.tls.CloseClientConnections()
		g.tls.Close()
	})
	return g
}

// url returns the URL of a host. The prefix "tls " stands for HTTPS.
func (g *gate) url(host string) string {
	if host, ok := strings.CutPrefix(host, "tls "); ok {
		_, port, _ := net.SplitHostPort(g.tls.Listener.Addr().String())
		return "https://" + host + ":" + port
	}
	_, port, _ := net.SplitHostPort(g.server.Listener.Addr().String())
	return "http://" + host + ":" + port
}

func (g *gate) serve(out http.ResponseWriter, r *http.Request, forward http.Handler) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the browser has gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	forEvents := r.URL.Path != "/script"
	g.mu.Lock()
	n := len(g.requests)
	g.requests = append(g.requests, request{method: r.Method, path: r.URL.Path, query: r.URL.RawQuery, header: r.Header.Clone(), body: string(body), time: time.Now()})
	fault := g.fault
	if forEvents {
		g.open++
	}
	g.mu.Unlock()
	recorder := &statusRecorder{ResponseWriter: out}
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.requests[n].status = recorder.status
		if forEvents {
			g.open--
		}
	}()
	if fault == nil || !forEvents {
		forward.ServeHTTP(recorder, r)
		return
	}
	fault(recorder, r, forward)
}

// statusRecorder notes the status of an answer.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (s *statusRecorder) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

func (s *statusRecorder) Write(b []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	return s.ResponseWriter.Write(b)
}

// setFault sets the fault for all later requests for /mark and /id. nil: no fault.
func (g *gate) setFault(f fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault = f
}

// refuse answers with a status, in the form of the tag host.
func refuse(status int, header ...string) fault {
	return func(out http.ResponseWriter, r *http.Request, _ http.Handler) {
		out.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		out.Header().Set("Access-Control-Allow-Credentials", "true")
		out.Header().Set("Access-Control-Expose-Headers", "Mtag, Retry-After")
		out.Header().Set("Mtag", "1")
		for i := 0; i < len(header); i += 2 {
			out.Header().Set(header[i], header[i+1])
		}
		out.WriteHeader(status)
		fmt.Fprintf(out, `{"success":false,"message":"status %d on purpose"}`, status)
	}
}

// cut ends the connection without an answer.
func cut(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// cutAnswer passes the request on to the service, and then ends the connection without an answer.
func cutAnswer(_ http.ResponseWriter, r *http.Request, service http.Handler) {
	service.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// seen returns the requests for /mark and /id so far.
func (g *gate) seen() []request {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []request
	for _, r := range g.requests {
		if r.path != "/script" {
			all = append(all, r)
		}
	}
	return all
}

// nowOpen returns the number of requests for /mark and /id that are open.
func (g *gate) nowOpen() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}
