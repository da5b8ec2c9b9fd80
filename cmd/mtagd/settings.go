package main

import (
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strconv"
)

// serveCommand is "mtagd serve". After check, its values are complete and in the form that the
// parts take.
type serveCommand struct {
	HTTP  string `name:"http" default:":80" placeholder:"ADDR" help:"Where to answer plain HTTP (default ${default})."`
	HTTPS string `name:"https" default:":443" placeholder:"ADDR" help:"Where to answer HTTPS (default ${default})."`
	TLS   string `name:"tls" default:"acme" placeholder:"acme|off" help:"Certificates from an ACME CA, or off: everything answers on --http (default ${default})."`

	BaseHost      string `placeholder:"HOST" help:"Host of the partner API."`
	ClientTagHost string `placeholder:"HOST" help:"Shared host of client-side tags."`
	CNAMETarget   string `name:"cname-target" placeholder:"HOST" help:"Name that merchants point their CNAME records at."`

	ACMECA     string `name:"acme-ca" default:"https://acme-v02.api.letsencrypt.org/directory" placeholder:"URL" help:"Directory of the ACME CA (default Let's Encrypt)."`
	ACMECARoot string `name:"acme-ca-root" placeholder:"FILE" help:"PEM file of the roots that vouch for the ACME CA itself (default the system's)."`
	ACMEEmail  string `name:"acme-email" placeholder:"ADDRESS" help:"Contact that the ACME CA may write to."`

	ACMEEABKeyID   string `name:"acme-eab-key-id" placeholder:"ID" help:"Key id of the account's external binding, where the ACME CA wants one."`
	ACMEEABHMACKey string `name:"acme-eab-hmac-key" placeholder:"KEY" help:"HMAC key of the external binding, in base64url. It is a secret: better in the environment or the configuration file."`

	HandshakesPerIP int      `name:"handshakes-per-ip" default:"1024" placeholder:"N" help:"Most TLS handshakes under way for one client address, 0 for any number (default ${default})."`
	HSTS            bool     `name:"hsts" help:"Tell browsers to use nothing but HTTPS for the base host, for a year."`
	ProxyProtocol   bool     `help:"Connections from --trusted-proxy begin with a PROXY protocol header."`
	TrustedProxy    []string `placeholder:"CIDR" help:"Network of the load balancers in front; repeatable."`

	DNSResolver     []string `name:"dns-resolver" placeholder:"HOST:PORT" help:"Resolver asked when a tag host is verified; repeatable (default those of /etc/resolv.conf)."`
	DNSPort         int      `name:"dns-port" default:"53" placeholder:"N" help:"Port asked at a zone's own name servers (default ${default})."`
	DNSAllowPrivate bool     `name:"dns-allow-private" help:"Ask name servers at private addresses too."`

	Admin     string `default:"${admin}" placeholder:"ADDR" help:"Loopback address of /metrics, /healthz, /readyz and /debug/pprof, or off (default ${default})."`
	LogFormat string `default:"text" placeholder:"text|json" help:"Form of the log (default ${default})."`
	LogLevel  string `default:"info" placeholder:"LEVEL" help:"Least level logged: debug, info, warn or error (default ${default})."`

	// What check reads from the flags of the same meaning.
	roots   *x509.CertPool
	proxies []netip.Prefix
	level   slog.Level
}

// Help is shown after the command's one line of help.
func (*serveCommand) Help() string {
	return "SIGTERM, SIGINT and SIGHUP stop the service: it finishes the requests in progress, for up to 15 seconds, and exits with 0. " +
		"A second signal ends it immediately."
}

// check completes the values, or names all the wrong ones.
func (c *serveCommand) check(from origin) error {
	var errs []error
	for _, step := range []struct {
		flag string
		err  error
	}{
		{"tls", oneOf(c.TLS, "acme", "off")},
		{"http", checkAddr(c.HTTP)},
		{"https", checkAddr(c.HTTPS)},
		{"base-host", checkHost(&c.BaseHost)},
		{"client-tag-host", checkHost(&c.ClientTagHost)},
		{"cname-target", checkCNAMETarget(&c.CNAMETarget)},
		{"acme-ca", checkURL(c.ACMECA)},
		{"acme-ca-root", readRoots(c.ACMECARoot, &c.roots)},
		{"acme-email", checkEmail(c.ACMEEmail)},
		{"acme-eab-key-id", checkEAB(c.ACMEEABKeyID, c.ACMEEABHMACKey)},
		{"handshakes-per-ip", checkLeast(c.HandshakesPerIP, 0)},
		{"proxy-protocol", checkProxyProtocol(c.ProxyProtocol, c.TrustedProxy)},
		{"trusted-proxy", readNetworks(c.TrustedProxy, &c.proxies)},
		{"dns-resolver", checkResolvers(c.DNSResolver)},
		{"dns-port", checkPort(strconv.Itoa(c.DNSPort), 1)},
		{"admin", checkAdmin(c.Admin)},
		{"log-format", oneOf(c.LogFormat, "text", "json")},
		{"log-level", readLevel(c.LogLevel, &c.level)},
	} {
		if step.err != nil {
			errs = append(errs, &usageError{where: from.of(step.flag), err: step.err})
		}
	}
	return errors.Join(errs...)
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
		Admin:         adminAddress{Address: c.Admin, Optional: !p.origin.given("admin")},
		Log:           c.logger(p.stderr),
	})
}

// logger is the log that the checked flags ask for.
func (c *serveCommand) logger(w io.Writer) *slog.Logger {
	opt := slog.HandlerOptions{Level: c.level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, &opt))
	}
	return slog.New(slog.NewTextHandler(w, &opt))
}
