package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"mtagd/cmd/mtagd/demo"
	"mtagd/cmd/mtagd/operator"
	"mtagd/edge"
	"mtagd/edge/limit"
	"mtagd/edge/refused"
	"mtagd/partnerapi/delivery"
	"mtagd/store"
	"mtagd/store/local"
	"mtagd/tlsmgr"
)

// serve runs the service until ctx ends or a part fails.
func serve(ctx context.Context, cfg config) error {
	if err := relaxTimers(); err != nil {
		cfg.Log.Info("timers take more processor time than they need", "error", err)
	}
	for {
		d := newDaemon(cfg)
		err := d.serveUntil(ctx)
		if d.next == nil {
			return err
		}
		if err != nil {
			cfg.Log.Error("the data directory was not closed cleanly. Its data has moved to the database", "error", err)
		}
		cfg = *d.next
	}
}

// daemon is the running service: its parts, in the order in which they start.
type daemon struct {
	config
	started  time.Time
	metrics  *prometheus.Registry
	rates    *rates          // of the last minutes
	disks    *diskMetrics    // of the parts of the data directory
	refusals *limit.Refusals // counts what is refused
	refused  *refused.Memory // remembers what tag hosts refuse, for the partners

	inherited map[string]net.Listener // the sockets that were opened before the start, by name
	listeners map[string]net.Listener // those that are used

	engine   store.Engine            // events and control data
	nodes    *limit.Exchange         // limits over several nodes; nil: there is one
	http     net.Listener            // for plain HTTP
	https    net.Listener            // nil without TLS
	tlsmgr   *tlsmgr.Manager         // checks the DNS of tag hosts, and gets their certificates
	delivery *delivery.Service       // sends events on
	api      fasthttp.RequestHandler // the partner API, and what is in front of it
	shop     *demo.Shop              // nil in production
	server   *edge.Server            // the public front door
	source   *local.Source           // what backups read; nil with a database
	schedule *schedule               // of backups by the clock; nil: there are none
	marker   marker                  // the file that this server left in the data directory; zero: none

	stops    []func() error // undo the steps done so far
	failed   chan error     // gets the error of a part that has ended by itself
	migrated chan string    // gets the address of the database to which the data has moved
	next     *config        // with which the service goes on after that; nil: it ends
}

func newDaemon(cfg config) *daemon {
	return &daemon{
		config: cfg, started: time.Now(), metrics: newMetrics(), rates: newRates(),
		listeners: map[string]net.Listener{},
		failed:    make(chan error, maxParts), migrated: make(chan string, 1),
	}
}

// serveUntil starts the parts, and stops them when ctx ends or one of them fails. Each step needs the steps before it.
// They are undone in the reverse order: first the requests in progress are answered, and the engine is closed last.
func (d *daemon) serveUntil(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { err = errors.Join(err, d.stop()) }()
	for _, start := range []func(context.Context) error{
		d.inheritSockets,  // from systemd
		d.countRefusals,   // in metrics and in the log
		d.checkCopied,     // whether the data directory is the copy of a running one
		d.openData,        // the storage engine
		d.mark,            // the data directory as that of a running server
		d.shareLimits,     // with other nodes on the same database
		d.watchDomains,    // warnings of domains that could not be claimed today
		d.takePorts,       // of plain HTTP and HTTPS
		d.openTLSManager,  // DNS checks and certificates
		d.startDelivery,   // of events to where merchants want them
		d.openAPI,         // the partner API, the web console and the demo shop
		d.openEdge,        // the public server
		d.openSource,      // for backups
		d.acceptOperators, // operator commands
		d.acceptAdmins,    // metrics and health
		d.scrub,           // verifies all data in the background, slowly
		d.acceptRequests,  // from here on, the service answers
		d.startBackups,    // by the clock
		d.announce,        // in development mode
		d.tellSystemd,     // that the service answers
	} {
		if err := start(ctx); err != nil {
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return nil // stopped while it started
			}
			return err
		}
	}
	return d.wait(ctx)
}

// maxParts is how many parts run on their own: plain HTTP, HTTPS, operator commands, admin pages.
const maxParts = 4

// stopTimeout is how long requests in progress may take to finish when the service stops.
const stopTimeout = 15 * time.Second

// finishRequests closes the public server to new requests, and waits for those in progress.
func (d *daemon) finishRequests() {
	d.Log.Info("stopping")
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := d.server.Shutdown(ctx); err != nil {
		d.Log.Warn("requests were cut off", "error", err)
	}
}

// wait waits until ctx ends. If a part ends by itself before that, it returns an error.
func (d *daemon) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case to := <-d.migrated:
		return d.goOn(to)
	case err := <-d.failed:
		return fmt.Errorf("a part of the service has failed: %w", err)
	}
}

// goOn prepares to go on with a database. The sockets stay open: connections wait in them meanwhile.
func (d *daemon) goOn(database string) error {
	next := d.config
	next.Store, next.backup, next.Sockets = database, nil, map[string]net.Listener{}
	if d.backup != nil {
		d.Log.Warn("the backups of --backup-every have ended: back up the database with PostgreSQL's tools")
	}
	for name, listener := range d.listeners {
		copied, err := copyListener(listener)
		if err != nil {
			return fmt.Errorf("the data has moved to the database, and the service must be started again with --store: %w", err)
		}
		next.Sockets[name] = copied
	}
	d.next = &next
	return nil
}

// startPart runs a part in the background. When the part ends, wait learns why.
func (d *daemon) startPart(part func() error) {
	go func() { d.failed <- part() }()
}

const (
	internalStopTimeout   = 2 * time.Second // for requests in progress at a stop
	internalHeaderTimeout = 5 * time.Second
	internalIdleTimeout   = time.Minute // of a connection between requests
	internalHeaderBytes   = 16 << 10

	// maxAdminConnections is how many connections the admin pages have: the others of the process are for tags.
	maxAdminConnections = 256
)

// startInternal starts a small HTTP server beside the public one: for operator commands, or for admin pages.
func (d *daemon) startInternal(l net.Listener, h http.Handler) {
	server := &http.Server{
		Handler:           h,
		ConnContext:       operator.ConnContext,
		ReadHeaderTimeout: internalHeaderTimeout,
		IdleTimeout:       internalIdleTimeout,
		MaxHeaderBytes:    internalHeaderBytes,
		ErrorLog:          slog.NewLogLogger(d.Log.Handler(), slog.LevelWarn),
	}
	ended := make(chan struct{})
	d.startPart(func() error {
		defer close(ended)
		return server.Serve(l)
	})
	d.onStop(func() {
		ctx, cancel := context.WithTimeout(context.Background(), internalStopTimeout)
		defer cancel()
		err := server.Shutdown(ctx)
		<-ended
		// Only now is every connection that was accepted known to the server, and waited for.
		if err := errors.Join(err, server.Shutdown(ctx)); err != nil {
			d.Log.Warn("requests were cut off", "address", l.Addr().String(), "error", errors.Join(err, server.Close()))
		}
	})
}

// inBackground runs a function until the step is undone.
func (d *daemon) inBackground(run func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	d.onStop(func() {
		cancel()
		running.Wait()
	})
}

// onClose adds a function that undoes what the current step has done.
func (d *daemon) onClose(undo func() error) { d.stops = append(d.stops, undo) }

// onStop is onClose for a function that cannot fail.
func (d *daemon) onStop(undo func()) {
	d.onClose(func() error {
		undo()
		return nil
	})
}

func (d *daemon) stop() (err error) {
	for _, undo := range slices.Backward(d.stops) {
		err = errors.Join(err, undo())
	}
	return err
}
