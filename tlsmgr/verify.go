package tlsmgr

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"

	"mtagd/store"
)

// Config says what to check against and whom to ask.
type Config struct {
	CNAMETarget  string           // the name that merchants point their records at
	Resolvers    []string         // host:port each; empty: those of /etc/resolv.conf
	Port         int              // port asked at a zone's own name servers; 0: 53
	AllowPrivate bool             // ask name servers at private addresses too
	CA           string           // URL of the ACME directory of the CA that CAA records must admit; empty: CAA is not looked at
	Roots        *x509.CertPool   // vouch for the CA's own certificate; nil: the system's
	Log          *slog.Logger     // nil: no log
	Now          func() time.Time // nil: time.Now
}

// verifyTimeout bounds a whole verification: a merchant waits for it, and a chain of slow zones
// could take a minute.
const verifyTimeout = 8 * time.Second

// causePatience is how long questions that only help to find a cause may take once the rest is known.
const causePatience = time.Second

// Verifier checks whether tag hosts reach the CNAME target (spec, Verify server-side tag DNS). Its
// methods may be called at once from many goroutines.
type Verifier struct {
	target       string // canonical: lower case, with the final dot
	resolvers    []nameServer
	port         int
	allowPrivate bool
	ca           *ca
	log          *slog.Logger
	now          func() time.Time

	timeout       time.Duration // of a verification
	causePatience time.Duration

	underWay singleflight.Group // verifications, by host
}

// NewVerifier returns an error when the CNAME target is not a host name, a resolver is not a
// host:port, or /etc/resolv.conf cannot be read.
func NewVerifier(cfg Config) (*Verifier, error) {
	target, err := store.CheckHostName("CNAME target", strings.TrimSuffix(cfg.CNAMETarget, "."))
	if err != nil {
		return nil, fmt.Errorf("tlsmgr: %w", err)
	}
	addresses := cfg.Resolvers
	if len(addresses) == 0 {
		if addresses, err = systemResolvers("/etc/resolv.conf"); err != nil {
			return nil, fmt.Errorf("tlsmgr: system resolvers: %w", err)
		}
	}
	v := &Verifier{
		target:        dns.CanonicalName(target),
		port:          cmp.Or(cfg.Port, 53),
		allowPrivate:  cfg.AllowPrivate,
		log:           cfg.Log,
		now:           cfg.Now,
		timeout:       verifyTimeout,
		causePatience: causePatience,
	}
	for _, address := range addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("tlsmgr: resolver: %w", err)
		}
		v.resolvers = append(v.resolvers, nameServer{name: resolverName(address), address: address, timeout: resolverTimeout})
	}
	if v.log == nil {
		v.log = slog.New(slog.DiscardHandler)
	}
	if v.now == nil {
		v.now = time.Now
	}
	v.ca = newCA(cfg, v.log, v.now)
	return v, nil
}

// systemResolvers are the name servers of a resolv.conf. Without the file, or without a name server in
// it, that is the one on this machine, as the system's own resolver has it.
func systemResolvers(path string) ([]string, error) {
	conf, err := dns.ClientConfigFromFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil || len(conf.Servers) == 0 {
		return []string{"127.0.0.1:53"}, nil
	}
	var addresses []string
	for _, server := range conf.Servers {
		addresses = append(addresses, net.JoinHostPort(server, conf.Port))
	}
	return addresses, nil
}

// Verify asks the name servers of the host's zone and every resolver where the host leads, and tells what
// their answers come to. It takes at most 8 seconds, less when ctx ends before. Verifications of
// one host at the same time are one.
func (v *Verifier) Verify(ctx context.Context, host string) store.DNSFinding {
	host = dns.CanonicalName(host)
	found := v.underWay.DoChan(host, func() (any, error) {
		// Not ctx: others may wait for the same finding.
		ctx, cancel := context.WithTimeout(context.Background(), v.timeout)
		defer cancel()
		return v.verify(ctx, host), nil
	})
	select {
	case f := <-found:
		return f.Val.(store.DNSFinding)
	case <-ctx.Done():
		f := finding(store.DNSPending, "timeout", "no answer about "+bare(host)+" came in time", "try again in a few minutes")
		f.CheckedAt = v.now().UTC()
		return f
	}
}
