// Package edge is the tag server: it takes in tracking events, resolves muids, and hands out the
// loader script (spec, Tag-server endpoints). It also owns the one HTTP server of the process, so it
// decides by the Host header whether a request is its own or the partner API's.
//
// Read in this order:
//
//	server.go    what the server is made of, how it starts and stops
//	dispatch.go  the way of every request: framing, host, surface, panics
//	framing.go   what fasthttp lets through and a proxy in front might read differently
//	tag.go       the routes of a tag host, CORS, which tag a request means
//	mark.go      POST /mark: one event or a batch, on disk before the answer
//	resolve.go   POST /id
//	decode.go    the few fields that routing needs, read from an event's JSON
//	answer.go    every answer that does not change, rendered once
//	script.go    GET /script
//	conn.go      accepting under descriptor pressure, closing without losing an answer
//	open.go      the open connections, for a stop that does not wait for silent ones
//	metrics.go   what is counted
package edge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"mtagd/edge/sdk"
	"mtagd/store"
)

// Config is what a Server is made of.
type Config struct {
	Engine        store.Engine
	BaseHost      string                                                     // serves the partner API
	ClientTagHost string                                                     // serves client-side tags; may equal BaseHost
	PartnerAPI    fasthttp.RequestHandler                                    // everything on the base host that is not the tag server's
	PartnerError  func(ctx *fasthttp.RequestCtx, status int, message string) // writes the partner API's standard error body
	Demo          fasthttp.RequestHandler                                    // nil, or what answers below /demo/ on the client tag host (development)
	Log           *slog.Logger
	Metrics       prometheus.Registerer // nil: none registered
	Now           func() time.Time
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
	http      *fasthttp.Server
	script    script
	metrics   *metrics
	open      connections
	stopping  atomic.Bool
}

// New makes a server; nothing runs before Serve. It fails when the metrics are registered already.
func New(cfg Config) (*Server, error) {
	cfg.BaseHost = store.HostName(cfg.BaseHost)
	cfg.ClientTagHost = store.HostName(cfg.ClientTagHost)
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
	s.http = &fasthttp.Server{
		Handler:                      s.handle,
		ErrorHandler:                 s.handleUnreadable,
		ExpectHandler:                s.expect,
		Logger:                       formatLogger{cfg.Log},
		Concurrency:                  concurrency,
		ReadBufferSize:               maxHeaderBytes,
		MaxRequestBodySize:           store.MaxBatchBytes,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		NoDefaultServerHeader:        true,
		DisablePreParseMultipartForm: true,
		CloseOnShutdown:              true,
	}
	return s, nil
}

// Serve answers plain HTTP on a listener until Shutdown, and then returns nil. Any earlier return is
// an error, also when someone else closed the listener.
func (s *Server) Serve(ln net.Listener) error {
	err := s.http.Serve(listener{ln, s.Log, &s.open})
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
	return s.http.ShutdownWithContext(ctx)
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
