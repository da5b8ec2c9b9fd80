package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"

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
		running.Order = d.tlsmgr.Certificates().Order
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

// listenForOperators opens the operator socket. Without a database, the engine has made the data directory, and no other server has
// it open.
func (d *daemon) listenForOperators(ctx context.Context) (net.Listener, error) {
	if d.Store != "" {
		if err := os.MkdirAll(d.Data, 0o700); err != nil {
			return nil, err
		}
		if other, err := operator.Dial(ctx, d.Data); err == nil {
			return nil, errors.Join(fmt.Errorf("another server uses %s: each node needs a --data of its own", d.Data), other.Close())
		}
	}
	return operator.Listen(d.Data)
}

// acceptMigration lets a command move all data to a database. Its run ends before the engine closes.
func (d *daemon) acceptMigration(mux *http.ServeMux) {
	ctx, cancel := context.WithCancel(context.Background())
	wait := handleMigration(ctx, mux, d.engine, d.Log, func(to string) { d.migrated <- to })
	d.onStop(func() error {
		cancel()
		wait()
		return nil
	})
}

// acceptAdmins serves the admin pages, unless they are off. After the signal to stop, /readyz answers that the service
// is stopping.
func (d *daemon) acceptAdmins(ctx context.Context) error {
	listener := d.inherited[socketAdmin]
	if listener == nil {
		var err error
		if listener, err = listenAdmin(d.Admin, d.AdminOptional, d.Log); err != nil {
			return fmt.Errorf("--admin: %w", err)
		}
	}
	if listener == nil {
		return nil
	}
	d.listeners[socketAdmin] = listener
	ready := func() error {
		if ctx.Err() != nil {
			return errors.New("stopping")
		}
		return d.engine.Ready()
	}
	exportReady(d.metrics, ready)
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
	s := newScrubber(d.engine.Verify, d.metrics, d.Log)
	if shared := sharedOf(d.engine); shared != nil {
		d.inBackground(func(ctx context.Context) { s.runShared(ctx, shared) })
	} else {
		d.inBackground(s.run)
	}
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
	if d.backup != nil {
		d.onStop(newSchedule(*d.backup, d.source, d.backups, d.metrics, d.Log).runInBackground(ctx))
	}
	return nil
}

// announce prints, in development mode, the addresses and what signs in.
func (d *daemon) announce(ctx context.Context) error {
	if d.shop == nil {
		return nil
	}
	return d.shop.Announce(ctx, d.Dev, d.Data)
}

// tellSystemd tells systemd that the service answers, and from then on whether it accepts events. Before anything is
// stopped, it tells that the service is stopping.
func (d *daemon) tellSystemd(context.Context) error {
	stop, err := startWatchdog(d.engine.Ready, d.Log)
	d.onStop(func() error {
		stop(d.next == nil)
		return nil
	})
	return err
}
