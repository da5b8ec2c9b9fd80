// Package edge is the tag server: it takes in tracking events, resolves muids, and hands out the
// loader script (spec, Tag-server endpoints). It also owns the one HTTP server of the process, so it
// decides by the Host header whether a request is its own or the partner API's.
//
// Read in this order:
//
//	server.go    what the server is made of, how it starts and stops
//	dispatch.go  the way of every request: framing, host, surface, panics
//	plain.go     the way of a request over plain HTTP, where there is HTTPS
//	body.go      how much memory bodies may take before they have arrived
//	framing.go   what fasthttp lets through and a proxy in front might read differently
//	tag.go       the routes of a tag host, CORS, which tag a request means
//	mark.go      POST /mark: one event or a batch, on disk before the answer
//	resolve.go   POST /id
//	cookie.go    the muid in a cookie, and how it lives on
//	decode.go    the few fields that routing needs, read from an event's JSON
//	answer.go    every answer that does not change, rendered once
//	script.go    GET /script
//	conn.go      accepting under descriptor pressure, closing without losing an answer
//	open.go      the open connections, for a stop that does not wait for silent ones
//	handshake.go TLS: handshakes beside each other, limited per client
//	proxy.go     the PROXY protocol of a load balancer in front
//	metrics.go   what is counted
package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"mtagd/edge/sdk"
	"mtagd/store"
)

// Config is what a Server is made of. Hosts are as store.HostName writes them.
type Config struct {
	Engine        store.Engine
	BaseHost      string                                                     // serves the partner API
	Aliases       []string                                                   // other names of the base host (development)
	ClientTagHost string                                                     // serves client-side tags; may equal BaseHost
	PartnerAPI    fasthttp.RequestHandler                                    // everything on the base host that is not the tag server's
	PartnerError  func(ctx *fasthttp.RequestCtx, status int, message string) // writes the partner API's standard error body
	Log           *slog.Logger
	Metrics       prometheus.Registerer // nil: none registered
	Now           func() time.Time

	// With TLS, ServeTLS answers for all hosts, and ServePlain sends there whoever comes over plain HTTP.
	TLS             *tls.Config
	Challenge       func(host, path string) (answer string, ok bool) // what a CA is answered at a path over plain HTTP
	HSTS            bool                                             // browsers shall never use plain HTTP for the base host
	HandshakesPerIP int                                              // most handshakes under way for one client address; 0: any number

	// TrustedProxies are the addresses whose connections begin with a PROXY protocol header; none: nobody's
	// do.
	TrustedProxies []netip.Prefix
}

// Limits of a request and a connection.
const (
	maxHeaderBytes = 16 << 10
	readTimeout    = 15 * time.Second // from the first byte of a request to its last
	writeTimeout   = 15 * time.Second
	idleTimeout    = 60 * time.Second // between two requests of a connection
)

// Server answers for the base host, the client tag host and every host of a tag.
type Server struct {
	Config
	directory *store.Directory
	http      *fasthttp.Server // answers everything over plain HTTP
	https     *fasthttp.Server // the same, over TLS
	plain     *fasthttp.Server // sends on to HTTPS
	script    script
	metrics   *metrics
	open      connections
	stopping  atomic.Bool
}

// New makes a server; nothing runs before Serve. It fails when the metrics are registered already.
func New(cfg Config) (*Server, error) {
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	concurrency, err := maxConnections()
	if err != nil {
		return nil, err
	}
	s := &Server{
		Config:    cfg,
		directory: cfg.Engine.Directory(),
		script:    newScript(sdk.Loader()),
		metrics:   m,
	}
	s.http = s.newHTTP(s.handle, concurrency)
	s.https = s.newHTTP(s.handle, concurrency)
	s.https.ReduceMemoryUsage = true // browsers keep their connections: idle ones hold no buffers
	s.plain = s.newHTTP(s.handlePlain, concurrency)
	return s, nil
}

func (s *Server) newHTTP(handler fasthttp.RequestHandler, concurrency int) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:                      handler,
		ErrorHandler:                 s.handleUnreadable,
		ExpectHandler:                s.expect,
		HeaderReceived:               limitBody,
		ConnState:                    bodyDone,
		Logger:                       formatLogger{s.Log},
		Concurrency:                  concurrency,
		ReadBufferSize:               maxHeaderBytes,
		WriteBufferSize:              1 << 10, // the usual answer; longer ones pass it by
		MaxRequestBodySize:           store.MaxBatchBytes,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		NoDefaultServerHeader:        true,
		DisablePreParseMultipartForm: true,
		CloseOnShutdown:              true,
	}
}

// Serve answers everything over plain HTTP on a listener until Shutdown, and then returns nil. Any earlier
// return is an error, also when someone else closed the listener.
func (s *Server) Serve(ln net.Listener) error { return s.serve(s.http, s.accepting(ln)) }

// ServeTLS is as Serve, over HTTPS.
func (s *Server) ServeTLS(ln net.Listener) error {
	return s.serve(s.https, newTLSListener(s.accepting(ln), s.TLS, s.HandshakesPerIP, s.https.Concurrency, s.Log, s.metrics))
}

// ServePlain is as Serve, and answers nothing but the CA's challenges and redirects to HTTPS.
func (s *Server) ServePlain(ln net.Listener) error { return s.serve(s.plain, s.accepting(ln)) }

func (s *Server) accepting(ln net.Listener) net.Listener {
	return behindProxies(listener{ln, s.Log, &s.open}, s.TrustedProxies)
}

func (s *Server) serve(http *fasthttp.Server, ln net.Listener) error {
	err := http.Serve(ln)
	if s.stopping.Load() {
		return nil
	}
	if err == nil {
		err = errors.New("edge: listener was closed")
	}
	return err
}

// settleTime lets answers that were decided before the stop reach their connections: fasthttp
// buffers an answer while more requests of the same connection are waiting, and forgets the buffer
// when the stop falls between an answer and the next request.
const settleTime = 50 * time.Millisecond

// patience is how long a stop waits for requests that have not arrived in full, and for connections on
// which none has begun: clients open those in advance, and waiting for each one's read timeout would
// hold up every stop.
const patience = 2 * time.Second

// Shutdown stops accepting connections and returns when every running request was answered, or with
// ctx's error when that takes too long. From here on each answer closes its connection. The engine
// must stay open until Shutdown has returned.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopping.Store(true)
	select {
	case <-time.After(settleTime):
	case <-ctx.Done():
	}
	defer time.AfterFunc(patience, s.open.hurry).Stop()
	var all sync.WaitGroup
	var errs [3]error
	for i, server := range []*fasthttp.Server{s.http, s.https, s.plain} { // at once: none goes on accepting
		all.Go(func() { errs[i] = server.ShutdownWithContext(ctx) })
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// Connections is the number of open connections.
func (s *Server) Connections() int { return s.open.count() }

// maxConnections leaves an eighth of the process's descriptors, and some, to the engine's files.
func maxConnections() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	files := min(limit.Cur, fasthttp.DefaultConcurrency)
	return int(max(files-files/8, 128) - 64), nil
}

// formatLogger takes fasthttp's own words at debug level. Only the format is logged: the
// arguments carry client addresses and pieces of requests.
type formatLogger struct{ log *slog.Logger }

func (l formatLogger) Printf(format string, _ ...any) {
	l.log.Debug("http server", "event", format)
}
