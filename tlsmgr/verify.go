package tlsmgr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"mtagd/store"
)

// Config says what to check against and whom to ask.
type Config struct {
	CNAMETarget string           // the name that merchants point their records at
	Resolvers   []string         // host:port each; empty: those of /etc/resolv.conf
	Log         *slog.Logger     // nil: no log
	Now         func() time.Time // nil: time.Now
}

const (
	// askTimeout is how long one try of one question waits for its answer.
	askTimeout = 2 * time.Second
	// verifyTimeout bounds a whole verification: a merchant waits for it, and a chain of slow
	// zones could take a minute.
	verifyTimeout = 10 * time.Second
)

// Verifier checks whether tag hosts reach the CNAME target (spec, Verify server-side tag DNS). Its
// methods may be called at once from many goroutines.
type Verifier struct {
	target    string // canonical: lower case, with the final dot
	resolvers []resolver
	timeout   time.Duration
	log       *slog.Logger
	now       func() time.Time
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
	v := &Verifier{target: dns.CanonicalName(target), timeout: verifyTimeout, log: cfg.Log, now: cfg.Now}
	for _, address := range addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("tlsmgr: resolver: %w", err)
		}
		v.resolvers = append(v.resolvers, resolver{address: address, timeout: askTimeout})
	}
	if v.log == nil {
		v.log = slog.New(slog.DiscardHandler)
	}
	if v.now == nil {
		v.now = time.Now
	}
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

// Verify asks every resolver at once where a host leads, and tells what their answers come to. It
// takes at most 10 seconds, less when ctx ends before.
func (v *Verifier) Verify(ctx context.Context, host string) store.DNSFinding {
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()

	host = dns.CanonicalName(host)
	seen := make([]store.DNSFinding, len(v.resolvers))
	var all sync.WaitGroup
	for i, r := range v.resolvers {
		all.Go(func() {
			// The records come from strangers' zones: one that trips the parser must not end the
			// process.
			defer func() {
				if p := recover(); p != nil {
					v.log.Error("dns look-up panicked", "host", bare(host), "resolver", r.address, "panic", p)
					seen[i] = unsettled(host, errBadAnswer)
				}
			}()
			seen[i] = v.look(ctx, r, host)
		})
	}
	all.Wait()

	finding := v.together(host, seen)
	finding.CheckedAt = v.now().UTC()
	for i, f := range seen {
		v.log.Debug("dns seen", "host", bare(host), "resolver", v.resolvers[i].address,
			"verdict", f.Verdict, "code", f.Code, "detail", f.Detail)
	}
	v.log.Debug("dns checked", "host", bare(host),
		"verdict", finding.Verdict, "code", finding.Code, "detail", finding.Detail)
	return finding
}

// together is what the resolvers' findings come to. A resolver that cannot be reached says nothing
// about the host, so the others decide. Among those, one right answer says that the record exists
// and the rest is waiting; without one, a wrong answer says more than no answer.
func (v *Verifier) together(host string, seen []store.DNSFinding) store.DNSFinding {
	first := map[store.DNSVerdict]store.DNSFinding{}
	for _, f := range seen {
		if _, ok := first[f.Verdict]; !ok {
			first[f.Verdict] = f
		}
	}
	correct, someCorrect := first[store.DNSCorrect]
	wrong, someWrong := first[store.DNSWrong]
	pending, somePending := first[store.DNSPending]
	switch {
	case someCorrect && (someWrong || somePending):
		return finding(store.DNSPending, "partly_propagated",
			"%s points to %s, but not every resolver sees it yet; try again in a few minutes", bare(host), bare(v.target))
	case someCorrect:
		return correct
	case someWrong:
		return wrong
	case somePending:
		return pending
	default:
		return finding(store.DNSUnreachable, "unreachable", "no DNS resolver can be reached; try again later")
	}
}

func finding(verdict store.DNSVerdict, code, detail string, args ...any) store.DNSFinding {
	return store.DNSFinding{Verdict: verdict, Code: code, Detail: fmt.Sprintf(detail, args...)}
}

// bare is a name as people write it, without the final dot.
func bare(name string) string { return strings.TrimSuffix(name, ".") }
