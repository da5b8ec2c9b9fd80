package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"mtagd/edge"
	"mtagd/partnerapi"
	"mtagd/store/local"
)

// How long requests under way may take to finish once the service stops.
const (
	stopTimeout       = 15 * time.Second
	sideStopTimeout   = 2 * time.Second // operator commands and admin pages
	sideHeaderTimeout = 5 * time.Second
)

// config is what the service runs with; every value was checked.
type config struct {
	Data          string
	HTTP          string     // listening address
	TLS           *tlsConfig // nil: everything answers on HTTP
	BaseHost      string
	ClientTagHost string
	CNAMETarget   string
	Resolvers     []string       // empty: the system's
	DNSPort       int            // of zones' own name servers
	DNSPrivate    bool           // ask name servers at private addresses too
	Proxies       []netip.Prefix // whose connections begin with a PROXY protocol header
	Admin         string         // listening address, or adminOff
	AdminOptional bool           // do without when the address is taken
	Log           *slog.Logger

	// Aliases are other names of the base host; only development has any.
	Aliases []string

	// Dev is where development mode's start-up text goes; nil in production.
	Dev io.Writer
}

// tlsConfig is what HTTPS is served with.
type tlsConfig struct {
	HTTPS           string // listening address
	HandshakesPerIP int
	HSTS            bool

	CA                   string         // URL of the ACME directory
	Roots                *x509.CertPool // of the CA's own certificate; nil: the system's
	Email                string
	EABKeyID, EABHMACKey string
}

// Run serves until a signal ends it.
func (c *serveCommand) Run(p *process) error {
	if err := c.check(p.origin); err != nil {
		return err
	}
	var secure *tlsConfig
	if c.TLS == "acme" {
		secure = &tlsConfig{
			HTTPS:           c.HTTPS,
			HandshakesPerIP: c.HandshakesPerIP,
			HSTS:            c.HSTS,
			CA:              c.ACMECA,
			Roots:           c.roots,
			Email:           c.ACMEEmail,
			EABKeyID:        c.ACMEEABKeyID,
			EABHMACKey:      c.ACMEEABHMACKey,
		}
	}
	return serve(p.ctx, config{
		Data:          p.data,
		HTTP:          c.HTTP,
		TLS:           secure,
		Proxies:       c.proxies,
		BaseHost:      c.BaseHost,
		ClientTagHost: c.ClientTagHost,
		CNAMETarget:   c.CNAMETarget,
		Resolvers:     c.DNSResolver,
		DNSPort:       c.DNSPort,
		DNSPrivate:    c.DNSAllowPrivate,
		Admin:         c.Admin,
		AdminOptional: !p.origin.given("admin"),
		Log:           c.logger(p.stderr),
	})
}

// serve starts the parts in the order in which they need each other, waits until ctx ends or a part
// fails, and stops them in the reverse order: a request that was accepted is answered, and an
// event that was acknowledged is on disk.
func serve(ctx context.Context, cfg config) (err error) {
	log := cfg.Log
	if err := relaxTimers(); err != nil {
		log.Info("timers take more processor time than they need", "error", err)
	}

	engine, err := local.Open(cfg.Data, local.Options{Log: log, Now: time.Now})
	if err != nil {
		return fmt.Errorf("data directory %s: %w", cfg.Data, err)
	}
	defer func() { err = errors.Join(err, engine.Close()) }()

	// The port is taken before there is a server for it: --http may leave the choice open, and
	// development mode's tag URLs need the outcome. Whoever connects meanwhile waits.
	listener, err := net.Listen("tcp", cfg.HTTP)
	if err != nil {
		return fmt.Errorf("--http: %w", err)
	}
	defer listener.Close()

	metrics := newMetrics()
	hosts, https, err := openHosts(cfg, engine, metrics, listener.Addr())
	if err != nil {
		return err
	}
	defer hosts.Stop()
	if https != nil {
		defer https.Close() // its server closes it too, unless it never runs
	}

	tagURL := func(host string) string { return "https://" + host }
	if cfg.Dev != nil {
		tagURL = devTagURL(listener.Addr())
	}
	apiConfig := partnerapi.Config{
		Engine:        engine,
		DNS:           hosts,
		ClientTagHost: cfg.ClientTagHost,
		CNAMETarget:   cfg.CNAMETarget,
		TagURL:        tagURL,
		Log:           log,
		Now:           time.Now,
	}
	if https != nil {
		apiConfig.Certificates = hosts.Certificates()
	}
	api := partnerapi.New(apiConfig)
	var demo *demoShop
	if cfg.Dev != nil {
		if demo, err = openDemoShop(ctx, engine, cfg.Data, tagURL(cfg.ClientTagHost), api); err != nil {
			return fmt.Errorf("demo shop: %w", err)
		}
		api = demo.serve
	}
	edgeConfig := edge.Config{
		Engine:         engine,
		BaseHost:       cfg.BaseHost,
		Aliases:        cfg.Aliases,
		ClientTagHost:  cfg.ClientTagHost,
		PartnerAPI:     api,
		PartnerError:   partnerapi.WriteError,
		Log:            log,
		Metrics:        metrics,
		Now:            time.Now,
		TrustedProxies: cfg.Proxies,
	}
	if https != nil {
		edgeConfig.TLS = hosts.Certificates().TLSConfig()
		edgeConfig.Challenge = hosts.Certificates().HTTPChallenge
		edgeConfig.HSTS = cfg.TLS.HSTS
		edgeConfig.HandshakesPerIP = cfg.TLS.HandshakesPerIP
	}
	server, err := edge.New(edgeConfig)
	if err != nil {
		return err
	}

	// A part that ends by itself, for whatever reason, ends the service.
	failed := make(chan error, 4)

	operators, err := listenOperators(cfg.Data)
	if err != nil {
		return fmt.Errorf("operator socket: %w", err)
	}
	defer background(operators, operatorHandler(hosts.Control(engine)), log, failed)()

	admin, err := listenAdmin(cfg)
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	if admin != nil {
		ready := func() error {
			if ctx.Err() != nil {
				return errors.New("stopping")
			}
			return engine.Ready()
		}
		defer background(admin, adminHandler(metrics, ready), log, failed)()
		log.Info("admin listening", "address", admin.Addr().String())
	}

	addThreads()
	limitMemory(ctx, server.Connections)
	defer func() {
		log.Info("stopping")
		stopping, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := server.Shutdown(stopping); err != nil {
			log.Warn("requests were cut off", "error", err)
		}
	}()
	if https == nil {
		go func() { failed <- server.Serve(listener) }()
		log.Info("listening", "http", listener.Addr().String(), "base_host", cfg.BaseHost, "client_tag_host", cfg.ClientTagHost)
	} else {
		go func() { failed <- server.ServePlain(listener) }()
		go func() { failed <- server.ServeTLS(https) }()
		log.Info("listening", "http", listener.Addr().String(), "https", https.Addr().String(),
			"base_host", cfg.BaseHost, "client_tag_host", cfg.ClientTagHost)
	}
	hosts.Start() // challenges can be answered from here on
	if demo != nil {
		if err := demo.announce(cfg.Dev, cfg.Data); err != nil {
			return err
		}
	}

	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("serving ended: %w", err)
	}
}

// background serves a side door, and reports to failed when that ends. The function it returns closes the
// door.
func background(l net.Listener, h http.Handler, log *slog.Logger, failed chan<- error) (stop func()) {
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: sideHeaderTimeout,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	go func() { failed <- server.Serve(l) }()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), sideStopTimeout)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			log.Warn("requests were cut off", "address", l.Addr().String(), "error", errors.Join(err, server.Close()))
		}
	}
}
