// Package edge is the front door of the process: it owns the listeners and connections. It reads each request, decides by
// the Host header which protocol it is for, and passes it on: to the tag protocol (package tag) or to the partner API.
//
// Read in this order:
//
//	server.go       starts and stops serving
//	config.go       what a Server is made of
//	unreadable.go   answers requests that fasthttp could not read, or should not read
//	body.go         what is checked before a body is read, and before its handler is called
//	plain.go        redirects plain HTTP to HTTPS, and answers the CA's challenges
//	dispatch.go     passes each request to its protocol; counts and logs it
//	framing.go      refuses requests that a proxy in front might read differently; shows how a request line ends
//	target.go       reads the host, path and query of a request
//	client.go       contexts that end when the client has gone, or when a request must not wait any longer
//	handshake.go    TLS: the handshake of a connection; how many one client may have under way
//	listener.go     accepts connections, and finds the client of each one, also behind a load balancer
//	connections.go  the open connections: counts them, and closes idle ones to make room for new ones
//	conn.go         one connection: deadlines, the current request, and how it closes
//	bodies.go       limits the memory for large bodies
//	deadline.go     deadlines that cost little and move while data flows
//	metrics.go      counts requests, handshakes and connections
//
// Package clientaddr says what one client is, and package budget shares memory among clients.
//
// Every answer has an X-Request-Id: the client's when it sent a valid one, otherwise a random one (package requestid).
// Handlers write it into the errors that they log. The front door logs one line for each request, always at debug
// level: an error is logged by the handler that knows its cause. For the partner API it names the partner.
package edge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"mtagd/edge/limit"
	"mtagd/edge/tag"
	"mtagd/store"
)

// Timeouts of a request and a connection.
const (
	readTimeout  = 10 * time.Second // for a request of up to 16 KiB; see rateBytes for larger ones
	writeTimeout = rateInterval     // for an answer, until the client's speed counts
	idleTimeout  = 60 * time.Second // between two requests of a connection
)

// Server answers for the base host, the client tag host and every host of a tag.
type Server struct {
	Config
	directory *store.Directory
	tags      *tag.Server
	metrics   *metrics
	http      *fasthttp.Server // of Serve: answers everything over plain HTTP
	https     *fasthttp.Server // of ServeTLS: answers everything over TLS
	plain     *fasthttp.Server // of ServePlain: answers challenges and redirects to HTTPS
	open      *connections
	bodies    *bodies
}

// New makes a server. Nothing runs before Serve. New fails when the limit of open files cannot be read.
func New(cfg Config) (*Server, error) {
	most, err := maxConnections()
	if err != nil {
		return nil, err
	}
	if cfg.Limits {
		cfg.Clients = limit.NewClients(cfg.AddressEvents, cfg.Nodes, cfg.Refusals, cfg.Log)
	}
	s := &Server{
		Config: cfg, directory: cfg.Engine.Directory(), tags: tag.New(cfg.Config), metrics: newMetrics(cfg.Metrics),
		open: newConnections(), bodies: newBodies(),
	}
	s.open.limit = most
	s.open.interval = rateInterval
	s.open.perClient = min(cfg.ConnectionsPerAddress, most/clientsAtLeast)
	s.open.refusals = cfg.Refusals
	s.http = s.newHTTP(s.handle, s.needsBody)
	s.https = s.newHTTP(s.handle, s.needsBody)
	s.https.ReduceMemoryUsage = true // browsers keep connections open: idle ones then hold no buffers
	s.plain = s.newHTTP(s.handlePlain, func(*fasthttp.RequestCtx) bool { return false })
	return s, nil
}

func (s *Server) newHTTP(answer func(*fasthttp.RequestCtx, time.Time), needsBody func(*fasthttp.RequestCtx) bool) *fasthttp.Server {
	f := &front{s, answer, needsBody}
	return &fasthttp.Server{
		Handler:                      f.serve,
		ErrorHandler:                 f.handleUnreadable,
		ExpectHandler:                f.handleExpect,
		HeaderReceived:               f.headReceived,
		ConnState:                    connStateChanged,
		Logger:                       formatLogger{s.Log},
		Concurrency:                  2 * s.open.limit, // open has the limit; this one must not be reached
		ReadBufferSize:               maxHeaderBytes,
		WriteBufferSize:              1 << 10, // a usual answer fits; longer ones are written without the buffer
		MaxRequestBodySize:           store.MaxBatchBytes,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		NoDefaultServerHeader:        true,
		DisablePreParseMultipartForm: true,
	}
}

// Serve answers everything over plain HTTP on a listener of TCP connections. It returns nil after Shutdown. Before that it
// returns only with an error, also when the caller closes the listener.
func (s *Server) Serve(ln net.Listener) error { return s.serve(s.http, s.accepting(ln, nil)) }

// ServeTLS does what Serve does, over HTTPS.
func (s *Server) ServeTLS(ln net.Listener) error {
	return s.serve(s.https, s.accepting(ln, newHandshakes(s.TLS, s.HandshakesPerIP, s.Log, s.metrics)))
}

// ServePlain does what Serve does, but only answers the CA's challenges, and redirects all other requests to HTTPS.
func (s *Server) ServePlain(ln net.Listener) error { return s.serve(s.plain, s.accepting(ln, nil)) }

func (s *Server) accepting(ln net.Listener, tls *handshakes) net.Listener {
	return &listener{ln, s.open, s.TrustedProxies, tls, s.Refusals, s.Log}
}

func (s *Server) serve(http *fasthttp.Server, ln net.Listener) error {
	if !s.open.startAccepting(ln) {
		return nil
	}
	defer s.open.endAccepting(ln)
	err := http.Serve(ln)
	if s.open.stopping.Load() {
		return nil
	}
	if err == nil {
		err = errors.New("edge: listener was closed")
	}
	return err
}

// idleEnd is how long Shutdown keeps connections without a request open: a request may be on its way.
const idleEnd = 50 * time.Millisecond

// arrivalTime is how long Shutdown waits for requests that have not arrived in full, and for connections without a
// request. Clients open connections in advance: with their read timeout, every stop would take 15 seconds.
const arrivalTime = 2 * time.Second

// Shutdown stops accepting connections. It returns nil when all requests that had arrived are answered, or ctx's error when
// ctx ends first. From now on, each answer closes its connection. The engine must stay open until Shutdown has returned.
//
// It does not shut fasthttp down. That would close connections that seem idle while their next request is read and recorded,
// and drop answers that are buffered because more requests wait on the connection.
func (s *Server) Shutdown(ctx context.Context) error {
	s.open.stop()
	defer time.AfterFunc(idleEnd, func() { s.open.stopReading(func(c *conn) bool { return c.idle.Load() }) }).Stop()
	defer time.AfterFunc(arrivalTime, func() { s.open.stopReading(func(*conn) bool { return true }) }).Stop()
	return s.open.wait(ctx)
}

func (s *Server) Connections() int { return s.open.count() }

// clientsAtLeast is how many clients it takes to use all connections, when ConnectionsPerAddress limits them.
const clientsAtLeast = 8

// maxConnections returns how many connections may be open. An eighth of the descriptors, and 64 more, are the engine's.
func maxConnections() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	files := min(limit.Cur, fasthttp.DefaultConcurrency)
	return int(max(files-files/8, 128) - 64), nil
}

// formatLogger logs fasthttp's own messages at debug level. It logs only the format string: the arguments contain
// client addresses and pieces of requests.
type formatLogger struct{ log *slog.Logger }

func (l formatLogger) Printf(format string, _ ...any) {
	l.log.Debug("http server", "event", format)
}
