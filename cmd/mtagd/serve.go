package main

import (
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strconv"
	"time"

	"mtagd/edge"
	"mtagd/edge/limit"
	"mtagd/store"
	"mtagd/store/local/backup"
)

// serveCommand is "mtagd serve". After check, its values are valid and in the form that the service needs.
type serveCommand struct {
	HTTP  string `name:"http" default:":80" placeholder:"ADDR" help:"Address for plain HTTP: the CA's challenges and redirects; with --tls off everything (default ${default})."`
	HTTPS string `name:"https" default:":443" placeholder:"ADDR" help:"Address for HTTPS; not used with --tls off (default ${default})."`
	TLS   string `name:"tls" default:"acme" placeholder:"acme|off" help:"Get certificates from an ACME CA (acme), or serve everything on --http without TLS (off). Default ${default}."`

	BaseHost      string `placeholder:"HOST" help:"Host of the partner API. Required."`
	ClientTagHost string `placeholder:"HOST" help:"Host of all client-side tags. Required."`
	CNAMETarget   string `name:"cname-target" placeholder:"HOST" help:"Host name that the CNAME records of merchants point at. Required."`

	ACMECA     string `name:"acme-ca" default:"https://acme-v02.api.letsencrypt.org/directory" placeholder:"URL" help:"Directory URL of the ACME CA (default: Let's Encrypt)."`
	ACMECARoot string `name:"acme-ca-root" placeholder:"FILE" help:"PEM file with the root certificates to trust for the ACME CA's own server (default: those of the system)."`
	ACMEEmail  string `name:"acme-email" placeholder:"ADDRESS" help:"Email address for messages from the ACME CA."`

	ACMEEABKeyID   string `name:"acme-eab-key-id" placeholder:"ID" help:"Key id for external account binding, if the ACME CA requires it."`
	ACMEEABHMACKey string `name:"acme-eab-hmac-key" placeholder:"KEY" help:"HMAC key for external account binding, in base64url. It is a secret: set it in the environment or in the config file."`

	Limits             string `default:"on" placeholder:"on|off" help:"Limit the rates of client addresses, merchants and partners (on), or not (off), as for benchmarks and closed networks. The bounds on memory and disk stay. Default ${default}."`
	AddressEvents      int    `name:"address-events-per-second" default:"${address_events}" placeholder:"N" help:"Limit of requests and events per second from one client address (IPv6: a /64); 0 for no limit, also on its bytes, as behind an HTTP proxy (default ${default})."`
	AddressConnections int    `name:"connections-per-address" default:"${address_connections}" placeholder:"N" help:"Limit of open connections of one client address, at most an eighth of all; 0 for no limit, as behind an HTTP proxy (default ${default})."`

	HandshakesPerIP int      `name:"handshakes-per-ip" default:"1024" placeholder:"N" help:"Limit of concurrent TLS handshakes per client address (IPv6: a /64); 0 for no limit (default ${default})."`
	HSTS            bool     `name:"hsts" help:"Tell browsers to use only HTTPS for the base host, for one year."`
	ProxyProtocol   bool     `help:"Expect a PROXY protocol header on connections from --trusted-proxy."`
	TrustedProxy    []string `placeholder:"CIDR" help:"Network of the load balancers in front of the service. Repeatable."`

	DNSResolver     []string `name:"dns-resolver" placeholder:"HOST:PORT" help:"Resolver to ask when a tag host is verified. Repeatable (default: those of /etc/resolv.conf)."`
	DNSPort         int      `name:"dns-port" default:"53" placeholder:"N" help:"Port of the name servers of zones (default ${default})."`
	DNSAllowPrivate bool     `name:"dns-allow-private" help:"Also ask name servers at private addresses, and accept domains such as shop.test. For test set-ups."`

	BackupTo           string   `placeholder:"DEST" help:"Back up to this directory, or to s3://ENDPOINT/BUCKET/PREFIX, while the service runs."`
	BackupEvery        string   `default:"6h" placeholder:"DURATION" help:"How often. Below a minute, such as 5s, what was written is shipped continuously (default ${default})."`
	BackupKeep         string   `default:"30d" placeholder:"DURATION" help:"How long points are kept (default ${default})."`
	BackupRecipient    []string `placeholder:"age1..." help:"Encrypt backups for this age recipient. Repeatable."`
	BackupCertificates bool     `help:"Back up TLS certificates and their private keys too."`

	StoreSize string `name:"store-size" placeholder:"SIZE" help:"With --store: how much of the database events and links may take, such as 500GB, indexes included: an event counts for its bytes and 1 KiB, a linked identifier for up to 768 bytes. Merchants, partners and addresses have shares of what is left (bytes stored in a day), and without space left they get 503. The disk must have that much: its free space is not known here. Default: 100GiB, or twice what is stored at the start if that is more."`

	SecretKeyFile string   `placeholder:"FILE" help:"File with the keys that encrypt the credentials of destinations; the same on all nodes of a database, and in no backup (default: one in the data directory, made at the first start; with --store, no events are delivered without this flag)."`
	DeliveryAllow []string `placeholder:"CIDR" help:"Network that deliveries may reach besides public addresses, and then also without TLS. Repeatable."`

	RetentionDays int `name:"retention-days" default:"0" placeholder:"N" help:"Days that events are kept, by event_time, unless their merchant has another number; 0 for ever (default ${default})."`

	Admin      string `default:"${admin}" placeholder:"ADDR" help:"Address for /metrics, /healthz, /readyz and /debug/pprof, or off. Without --admin-token it is a loopback address. If only the default is taken, the server starts without them (default ${default})."`
	AdminToken string `name:"admin-token" placeholder:"TOKEN" help:"Bearer token that the admin pages need, of at least 32 characters. It is a secret: set it in the environment or in the config file."`
	LogFormat  string `default:"text" placeholder:"text|json" help:"Format of the log (default ${default})."`
	LogLevel   string `default:"info" placeholder:"LEVEL" help:"Lowest level to log: debug, info, warn or error (default ${default})."`

	// check parses these from the flags.
	roots     *x509.CertPool
	proxies   store.Networks
	reachable store.Networks
	level     slog.Level
	backup    *backupConfig
	storeSize int64
}

func (*serveCommand) Help() string {
	return "SIGTERM, SIGINT and SIGHUP stop the service: it finishes the requests in progress, for up to 15 seconds, and exits with 0. " +
		"A second SIGTERM or SIGINT ends it immediately."
}

// check parses and normalizes the values. Its error names all the wrong ones.
func (c *serveCommand) check(data string, from origin) error {
	var backups backupConfig
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
		{"limits", oneOf(c.Limits, "on", "off")},
		{"address-events-per-second", checkNotNegative(c.AddressEvents)},
		{"connections-per-address", checkNotNegative(c.AddressConnections)},
		{"handshakes-per-ip", checkNotNegative(c.HandshakesPerIP)},
		{"proxy-protocol", checkProxyProtocol(c.ProxyProtocol, c.TrustedProxy)},
		{"trusted-proxy", readNetworks(c.TrustedProxy, &c.proxies)},
		{"dns-resolver", checkResolvers(c.DNSResolver)},
		{"dns-port", checkPort(strconv.Itoa(c.DNSPort), 1)},
		{"backup-to", readDestination(data, c.BackupTo, &backups.To)},
		{"backup-every", readDuration(c.BackupEvery, time.Second, &backups.Every)},
		{"backup-keep", readDuration(c.BackupKeep, time.Hour, &backups.Keep)},
		{"backup-recipient", backup.CheckRecipients(c.BackupRecipient)},
		{"store-size", readSize(c.StoreSize, &c.storeSize)},
		{"delivery-allow", readNetworks(c.DeliveryAllow, &c.reachable)},
		{"retention-days", checkRetention(c.RetentionDays)},
		{"admin-token", checkAdminToken(&c.AdminToken)},
		{"admin", checkAdmin(c.Admin, c.AdminToken)},
		{"log-format", oneOf(c.LogFormat, "text", "json")},
		{"log-level", readLevel(c.LogLevel, &c.level)},
	} {
		if step.err != nil {
			errs = append(errs, &usageError{where: from.of(step.flag), err: step.err})
		}
	}
	if c.BackupTo != "" {
		backups.Recipients, backups.Certificates = c.BackupRecipient, c.BackupCertificates
		c.backup = &backups
	}
	return errors.Join(errs...)
}

func (c *serveCommand) Run(p *process) error {
	if err := c.check(p.data, p.origin); err != nil {
		return err
	}
	if p.store != "" && c.backup != nil {
		return &usageError{where: p.origin.of("backup-to"), err: errNotWithStore}
	}
	if p.store == "" && c.storeSize > 0 {
		return &usageError{where: p.origin.of("store-size"), err: errors.New("goes together with --store: the embedded engine looks at its disk")}
	}
	return serve(p.ctx, config{
		serveCommand: *c, Data: p.data, Store: p.store, AdminOptional: !p.origin.given("admin"), Log: c.logger(p.stderr),
	})
}

func (c *serveCommand) hasTLS() bool { return c.TLS == "acme" }

func (c *serveCommand) hasLimits() bool { return c.Limits == "on" }

func (c *serveCommand) logger(w io.Writer) *slog.Logger {
	opt := slog.HandlerOptions{Level: c.level}
	if c.LogFormat == "json" {
		return slog.New(throttle(slog.NewJSONHandler(w, &opt)))
	}
	return slog.New(throttle(slog.NewTextHandler(w, &opt)))
}

// devCommand is "mtagd dev": the whole service on one loopback address, to try it out.
type devCommand struct {
	HTTP string `name:"http" default:"127.0.0.1:8080" placeholder:"ADDR" help:"Address for everything (default ${default})."`
}

// devCNAMETarget is a name that no DNS record can point at: in development mode, no tag host can be verified.
const devCNAMETarget = "cname.mtagd.localhost"

func (c *devCommand) Run(p *process) error {
	if p.store != "" {
		return &usageError{where: p.origin.of("store"), err: errors.New("cannot be used with mtagd dev")}
	}
	if err := checkAddr(c.HTTP); err != nil {
		return &usageError{where: p.origin.of("http"), err: err}
	}
	host := devHost(c.HTTP)
	return serve(p.ctx, config{
		serveCommand: serveCommand{
			HTTP: c.HTTP, TLS: "off", BaseHost: host, ClientTagHost: host, CNAMETarget: devCNAMETarget, Admin: adminOff,
			Limits: "on", AddressEvents: limit.DefaultAddressEvents, AddressConnections: edge.DefaultConnectionsPerAddress,
			reachable: store.ParseNetworks("127.0.0.0/8", "::1/128"),
		},
		Data:    p.data,
		Aliases: []string{"localhost", "127.0.0.1", "::1"}, // names that a developer may type into a browser
		Log:     slog.New(throttle(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
		Dev:     p.stdout,
	})
}

// devHost returns the host at which this machine reaches a listening address.
func devHost(address string) string {
	host := store.HostName(address)
	if ip, err := netip.ParseAddr(host); host == "" || (err == nil && ip.IsUnspecified()) {
		return "127.0.0.1"
	}
	return host
}
