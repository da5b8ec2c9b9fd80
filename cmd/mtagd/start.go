package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"mtagd/cmd/mtagd/demo"
	"mtagd/edge"
	"mtagd/edge/limit"
	"mtagd/edge/refused"
	"mtagd/edge/tag"
	"mtagd/partnerapi"
	"mtagd/partnerapi/console"
	"mtagd/partnerapi/delivery"
	"mtagd/store"
	"mtagd/store/local"
	"mtagd/tlsmgr"
	"mtagd/tlsmgr/certs"
	"mtagd/tlsmgr/dns"
)

// countRefusals begins to count what is refused, and to remember refused events.
func (d *daemon) countRefusals(context.Context) error {
	d.refusals = limit.NewRefusals(d.Log, d.rates.counters)
	d.refused = refused.New(time.Now)
	d.onStop(d.refusals.Flush)
	return nil
}

// openData opens the storage engine. From then on no other process can open the data directory, unless a database is used.
func (d *daemon) openData(ctx context.Context) error {
	if err := d.awaitDatabase(ctx, func() (err error) {
		d.engine, err = d.openEngine(ctx)
		return err
	}); err != nil {
		return err
	}
	d.disks = &diskMetrics{parts: dataParts(d.Data, d.Store), engine: d.engine}
	d.metrics.MustRegister(d.disks)
	d.onClose(d.engine.Close)
	exportGauge(d.metrics, "mtagd_labels_used", "Labels of the form mtag-xxxx that tags have.",
		func() float64 { return float64(d.engine.Directory().Labels()) })
	return nil
}

// awaitDatabase repeats a step of the start until the database can be used: after a power cut, the database may start later
// than the node. If the node ended instead, systemd and Kubernetes would restart it ever more slowly, or give up. And after
// a migration, the next start would fail while the configuration does not name the database yet.
func (d *daemon) awaitDatabase(ctx context.Context, step func() error) error {
	const pause, logEach = time.Second, 10 * time.Second
	var logged time.Time
	for {
		err := step()
		if err == nil || d.Store == "" || store.KindOf(err) != store.KindUnavailable {
			return err
		}
		if time.Since(logged) >= logEach { // the reason may change
			d.Log.Error("the database cannot be used now: the start waits for it", "error", err)
			logged = time.Now()
		}
		if err := store.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// watchDomains checks in the background whether all domains can be claimed. The start does not wait for
// it, because it reads every claim.
func (d *daemon) watchDomains(context.Context) error {
	d.inBackground(func(ctx context.Context) {
		if err := checkDomains(ctx, d.engine, d.claimable(), d.Log); err != nil && ctx.Err() == nil {
			d.Log.Error("domains were not checked", "error", err)
		}
	})
	return nil
}

// takePorts opens the listeners long before the server uses them: the system may choose the port of --http, and the tag
// URLs of development mode contain it. Connections that arrive in the meantime wait.
func (d *daemon) takePorts(context.Context) (err error) {
	if d.http, err = d.listen(socketHTTP, d.HTTP); err != nil || !d.hasTLS() {
		return err
	}
	d.https, err = d.listen(socketHTTPS, d.HTTPS)
	return err
}

// listen returns the socket of this name that systemd has opened. Otherwise it opens one at the flag's address.
func (d *daemon) listen(name, address string) (net.Listener, error) {
	listener := d.inherited[name]
	if listener == nil {
		var err error
		if listener, err = net.Listen("tcp", address); err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
	}
	d.listeners[name] = listener
	d.onStop(func() { listener.Close() }) // usually the server has closed it already
	return listener, nil
}

// openTLSManager prepares the verification of tag hosts and, unless HTTPS is off, their certificates.
func (d *daemon) openTLSManager(context.Context) (err error) {
	c := tlsmgr.Config{
		Engine: d.engine, OwnHosts: []string{d.BaseHost, d.ClientTagHost}, Log: d.Log,
		DNS: dns.Config{
			CNAMETarget: d.CNAMETarget, Resolvers: d.DNSResolver, Port: d.DNSPort, AllowPrivate: d.DNSAllowPrivate, Now: time.Now,
		},
	}
	if d.hasTLS() {
		c.Certificates = &certs.Config{
			Dir: certificatesDir(d.Data), Shared: sharedOf(d.engine), Metrics: d.metrics,
			CA: d.ACMECA, Roots: d.roots, Email: d.ACMEEmail, EABKeyID: d.ACMEEABKeyID, EABHMACKey: d.ACMEEABHMACKey,
		}
	}
	if d.tlsmgr, err = tlsmgr.New(c); err != nil {
		return err
	}
	d.onStop(d.tlsmgr.Stop)
	return nil
}

// startDelivery begins to deliver events. It makes the file of keys if there is none. All nodes of a database need the same
// one, so there it must be named, unless the data has moved from this data directory.
func (d *daemon) startDelivery(context.Context) error {
	file := secretKeyFile(d.Data, d.SecretKeyFile)
	if _, err := os.Stat(file); err != nil && d.Store != "" && d.SecretKeyFile == "" {
		d.Log.Info("events are not delivered to destinations: set --secret-key-file, to the same file on all nodes")
		return nil
	}
	keys, err := delivery.OpenKeyring(file)
	if err != nil {
		return fmt.Errorf("--secret-key-file: %w", err)
	}
	d.delivery = delivery.Open(delivery.Config{
		Engine: d.engine, Shared: sharedOf(d.engine), Keys: keys, Allow: d.reachable, Log: d.Log, Now: time.Now, Metrics: d.metrics,
	})
	d.onClose(d.delivery.Close)
	return nil
}

func secretKeyFile(data, given string) string {
	return cmp.Or(given, filepath.Join(data, "secret.key"))
}

// openAPI makes the partner API. The web console is in front of it, and in development mode the demo shop.
func (d *daemon) openAPI(ctx context.Context) (err error) {
	c := partnerapi.Config{
		Engine: d.engine, Delivery: d.delivery, DNS: d.tlsmgr, Claimable: d.claimable(),
		BaseURL: d.tagURL(d.BaseHost), ClientTagHost: d.ClientTagHost, CNAMETarget: d.CNAMETarget, TagURL: d.tagURL,
		Limits: d.hasLimits(), Nodes: d.nodes, Refusals: d.refusals, Refused: d.refused,
		Log: d.Log, Now: time.Now, Metrics: d.metrics,
		Context: edge.ClientContext, Waiting: edge.WaitContext, WhenAnswered: edge.WhenAnswered,
	}
	if d.hasTLS() {
		c.Certificates = d.tlsmgr.Certificates
	}
	d.api = partnerapi.New(c)
	d.openConsole()
	if d.Dev == nil {
		return nil
	}
	d.shop, err = demo.Open(ctx, demo.Config{
		Engine: d.engine, API: d.api, URL: d.tagURL(d.ClientTagHost), KeyFile: filepath.Join(d.Data, "demo.key"),
	})
	if err != nil {
		return fmt.Errorf("demo shop: %w", err)
	}
	d.api = d.shop.Serve
	return nil
}

// openConsole puts the web console in front of the partner API.
func (d *daemon) openConsole() {
	c := console.Config{
		Engine: d.engine, API: d.api, BaseURL: d.tagURL(d.BaseHost), OwnHosts: []string{d.BaseHost, d.ClientTagHost},
		Limits: d.hasLimits(), Refusals: d.refusals,
		Log: d.Log, Now: time.Now, System: d.system,
	}
	if d.hasTLS() {
		c.Certificates = d.tlsmgr.Certificates
	}
	d.api = console.New(c).Serve
	d.inBackground(d.rates.run)
}

// system is what operators see of the process.
func (d *daemon) system() console.System {
	s := console.System{
		Version: version(), Started: d.started, NotReady: d.engine.Ready(),
		Disk: console.Disks{Reserve: reserve, Parts: d.disks.view()}, Rates: d.rates.since(time.Now()),
	}
	if d.schedule != nil {
		s.Backup = d.schedule.view()
	}
	return s
}

// tagURL is the address of a tag host, or of the base host. In development mode it has no TLS, and a port.
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
		Config: tag.Config{
			Engine: d.engine, ClientTagHost: d.ClientTagHost,
			Limits: d.hasLimits(), Nodes: d.nodes, Refusals: d.refusals, Refused: d.refused,
			Log: d.Log, Now: time.Now, Metrics: d.rates.counters,
		},
		BaseHost: d.BaseHost, Aliases: d.Aliases, PartnerAPI: d.api,
		PartnerNeedsBody: partnerapi.NeedsBody(d.engine.Directory(), d.tagURL(d.BaseHost), time.Now),
		AddressEvents:    d.AddressEvents, TrustedProxies: d.proxies,
	}
	if d.delivery != nil {
		c.Browsers = d.delivery
	}
	if d.hasLimits() {
		c.ConnectionsPerAddress = d.AddressConnections
	}
	if d.hasTLS() {
		c.TLS = d.tlsmgr.Certificates.TLSConfig()
		c.Challenge = d.tlsmgr.Certificates.HTTPChallenge
		c.HSTS = d.HSTS
		c.HandshakesPerIP = d.HandshakesPerIP
	}
	d.server, err = edge.New(c)
	return err
}

// openSource makes the source of backups, both scheduled ones and those of the command. The engine ends its streams when it
// closes. A database has no source: it is backed up by its own tools.
func (d *daemon) openSource(context.Context) error {
	if d.Store != "" {
		return nil
	}
	d.source = local.SourceOf(d.engine)
	if d.backup != nil {
		d.schedule = newSchedule(*d.backup, d.source, d.metrics, d.Log)
	}
	return nil
}
