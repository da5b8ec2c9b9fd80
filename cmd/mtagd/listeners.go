package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"

	"mtagd/cmd/mtagd/operator"
)

// acceptOperators runs the commands that arrive on the operator socket. With a database, commands do without it if need be.
func (d *daemon) acceptOperators(ctx context.Context) error {
	socket, err := d.listenForOperators(ctx)
	if d.Store != "" && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)) {
		d.Log.Warn("there is no operator socket: commands open the database themselves", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("operator socket: %w", err)
	}
	running := operator.Running{Control: d.engine, BaseURL: d.tagURL(d.BaseHost), Claimable: d.claimable()}
	if d.hasTLS() {
		running.Order = d.tlsmgr.Certificates.Order
	}
	if d.delivery != nil {
		running.RotateKey = d.delivery.RotateKey
	}
	mux := operator.Handler(running)
	handleVerify(mux, d.engine.Verify)
	if d.source != nil {
		handleBackup(mux, d.source)
		d.acceptMigration(mux)
	}
	d.startInternal(socket, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", version()) // for commands of another version
		mux.ServeHTTP(w, r)
	}))
	return nil
}

// listenForOperators opens the operator socket. Without a database, the engine has made the data directory and locked it.
func (d *daemon) listenForOperators(ctx context.Context) (net.Listener, error) {
	if d.Store != "" {
		if err := os.MkdirAll(d.Data, 0o700); err != nil {
			return nil, err
		}
		if serverRuns(ctx, d.Data) {
			return nil, fmt.Errorf("another server uses %s: each node needs a --data of its own", d.Data)
		}
	}
	return operator.Listen(d.Data)
}

// serverRuns reports whether a server runs on a data directory.
func serverRuns(ctx context.Context, data string) bool {
	conn, err := operator.Dial(ctx, data)
	return err == nil && conn.Close() == nil
}

// acceptMigration lets a command move all data to a database. Its run ends before the engine closes.
func (d *daemon) acceptMigration(mux *http.ServeMux) {
	ctx, cancel := context.WithCancel(context.Background())
	wait := handleMigration(ctx, mux, d.engine, d.Log, func(to string) { d.migrated <- to })
	d.onStop(func() {
		cancel()
		wait()
	})
}

// acceptAdmins serves the admin pages, unless they are off. After the signal to stop, /readyz says so.
func (d *daemon) acceptAdmins(ctx context.Context) error {
	if d.Admin == adminOff {
		return nil
	}
	listener, err := d.listen(socketAdmin, d.Admin)
	if d.AdminOptional && errors.Is(err, syscall.EADDRINUSE) {
		d.Log.Warn("no admin pages: another program uses their default address; choose another address with --admin", "address", d.Admin)
		return nil
	}
	if err != nil {
		return err
	}
	ready := func() error {
		if ctx.Err() != nil {
			return errors.New("stopping")
		}
		return d.engine.Ready()
	}
	exportGauge(d.metrics, "mtagd_ready", "1 while events are accepted, else 0; /readyz says why.", func() float64 {
		if ready() != nil {
			return 0
		}
		return 1
	})
	impaired := func() error { return nil }
	if e, ok := d.engine.(interface{ Impaired() error }); ok { // a database has its own ways
		impaired = e.Impaired
	}
	pages := guardAdmin(adminPages(prometheus.Gatherers{d.metrics, d.rates.counters}, ready, impaired), ready, d.AdminToken, d.refusals)
	d.startInternal(netutil.LimitListener(listener, maxAdminConnections), pages)
	d.Log.Info("admin listening", "address", listener.Addr().String())
	return nil
}

// scrub verifies all data in the background. Of the nodes of a database, one does.
func (d *daemon) scrub(context.Context) error {
	d.inBackground(newScrubber(d.engine.Verify, sharedOf(d.engine), d.metrics, d.Log).run)
	return nil
}

// acceptRequests starts the public server. It also answers ACME challenges, so certificates can be ordered from then on.
func (d *daemon) acceptRequests(ctx context.Context) error {
	limitMemory(ctx, d.server.Connections)
	d.onStop(d.finishRequests)
	addresses := []any{"http", d.http.Addr().String()}
	if !d.hasTLS() {
		d.startPart(func() error { return d.server.Serve(d.http) })
	} else {
		d.startPart(func() error { return d.server.ServePlain(d.http) })
		d.startPart(func() error { return d.server.ServeTLS(d.https) })
		addresses = append(addresses, "https", d.https.Addr().String())
	}
	d.tlsmgr.Start()
	d.Log.Info("listening", append(addresses, "base_host", d.BaseHost, "client_tag_host", d.ClientTagHost)...)
	return nil
}

// startBackups backs up by the clock, if a destination was given.
func (d *daemon) startBackups(ctx context.Context) error {
	if d.schedule != nil {
		d.onStop(d.schedule.runInBackground(ctx))
	}
	return nil
}

// announce prints, in development mode, the addresses, a link to the console and the API key.
func (d *daemon) announce(ctx context.Context) error {
	if d.shop == nil {
		return nil
	}
	return d.shop.Announce(ctx, d.Dev, d.Data)
}

// tellSystemd tells systemd that the service answers, then whether it accepts events, and first of all when it stops.
func (d *daemon) tellSystemd(context.Context) error {
	stop, err := startWatchdog(d.engine.Ready, d.Log)
	d.onStop(func() { stop(d.next == nil) })
	return err
}

// The names of the listening sockets (FileDescriptorName= of a systemd socket unit).
const (
	socketHTTP  = "http"
	socketHTTPS = "https"
	socketAdmin = "admin"
)

// inheritSockets takes the listening sockets that systemd has opened for the service (sd_listen_fds(3)). systemd keeps them
// open while the service restarts, so no connection is refused: it waits in its socket. The flags' addresses are not used.
func (d *daemon) inheritSockets(context.Context) error {
	if d.inherited = d.Sockets; d.inherited != nil {
		return nil // those from before a migration
	}
	d.inherited = map[string]net.Listener{}
	for _, file := range activation.Files(true) {
		name := file.Name()
		listener, err := inherit(d.config, name, file)
		if err == nil && d.inherited[name] != nil {
			err = errors.New("the name is given twice: a socket unit must have one ListenStream=")
		}
		if err != nil {
			return &usageError{where: fmt.Sprintf("socket %q of systemd", name), err: err}
		}
		d.inherited[name] = listener
	}
	return nil
}

// inherit checks a socket and takes it. It refuses what the service would not use: there connections would wait for ever.
func inherit(cfg config, name string, file *os.File) (net.Listener, error) {
	switch {
	case name != socketHTTP && name != socketHTTPS && name != socketAdmin:
		return nil, errors.New("the name is unknown: set FileDescriptorName= to http, https or admin")
	case name == socketHTTPS && !cfg.hasTLS():
		return nil, errors.New("HTTPS is off (--tls off): disable the socket unit")
	case name == socketAdmin && cfg.Admin == adminOff:
		return nil, errors.New("the admin pages are off (--admin off): disable the socket unit")
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	file.Close() // the listener has a copy
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, errors.New("not a TCP socket")
	}
	if at, err := netip.ParseAddrPort(tcp.Addr().String()); name == socketAdmin && cfg.AdminToken == "" && (err != nil || !at.Addr().Unmap().IsLoopback()) {
		return nil, fmt.Errorf("without --admin-token, the admin pages are served at loopback addresses only, not at %s", tcp.Addr())
	}
	return listener, nil
}

// copyListener returns another listener of the same socket. Closing one of them leaves the socket open.
func copyListener(l net.Listener) (net.Listener, error) {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("not a TCP socket: %s", l.Addr())
	}
	file, err := tcp.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return net.FileListener(file)
}
