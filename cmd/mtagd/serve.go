package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"mtagd/cmd/mtagd/demo"
	"mtagd/cmd/mtagd/operator"
	"mtagd/edge"
	"mtagd/partnerapi"
	"mtagd/store"
	"mtagd/tlsmgr"
)

// serve runs the service until ctx ends or a part fails. Its steps are in the order in which the parts need each other. They are
// undone in the reverse order: every accepted request is answered, and every acknowledged event is on disk.
func serve(ctx context.Context, cfg config) (err error) {
	if err := relaxTimers(); err != nil {
		cfg.Log.Info("timers take more processor time than they need", "error", err)
	}
	d := &daemon{config: cfg, metrics: newMetrics(), failed: make(chan error, maxParts)}
	defer func() { err = errors.Join(err, d.stop()) }()
	for _, start := range []func(context.Context) error{
		d.openData,        // the storage engine
		d.takePort,        // of plain HTTP
		d.openDNS,         // verification of tag hosts
		d.openHTTPS,       // its port, and the certificates
		d.openAPI,         // the partner API, and the demo shop
		d.openEdge,        // the public server
		d.acceptOperators, // partner and key commands
		d.acceptAdmins,    // metrics and health
		d.acceptRequests,  // from here on the service is open
		d.announce,        // in development mode
	} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	return d.wait(ctx)
}

// daemon is the running service: its parts, in the order in which they start.
type daemon struct {
	config
	metrics *prometheus.Registry

	engine   store.Engine            // events and control data
	port     net.Listener            // for plain HTTP
	verifier *tlsmgr.Verifier        // checks the DNS of tag hosts
	https    *secureSide             // nil when HTTPS is off
	api      fasthttp.RequestHandler // the partner API
	shop     *demo.Shop              // nil in production
	server   *edge.Server            // the public front door

	stops  []func() error // undo the steps done so far
	failed chan error     // why a part has ended by itself
}

// maxParts is how many parts run on their own: plain HTTP, HTTPS, operator commands, admin pages.
const maxParts = 4

// stopTimeout is how long requests in progress may take to finish when the service stops.
const stopTimeout = 15 * time.Second

// openData opens the storage engine. From then on no other process can open the data directory.
func (d *daemon) openData(context.Context) (err error) {
	if d.engine, err = openEngine(d.Data, d.Log); err != nil {
		return err
	}
	d.onStop(d.engine.Close)
	return nil
}

// takePort takes the port of --http before there is a server for it, because the system may choose the port, and the
// tag URLs of development mode contain it. Connections that arrive before the server runs wait.
func (d *daemon) takePort(context.Context) (err error) {
	if d.port, err = net.Listen("tcp", d.HTTP); err != nil {
		return fmt.Errorf("--http: %w", err)
	}
	d.onStop(func() error {
		d.port.Close() // usually the server has closed it already
		return nil
	})
	return nil
}

// openDNS prepares the verification of tag hosts.
func (d *daemon) openDNS(context.Context) (err error) {
	c := tlsmgr.Config{
		CNAMETarget:  d.CNAMETarget,
		Resolvers:    d.Resolvers,
		Port:         d.DNSPort,
		AllowPrivate: d.DNSPrivate,
		Log:          d.Log,
		Now:          time.Now,
	}
	if d.TLS != nil {
		c.CA, c.Roots = d.TLS.CA, d.TLS.Roots // CAA records must admit this CA
	}
	d.verifier, err = tlsmgr.NewVerifier(c)
	return err
}

// openHTTPS takes the port of --https and prepares the certificates, unless HTTPS is off.
func (d *daemon) openHTTPS(context.Context) (err error) {
	if d.TLS == nil {
		return nil
	}
	if d.https, err = openSecureSide(d.config, d.engine, d.verifier, d.metrics, d.port.Addr()); err != nil {
		return err
	}
	d.onStop(func() error {
		d.https.close()
		return nil
	})
	return nil
}

// openAPI makes the partner API. In development mode the demo shop is in front of it.
func (d *daemon) openAPI(ctx context.Context) (err error) {
	d.api = partnerapi.New(partnerapi.Config{
		Engine:        d.engine,
		DNS:           d.verifier,
		Certificates:  d.https.forAPI(),
		ClientTagHost: d.ClientTagHost,
		CNAMETarget:   d.CNAMETarget,
		TagURL:        d.tagURL,
		Log:           d.Log,
		Now:           time.Now,
	})
	if d.Dev == nil {
		return nil
	}
	d.shop, err = demo.Open(ctx, demo.Config{
		Engine:  d.engine,
		API:     d.api,
		URL:     d.tagURL(d.ClientTagHost),
		KeyFile: filepath.Join(d.Data, "demo.key"),
	})
	if err != nil {
		return fmt.Errorf("demo shop: %w", err)
	}
	d.api = d.shop.Serve
	return nil
}

// tagURL is the address of a tag host. In development mode it has no TLS, and the port that the service listens on.
func (d *daemon) tagURL(host string) string {
	if d.Dev == nil {
		return "https://" + host
	}
	_, port, _ := net.SplitHostPort(d.port.Addr().String()) // a listener's address has a port
	return "http://" + net.JoinHostPort(host, port)
}

// openEdge makes the public server, which decides by host what answers a request: the partner API or the tag protocol.
func (d *daemon) openEdge(context.Context) (err error) {
	c := edge.Config{
		Engine:         d.engine,
		BaseHost:       d.BaseHost,
		Aliases:        d.Aliases,
		ClientTagHost:  d.ClientTagHost,
		PartnerAPI:     d.api,
		PartnerError:   partnerapi.WriteError,
		Log:            d.Log,
		Metrics:        d.metrics,
		Now:            time.Now,
		TrustedProxies: d.Proxies,
	}
	if d.https != nil {
		c.TLS = d.https.certificates.TLSConfig()
		c.Challenge = d.https.certificates.HTTPChallenge
		c.HSTS = d.TLS.HSTS
		c.HandshakesPerIP = d.TLS.HandshakesPerIP
	}
	d.server, err = edge.New(c)
	return err
}

// acceptOperators runs the partner and key commands that arrive on the operator socket.
func (d *daemon) acceptOperators(context.Context) error {
	socket, err := operator.Listen(d.Data)
	if err != nil {
		return fmt.Errorf("operator socket: %w", err)
	}
	d.startSideDoor(newSideDoor(socket, operator.Handler(d.https.control(d.engine), d.Log), d.Log))
	return nil
}

// acceptAdmins serves the admin pages, unless they are off. From the signal to stop on, /readyz says that the service stops.
func (d *daemon) acceptAdmins(ctx context.Context) error {
	listener, err := d.Admin.listen(d.Log)
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	if listener == nil {
		return nil
	}
	ready := func() error {
		if ctx.Err() != nil {
			return errors.New("stopping")
		}
		return d.engine.Ready()
	}
	d.startSideDoor(newSideDoor(listener, adminHandler(d.metrics, ready), d.Log))
	d.Log.Info("admin listening", "address", listener.Addr().String())
	return nil
}

// acceptRequests opens the front door: requests are answered from then on, and ACME challenges too, so certificates can be ordered.
func (d *daemon) acceptRequests(ctx context.Context) error {
	addThreads()
	limitMemory(ctx, d.server.Connections)
	d.onStop(d.finishRequests)
	addresses := []any{"http", d.port.Addr().String()}
	if d.https == nil {
		d.startPart(func() error { return d.server.Serve(d.port) })
	} else {
		d.startPart(func() error { return d.server.ServePlain(d.port) })
		d.startPart(func() error { return d.server.ServeTLS(d.https.listener) })
		d.https.certificates.Start()
		addresses = append(addresses, "https", d.https.listener.Addr().String())
	}
	d.Log.Info("listening", append(addresses, "base_host", d.BaseHost, "client_tag_host", d.ClientTagHost)...)
	return nil
}

// finishRequests closes the front door and waits for the requests in progress.
func (d *daemon) finishRequests() error {
	d.Log.Info("stopping")
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := d.server.Shutdown(ctx); err != nil {
		d.Log.Warn("requests were cut off", "error", err)
	}
	return nil
}

// announce prints what there is to try, in development mode.
func (d *daemon) announce(context.Context) error {
	if d.shop == nil {
		return nil
	}
	return d.shop.Announce(d.Dev, d.Data)
}

// wait returns when ctx ends, or with an error when a part has ended by itself, for whatever reason.
func (d *daemon) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-d.failed:
		return fmt.Errorf("a part of the service has failed: %w", err)
	}
}

// startPart runs a part in the background and reports its end.
func (d *daemon) startPart(part func() error) {
	go func() { d.failed <- part() }()
}

func (d *daemon) startSideDoor(door *sideDoor) {
	d.startPart(door.accept)
	d.onStop(door.close)
}

// onStop adds what undoes the step in progress.
func (d *daemon) onStop(undo func() error) { d.stops = append(d.stops, undo) }

// stop undoes the steps, the last one first.
func (d *daemon) stop() error {
	var errs []error
	for _, undo := range slices.Backward(d.stops) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}
