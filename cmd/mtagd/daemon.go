package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"golang.org/x/net/netutil"

	"mtagd/cmd/mtagd/demo"
	"mtagd/cmd/mtagd/operator"
	"mtagd/edge"
	"mtagd/edge/limit"
	"mtagd/edge/refused"
	"mtagd/partnerapi"
	"mtagd/partnerapi/console"
	"mtagd/store"
	"mtagd/store/local"
	"mtagd/tlsmgr"
	"mtagd/tlsmgr/certs"
	"mtagd/tlsmgr/dns"
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
	backups  *backupState    // by the clock
	disks    *diskMetrics    // of the parts of the data directory
	refusals *limit.Refusals // counts what is refused
	refused  *refused.Memory // remembers what tag hosts refuse, for the partners

	inherited map[string]net.Listener // the sockets that were opened before the start, by name
	listeners map[string]net.Listener // those that are used

	engine store.Engine            // events and control data
	nodes  *limit.Exchange         // limits over several nodes; nil: there is one
	http   net.Listener            // for plain HTTP
	https  net.Listener            // nil without TLS
	tlsmgr *tlsmgr.Manager         // checks the DNS of tag hosts, and gets their certificates
	api    fasthttp.RequestHandler // the partner API, and what is in front of it
	shop   *demo.Shop              // nil in production
	server *edge.Server            // the public front door
	source *local.Source           // what backups read; nil with a database
	marked bool                    // the data directory has the marker of a running server

	stops    []func() error // undo the steps done so far
	failed   chan error     // gets the error of a part that has ended by itself
	migrated chan string    // gets the address of the database to which the data has moved
	next     *config        // with which the service goes on after that; nil: it ends
}

func newDaemon(cfg config) *daemon {
	return &daemon{
		config: cfg, started: time.Now(), metrics: newMetrics(), rates: newRates(), backups: &backupState{},
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
			return err
		}
	}
	return d.wait(ctx)
}

// maxParts is how many parts run on their own: plain HTTP, HTTPS, operator commands, admin pages.
const maxParts = 4

// stopTimeout is how long requests in progress may take to finish when the service stops.
const stopTimeout = 15 * time.Second

// inheritSockets takes the listening sockets that systemd has opened, or those from before a migration.
func (d *daemon) inheritSockets(context.Context) (err error) {
	if d.inherited = d.Sockets; d.inherited == nil {
		d.inherited, err = inheritSockets(d.config)
	}
	return err
}

// countRefusals begins to count what is refused, and to remember refused events.
func (d *daemon) countRefusals(context.Context) (err error) {
	if d.refusals, err = limit.NewRefusals(d.Log, d.counters()); err != nil {
		return err
	}
	d.refused = refused.New(time.Now)
	d.onStop(func() error {
		d.refusals.Flush()
		return nil
	})
	return nil
}

// counters registers metrics whose rates people see too.
func (d *daemon) counters() prometheus.Registerer { return registries{d.metrics, d.rates.counters} }

// openData opens the storage engine. From then on no other process can open the data directory, unless a database is used.
func (d *daemon) openData(ctx context.Context) (err error) {
	if d.engine, err = openEngine(ctx, d.Data, d.Store, d.Retention, d.Log, d.metrics); err != nil {
		return err
	}
	d.disks = newDiskMetrics(dataParts(d.Data, d.Store))
	d.metrics.MustRegister(d.disks)
	d.onStop(d.engine.Close)
	exportLabels(d.metrics, d.engine.Directory())
	return nil
}

// watchDomains checks in the background whether all domains can be claimed. The check reads every claim, and the service
// must not wait for that.
func (d *daemon) watchDomains(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var check sync.WaitGroup
	check.Go(func() {
		if err := checkDomains(ctx, d.engine, d.claimable(), d.Log); err != nil && ctx.Err() == nil {
			d.Log.Error("domains were not checked", "error", err)
		}
	})
	d.onStop(func() error {
		cancel()
		check.Wait()
		return nil
	})
	return nil
}

// takePorts opens the listeners long before the server uses them: the system may choose the port of --http, and the tag
// URLs of development mode contain it. Connections that arrive in the meantime wait.
func (d *daemon) takePorts(context.Context) (err error) {
	if d.http, err = d.listen(socketHTTP, d.HTTP); err != nil || d.TLS == nil {
		return err
	}
	d.https, err = d.listen(socketHTTPS, d.TLS.HTTPS)
	return err
}

// listen returns the socket of this name that systemd has opened. Otherwise it opens one at the address of the flag with
// this name.
func (d *daemon) listen(name, address string) (net.Listener, error) {
	listener := d.inherited[name]
	if listener == nil {
		var err error
		if listener, err = net.Listen("tcp", address); err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
	}
	d.listeners[name] = listener
	d.onStop(func() error {
		listener.Close() // usually the server has closed it already
		return nil
	})
	return listener, nil
}

// openTLSManager prepares the verification of tag hosts and, unless HTTPS is off, their certificates.
func (d *daemon) openTLSManager(context.Context) (err error) {
	c := tlsmgr.Config{
		Engine:   d.engine,
		OwnHosts: []string{d.BaseHost, d.ClientTagHost},
		DNS: dns.Config{
			CNAMETarget:  d.CNAMETarget,
			Resolvers:    d.Resolvers,
			Port:         d.DNSPort,
			AllowPrivate: d.DNSPrivate,
			Now:          time.Now,
		},
		Log: d.Log,
	}
	if d.TLS != nil {
		c.Certificates = &certs.Config{
			Dir:        certificatesDir(d.Data),
			Shared:     sharedOf(d.engine),
			CA:         d.TLS.CA,
			Roots:      d.TLS.Roots,
			Email:      d.TLS.Email,
			EABKeyID:   d.TLS.EABKeyID,
			EABHMACKey: d.TLS.EABHMACKey,
			Metrics:    d.metrics,
		}
	}
	if d.tlsmgr, err = tlsmgr.New(c); err != nil {
		return err
	}
	d.onStop(func() error {
		d.tlsmgr.Stop()
		return nil
	})
	return nil
}

// openAPI makes the partner API. The web console is in front of it, and in development mode the demo shop.
func (d *daemon) openAPI(ctx context.Context) (err error) {
	c := partnerapi.Config{
		Engine:        d.engine,
		DNS:           d.tlsmgr,
		BaseURL:       d.tagURL(d.BaseHost),
		ClientTagHost: d.ClientTagHost,
		CNAMETarget:   d.CNAMETarget,
		Claimable:     d.claimable(),
		TagURL:        d.tagURL,
		Log:           d.Log,
		Now:           time.Now,
		Refusals:      d.refusals,
		Refused:       d.refused,
		Limits:        d.Limits,
		Nodes:         d.nodes,
		Metrics:       d.metrics,
		Context:       edge.ClientContext,
		Waiting:       edge.WaitContext,
		WhenAnswered:  edge.WhenAnswered,
	}
	if d.TLS != nil {
		c.Certificates = d.tlsmgr.Certificates()
	}
	d.api = partnerapi.New(c)
	if err := d.openConsole(); err != nil || d.Dev == nil {
		return err
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

// openConsole puts the web console in front of the partner API.
func (d *daemon) openConsole() error {
	c := console.Config{
		Engine:   d.engine,
		API:      d.api,
		BaseURL:  d.tagURL(d.BaseHost),
		OwnHosts: []string{d.BaseHost, d.ClientTagHost},
		System:   d.system,
		Log:      d.Log,
		Now:      time.Now,
		Refusals: d.refusals,
		Limits:   d.Limits,
	}
	if d.TLS != nil {
		c.Certificates = d.tlsmgr.Certificates()
	}
	opened, err := console.New(c)
	if err != nil {
		return err
	}
	d.api = opened.Serve
	ctx, cancel := context.WithCancel(context.Background())
	var sampling sync.WaitGroup
	sampling.Go(func() { d.rates.run(ctx) })
	d.onStop(func() error {
		cancel()
		sampling.Wait()
		return nil
	})
	return nil
}

// system is what operators see of the process.
func (d *daemon) system() console.System {
	s := console.System{
		Version: version(), Started: d.started, NotReady: d.engine.Ready(),
		Disks: d.disks.view(), Reserve: reserve, Rates: d.rates.since(time.Now()),
	}
	if d.Backup != nil {
		s.Backup = d.backups.view(d.Backup.Every)
	}
	return s
}

// tagURL is the address of a tag host, or of the base host. In development mode it has no TLS, and the port that the service listens on.
func (d *daemon) tagURL(host string) string {
	if d.Dev == nil {
		return "https://" + host
	}
	_, port, _ := net.SplitHostPort(d.http.Addr().String()) // a listener's address has a port
	return "http://" + net.JoinHostPort(host, port)
}

// openEdge makes the public server, which decides by host what answers a request: the partner API or the tag protocol.
func (d *daemon) openEdge(context.Context) (err error) {
	addThreads() // before edge.New, which counts the threads: it decides how many large batches are parsed at once
	c := edge.Config{
		Engine:          d.engine,
		BaseHost:        d.BaseHost,
		Aliases:         d.Aliases,
		ClientTagHost:   d.ClientTagHost,
		PartnerAPI:      d.api,
		PartnerError:    partnerapi.WriteError,
		PartnerOf:       partnerapi.PartnerOf,
		PartnerEndpoint: partnerapi.EndpointOf,
		PartnerTooLarge: partnerapi.TooLarge,
		Log:             d.Log,
		Metrics:         d.counters(),
		Now:             time.Now,
		Refusals:        d.refusals,
		Refused:         d.refused,
		Limits:          d.Limits,
		Nodes:           d.nodes,
		AddressEvents:   d.AddressEvents,
		TrustedProxies:  d.Proxies,
	}
	if d.Limits {
		c.ConnectionsPerAddress = d.AddressConnections
	}
	if d.Dev == nil { // the demo shop has bodies without a key
		c.PartnerNeedsBody = partnerapi.NeedsBody(d.engine.Directory(), d.tagURL(d.BaseHost), time.Now)
	}
	if d.TLS != nil {
		c.TLS = d.tlsmgr.Certificates().TLSConfig()
		c.Challenge = d.tlsmgr.Certificates().HTTPChallenge
		c.HSTS = d.TLS.HSTS
		c.HandshakesPerIP = d.TLS.HandshakesPerIP
	}
	d.server, err = edge.New(c)
	return err
}

// openSource makes what backups read, by the clock or by the command. Its streams end before the engine closes. A database is
// backed up by its own tools.
func (d *daemon) openSource(context.Context) error {
	if d.Store != "" {
		return nil
	}
	d.source = sourceOf(d.engine, d.Data, d.Log)
	d.onStop(d.source.Close)
	return nil
}

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
	operators := operator.Handler(operator.WithBaseURL(operator.CheckDomains(d.tlsmgr.Control(d.engine), d.claimable()), d.tagURL(d.BaseHost)), d.Log)
	handler := operator.WithVerify(operators, d.engine.Verify)
	if d.source != nil {
		handler = withBackup(d.source, handler)
		handler = d.acceptMigration(handler)
	}
	d.startSideDoor(newSideDoor(socket, withExport(d.engine, handler), d.Log))
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
func (d *daemon) acceptMigration(operators http.Handler) http.Handler {
	ctx, cancel := context.WithCancel(context.Background())
	handler, wait := withMigrate(ctx, d.engine, d.Log, func(to string) { d.migrated <- to }, operators)
	d.onStop(func() error {
		cancel()
		wait()
		return nil
	})
	return handler
}

// acceptAdmins serves the admin pages, unless they are off. After the signal to stop, /readyz answers that the service
// is stopping.
func (d *daemon) acceptAdmins(ctx context.Context) error {
	listener := d.inherited[socketAdmin]
	if listener == nil {
		var err error
		if listener, err = d.Admin.listen(d.Log); err != nil {
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
	pages := guardAdmin(adminPages(d.metrics, ready), ready, d.Admin.Token, d.refusals)
	d.startSideDoor(newSideDoor(netutil.LimitListener(listener, maxAdminConnections), pages, d.Log))
	d.Log.Info("admin listening", "address", listener.Addr().String())
	return nil
}

// scrub verifies all data in the background. Of the nodes of a database, one does.
func (d *daemon) scrub(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	s := newScrubber(d.engine.Verify, d.metrics, d.Log)
	var scrubbing sync.WaitGroup
	if shared := sharedOf(d.engine); shared != nil {
		scrubbing.Go(func() { s.runShared(ctx, shared) })
	} else {
		scrubbing.Go(func() { s.run(ctx) })
	}
	d.onStop(func() error {
		cancel()
		scrubbing.Wait()
		return nil
	})
	return nil
}

// acceptRequests starts the public server. It also answers ACME challenges, so certificates can be ordered from then on.
func (d *daemon) acceptRequests(ctx context.Context) error {
	limitMemory(ctx, d.server.Connections)
	d.onStop(d.finishRequests)
	addresses := []any{"http", d.http.Addr().String()}
	if d.TLS == nil {
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
	if d.Backup != nil {
		d.onStop(newSchedule(*d.Backup, d.source, d.backups, d.metrics, d.Log).runInBackground(ctx))
	}
	return nil
}

// finishRequests closes the public server to new requests, and waits for those in progress.
func (d *daemon) finishRequests() error {
	d.Log.Info("stopping")
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := d.server.Shutdown(ctx); err != nil {
		d.Log.Warn("requests were cut off", "error", err)
	}
	return nil
}

// announce prints, in development mode, the addresses and the API key to try.
func (d *daemon) announce(context.Context) error {
	if d.shop == nil {
		return nil
	}
	return d.shop.Announce(d.Dev, d.Data)
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

// goOn prepares to go on with a database. The sockets stay open: connections wait in them until the service accepts them again.
func (d *daemon) goOn(database string) error {
	next := d.config
	next.Store, next.Backup, next.Sockets = database, nil, map[string]net.Listener{}
	if d.Backup != nil {
		d.Log.Warn("there are no backups by the clock any more: back up the database with its own tools")
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

func (d *daemon) startSideDoor(door *sideDoor) {
	d.startPart(door.accept)
	d.onStop(door.close)
}

// onStop adds a function that undoes what the current step has done.
func (d *daemon) onStop(undo func() error) { d.stops = append(d.stops, undo) }

// stop undoes the steps, the last one first.
func (d *daemon) stop() error {
	var errs []error
	for _, undo := range slices.Backward(d.stops) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}
