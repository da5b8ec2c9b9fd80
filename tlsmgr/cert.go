package tlsmgr

import (
	"cmp"
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"mtagd/store"
)

// CertConfig says which hosts get certificates, and from whom.
type CertConfig struct {
	Dir    string       // where accounts, keys and certificates are kept
	Hosts  []string     // the service's own: the base host and the client tag host
	Engine store.Engine // the hosts of tags, and the tags that are marked when their host moves away

	// LookUp tells where a tag host's DNS leads; a certificate is neither ordered nor renewed while
	// that is elsewhere.
	LookUp func(ctx context.Context, host string) store.DNSFinding

	CA          string         // URL of the CA's ACME directory
	Roots       *x509.CertPool // vouch for the CA's own certificate; nil: the system's
	Email       string         // contact of the ACME account; may be empty
	EABKeyID    string         // key of the external account binding; may be empty
	EABHMACKey  string         // its secret, in base64url
	HTTP, HTTPS net.Addr       // where challenges are answered

	Log     *slog.Logger
	Metrics prometheus.Registerer // nil: none registered
}

// pace is how fast things happen. Tests are in more of a hurry than a CA.
type pace struct {
	renewCheck time.Duration // between two looks at which certificates are due
	recheck    time.Duration // in which the DNS of every host is looked at once
	visitor    time.Duration // how long a handshake waits for a certificate that is on its way
	order      time.Duration // how long one order may take
	repair     time.Duration // since the last try of a failed order, after which Order brings the next one forward

	// The waits after a first failure; each further one doubles, up to most.
	caFailed    time.Duration // the CA could not be reached, or failed itself
	hostRefused time.Duration // the CA refused: five such failures of a host in an hour, and the largest CA refuses unasked
	caLimited   time.Duration // the CA said that there were too many orders
	most        time.Duration
}

var usualPace = pace{
	renewCheck:  time.Minute,
	recheck:     time.Hour,
	visitor:     8 * time.Second,
	order:       3 * time.Minute,
	repair:      10 * time.Minute,
	caFailed:    5 * time.Second,
	hostRefused: time.Minute,
	caLimited:   10 * time.Minute,
	most:        6 * time.Hour,
}

const (
	// ordersAtOnce bounds the orders under way. An order waits for the CA for most of its time.
	ordersAtOnce = 300
	// lookUpsAtOnce bounds the hourly look-ups under way.
	lookUpsAtOnce = 8
	// freshFinding is how long a correct finding need not be looked up again.
	freshFinding = time.Minute
	// stopPatience is how long Stop waits for what cannot be interrupted.
	stopPatience = 5 * time.Second
)

// Certificates orders, keeps and renews the certificates of all hosts, and answers handshakes with
// them. Its methods may be called at once from many goroutines.
type Certificates struct {
	CertConfig
	pace      pace
	directory *store.Directory
	own       map[string]bool // Hosts
	metrics   *certMetrics

	// One cache, three ways to look after what is in it.
	cache    *certmagic.Cache
	renewing *certmagic.Config // renews by a timer, staples OCSP
	resting  *certmagic.Config // neither: for hosts that moved away
	ordering *certmagic.Config // loads without asking for OCSP, orders in one try

	slots  chan struct{} // one for each order under way
	bucket *rate.Limiter // of new orders

	ctx     context.Context // ends with Stop
	cancel  context.CancelFunc
	running sync.WaitGroup

	// mu is never held while the cache is asked: configFor takes it while the cache is locked.
	mu    sync.Mutex
	hosts map[string]*hostCert
}

// The rate at which the largest CA takes new orders from one account: 300 in three hours.
const (
	letsEncryptBurst = 300
	letsEncryptEvery = 36 * time.Second
)

func init() {
	// Certmagic's own limiter is one for the process. It delays renewals too, and 10 in 10 seconds
	// would make a partner that brings 200 shops wait for minutes; the bucket here knows better.
	certmagic.RateLimitEvents, certmagic.RateLimitEventsWindow = 100, time.Second
	certmagic.UserAgent = "mtagd"
}

// NewCertificates prepares everything and starts nothing. It fails when the metrics are registered
// already.
func NewCertificates(cfg CertConfig) (*Certificates, error) { return newCertificates(cfg, usualPace) }

func newCertificates(cfg CertConfig, p pace) (*Certificates, error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Certificates{
		CertConfig: cfg,
		pace:       p,
		directory:  cfg.Engine.Directory(),
		own:        map[string]bool{},
		slots:      make(chan struct{}, ordersAtOnce),
		bucket:     rate.NewLimiter(rate.Inf, 0),
		ctx:        ctx,
		cancel:     cancel,
		hosts:      map[string]*hostCert{},
	}
	for _, host := range cfg.Hosts {
		c.own[host] = true
	}
	if isLetsEncrypt(cfg.CA) {
		c.bucket = rate.NewLimiter(rate.Every(letsEncryptEvery), letsEncryptBurst)
	}
	if err := c.register(cfg.Metrics); err != nil {
		cancel()
		return nil, err
	}

	log := zap.New(&logCore{log: cfg.Log, withoutContact: c.withoutContact})
	c.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   c.configFor,
		RenewCheckInterval: p.renewCheck,
		Logger:             log,
	})
	base := certmagic.Config{
		Storage: newCertStore(cfg.Dir),
		OnEvent: c.onEvent,
		Logger:  log,
	}
	c.renewing = certmagic.New(c.cache, base)
	issuer := certmagic.NewACMEIssuer(c.renewing, c.issuerTemplate(log))
	c.renewing.Issuers = []certmagic.Issuer{issuer}

	base.Issuers = []certmagic.Issuer{anewIssuer{issuer}}
	base.OnDemand = &certmagic.OnDemandConfig{DecisionFunc: func(context.Context, string) error { return errMovedAway }}
	c.resting = certmagic.New(c.cache, base) // the timer passes over certificates on demand

	base.OnDemand = nil
	base.OCSP.DisableStapling = true // loading must not wait for a responder; the hourly round staples
	c.ordering = certmagic.New(c.cache, base)
	return c, nil
}

func (c *Certificates) issuerTemplate(log *zap.Logger) certmagic.ACMEIssuer {
	template := certmagic.ACMEIssuer{
		CA:                        c.CA,
		TrustedRoots:              c.Roots,
		Email:                     cmp.Or(c.Email, noEmail),
		Agreed:                    true,
		DisableDistributedSolvers: true, // one process: challenges need not go through the disk
		CertObtainTimeout:         c.pace.order,
		Logger:                    log,
		NewAccountFunc:            c.prepareAccount,
	}
	// Certmagic tries to listen where challenges are answered, and is content when somebody does.
	template.ListenHost, template.AltHTTPPort = solverAddress(c.HTTP)
	_, template.AltTLSALPNPort = solverAddress(c.HTTPS)
	if c.EABKeyID != "" {
		template.ExternalAccount = &acme.EAB{KeyID: c.EABKeyID, MACKey: c.EABHMACKey}
	}
	return template
}

// noEmail is the address by which certmagic knows the account without one. Left to itself, it looks for an
// address among the accounts on disk, and while the first one is just being written takes the
// name of its folder, which is this, for one.
const noEmail = "default"

// prepareAccount is called before an account is registered.
func (c *Certificates) prepareAccount(_ context.Context, _ *certmagic.ACMEIssuer, account acme.Account) (acme.Account, error) {
	if c.Email == "" {
		account.Contact = nil // CAs refuse noEmail
	}
	return account, nil
}

func solverAddress(listening net.Addr) (host string, port int) {
	at, err := netip.ParseAddrPort(listening.String())
	if err != nil {
		return "", 0
	}
	if !at.Addr().IsUnspecified() {
		host = at.Addr().String()
	}
	return host, int(at.Port())
}

// anewIssuer hides from certmagic that it is an ACMEIssuer: the order of a renewal then does not say which
// certificate it replaces, which is what CAs refuse (see isRefusedOrder).
type anewIssuer struct{ *certmagic.ACMEIssuer }

// Start loads the certificates that are on disk, orders those that are missing, and looks at every
// host's DNS from time to time; all in the background.
func (c *Certificates) Start() {
	c.running.Go(c.loadAll)
	c.running.Go(c.recheck)
}

// Stop ends all orders under way. It is called once, after the last handshake.
func (c *Certificates) Stop() {
	c.cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.running.Wait()
		// It waits for a renewal under way, which the order's time-out alone ends.
		c.cache.Stop()
	}()
	select {
	case <-stopped:
	case <-time.After(stopPatience):
		c.Log.Warn("a certificate renewal was cut off")
	}
}

// serves reports whether handshakes for a name are answered. It does no I/O: a flood of made-up
// names must cost nothing.
func (c *Certificates) serves(host string) bool {
	return c.own[host] || c.directory.ServesTLS(host)
}

// configFor is how certmagic looks after a certificate in its cache. The cache is locked meanwhile.
func (c *Certificates) configFor(cert certmagic.Certificate) (*certmagic.Config, error) {
	if len(cert.Names) == 1 && c.serves(cert.Names[0]) && !c.hasMovedAway(cert.Names[0]) {
		return c.renewing, nil
	}
	return c.resting, nil
}
