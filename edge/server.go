// Package edge is the front door of the process: it owns the listeners and connections. It reads each request,
// decides by the Host header which protocol the request is for, and passes it on: to the tag protocol (package tag)
// or to the partner API.
//
// Read in this order:
//
//	server.go      starts and stops the listeners
//	plain.go       answers plain HTTP when there is HTTPS
//	unreadable.go  answers requests that cannot be read
//	dispatch.go    answers all others: framing, host, protocol; counts and logs them
//	client.go      ends a context when the client has gone
//	body.go        limits the memory of bodies that have not arrived yet
//	target.go      reads the host, path and query of a request
//	framing.go     refuses requests that a proxy in front might read differently
//	requestid.go   gives each request an id
//	config.go      what a Server is made of
//	handshake.go   TLS: concurrent handshakes, limited per client
//	proxy.go       the PROXY protocol of a load balancer in front
//	accept.go      accepts connections, also when descriptors run out
//	conn.go        the open connections: deadlines, and how they close
//	metrics.go     counts requests and handshakes
//
// Every answer has an X-Request-Id. The id of the request is kept when it is valid, otherwise it is random. Handlers
// find it in the response header, and write it into the errors that they log. The front door logs each request at
// debug level, whatever its status: the handler that knows the cause of an error logs that. Its line names
// the partner of a request to the partner API.
package edge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"mtagd/store"
)

// Limits of a request and a connection.
const (
	maxHeaderBytes = 16 << 10
	readTimeout    = 15 * time.Second // from the first byte of a request to the last
	writeTimeout   = 15 * time.Second
	idleTimeout    = 60 * time.Second // between two requests of a connection
)

// Server answers for the base host, the client tag host and every host of a tag.
type Server struct {
	dispatcher *dispatcher
	http       *fasthttp.Server // answers everything over plain HTTP
	https      *fasthttp.Server // answers everything over TLS
	plain      *fasthttp.Server // redirects to HTTPS
	open       connections
}

// New makes a server. Nothing runs before Serve. New fails when the metrics are registered already.
func New(cfg Config) (*Server, error) {
	d, err := newDispatcher(cfg)
	if err != nil {
		return nil, err
	}
	concurrency, err := maxConnections()
	if err != nil {
		return nil, err
	}
	s := &Server{dispatcher: d}
	s.http = newHTTP(d, d.handle, concurrency)
	s.https = newHTTP(d, d.handle, concurrency)
	s.https.ReduceMemoryUsage = true // browsers keep connections open: idle ones then hold no buffers
	s.plain = newHTTP(d, d.handlePlain, concurrency)
	return s, nil
}

func newHTTP(d *dispatcher, handler fasthttp.RequestHandler, concurrency int) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:                      handler,
		ErrorHandler:                 d.handleUnreadable,
		ExpectHandler:                d.handleExpect,
		HeaderReceived:               limitBody,
		ConnState:                    connStateChanged,
		Logger:                       formatLogger{d.Log},
		Concurrency:                  concurrency,
		ReadBufferSize:               maxHeaderBytes,
		WriteBufferSize:              1 << 10, // a usual answer fits; longer ones are written without the buffer
		MaxRequestBodySize:           store.MaxBatchBytes,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		NoDefaultServerHeader:        true,
		DisablePreParseMultipartForm: true,
		CloseOnShutdown:              true,
	}
}

// Serve answers everything over plain HTTP on a listener. It returns nil after Shutdown. If it returns earlier, it
// returns an error, even when someone else has closed the listener.
func (s *Server) Serve(ln net.Listener) error { return s.serve(s.http, s.accepting(ln)) }

// ServeTLS is as Serve, over HTTPS.
func (s *Server) ServeTLS(ln net.Listener) error {
	d := s.dispatcher
	return s.serve(s.https, newTLSListener(s.accepting(ln), d.TLS, d.HandshakesPerIP, s.https.Concurrency, d.Log, d.metrics))
}

// ServePlain is as Serve, but only answers the CA's challenges and redirects all other requests to HTTPS.
func (s *Server) ServePlain(ln net.Listener) error { return s.serve(s.plain, s.accepting(ln)) }

func (s *Server) accepting(ln net.Listener) net.Listener {
	return behindProxies(retryingListener{ln, s.dispatcher.Log, &s.open}, s.dispatcher.TrustedProxies)
}

func (s *Server) serve(http *fasthttp.Server, ln net.Listener) error {
	err := http.Serve(ln)
	if s.dispatcher.stopping.Load() {
		return nil
	}
	if err == nil {
		err = errors.New("edge: listener was closed")
	}
	return err
}

// flushTime lets answers reach the client that were decided before the stop. While a connection has more requests
// waiting, fasthttp keeps its answers in a buffer, and drops the buffer when the stop comes before the next request.
const flushTime = 50 * time.Millisecond

// arrivalTime is how long a stop waits for requests that have not arrived in full, and for connections without a
// request. Clients open connections in advance: to wait for the read timeout of each would delay every stop.
const arrivalTime = 2 * time.Second

// Shutdown stops accepting connections. It returns nil when all requests that had arrived are answered, or ctx's error
// when that takes longer than ctx allows. From now on each answer closes its connection. The engine must stay open
// until Shutdown has returned.
func (s *Server) Shutdown(ctx context.Context) error {
	s.dispatcher.stopping.Store(true)
	select {
	case <-time.After(flushTime):
	case <-ctx.Done():
	}
	defer time.AfterFunc(arrivalTime, s.open.stopReading).Stop()
	var all sync.WaitGroup
	var errs [3]error
	for i, server := range []*fasthttp.Server{s.http, s.https, s.plain} { // all at once, so that none accepts any longer
		all.Go(func() { errs[i] = server.ShutdownWithContext(ctx) })
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// Connections returns the number of open connections.
func (s *Server) Connections() int { return s.open.count() }

// maxConnections leaves an eighth of the process's descriptors, and 64 more, to the engine's files.
func maxConnections() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	files := min(limit.Cur, fasthttp.DefaultConcurrency)
	return int(max(files-files/8, 128) - 64), nil
}

// formatLogger logs fasthttp's own messages at debug level. It logs the format only: the arguments hold client
// addresses and pieces of requests.
type formatLogger struct{ log *slog.Logger }

func (l formatLogger) Printf(format string, _ ...any) {
	l.log.Debug("http server", "event", format)
}
