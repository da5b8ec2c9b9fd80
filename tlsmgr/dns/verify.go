// Package dns checks whether the DNS of tag hosts leads to the service's CNAME target: for a verify, and once an hour.
//
// A verification asks several sides at the same time:
//
//   - each configured resolver, because visitors use resolvers
//   - the authoritative name servers of the host's zone, here called the zone's own, because a resolver may have an
//     old answer in its cache
//
// On each side it follows the CNAME records from the host to their end. Then it weighs what the sides see into one
// finding. Meanwhile it checks CAA records, which can forbid the CA to issue a certificate.
//
// Read in this order:
//
//	recheck.go    Recheck: the hourly check of every host, which updates tags
//	verify.go     Verifier: one verification, which asks all sides
//	finding.go    what one side sees, and one finding from what all sides see, in sentences for merchants
//	chain.go      what one side sees: a chain of CNAME records, or a flattened record
//	addresses.go  which addresses are public, or of proxies, and what findings must not say of the operator's network
//	caa.go        CAA records
//	zone.go       a zone's own name servers: which they are, and which may be asked
//	view.go       what one server says about one name, and questions to all resolvers
//	ask.go        one question to one server, and which answers count
//
// # Findings
//
// A finding has a verdict and a code. Codes of a correct host: ok; flattened (it has the target's addresses);
// ok_server_failing (one of its zone's name servers gives no answer); ok_caa_forbids and ok_caa_servfail (of the CA).
//
// Codes of a pending host, when the sides differ: partly_propagated (some see the right record); record_changed (its
// zone's name servers no longer have the right record); servers_disagree (these servers differ).
// When a side gives no usable answer: timeout, silent_name_server, servfail, refused, lame_delegation,
// no_server_address (none of the zone's name servers has a public address), dnssec_bogus (an answer comes only when
// signatures are not checked), no_tcp, bad_answer, target_unknown (the host has addresses, the target's are unknown).
//
// Codes of a wrong host: no_record, no_domain, appended_name and appended_value (the DNS provider appended the domain
// once more), wrong_target, chain_ends_elsewhere, wrong_address, proxied, loop, too_many_hops, several_cnames.
//
// Code when no resolver can be reached: unreachable.
//
// # Which name servers are asked
//
// The resolvers are asked for a zone's name servers. When that fails for the merchant's domain, the name servers of the
// zone above it are asked instead. At most four name servers of a zone are asked about the host, without recursion.
//
// A stranger controls the zone, and could make its name servers point into the operator's network. So servers at addresses
// that are not public are asked only if Config.AllowPrivate is set. When none of a zone's name servers can be found or
// asked, the resolvers decide alone. Then findings say little of where a record leads: see addresses.go.
package dns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	miekg "github.com/miekg/dns"
	"golang.org/x/sync/singleflight"

	"mtagd/store"
)

// Config says what a Verifier checks and which servers it asks.
type Config struct {
	CNAMETarget  string   // the name that merchants point their records at
	Resolvers    []string // host:port each; empty: those of /etc/resolv.conf
	Port         int      // of zones' own name servers
	AllowPrivate bool     // ask zones' own name servers at private addresses too, and describe what is private
	Log          *slog.Logger
	Now          func() time.Time

	// CAAIdentities returns the names that CAA records may use for the CA. nil, or none: they are not checked.
	CAAIdentities func(ctx context.Context) []string
}

// verifyTimeout limits a whole verification. A merchant waits: a chain through slow zones could take a minute.
const verifyTimeout = 8 * time.Second

// Verifier checks whether tag hosts reach the CNAME target (spec, Verify server-side tag DNS). Its methods are
// safe for concurrent use.
type Verifier struct {
	Config
	target       string // canonical: lower case, with the final dot
	resolvers    []nameServer
	hidesPrivate bool          // findings do not describe what may be in the operator's network: see hide
	timeout      time.Duration // for a whole verification
	graceTimeout time.Duration

	running singleflight.Group // verifications in progress, by host
}

// NewVerifier fails when the CNAME target is no host name, a resolver no host:port, or /etc/resolv.conf unreadable.
func NewVerifier(cfg Config) (*Verifier, error) {
	target, err := store.CheckHostName("CNAME target", strings.TrimSuffix(cfg.CNAMETarget, "."))
	if err != nil {
		return nil, fmt.Errorf("dns: %w", err)
	}
	addresses := cfg.Resolvers
	if len(addresses) == 0 {
		if addresses, err = systemResolvers("/etc/resolv.conf"); err != nil {
			return nil, fmt.Errorf("dns: system resolvers: %w", err)
		}
	}
	v := &Verifier{
		Config:       cfg,
		target:       miekg.CanonicalName(target),
		hidesPrivate: !cfg.AllowPrivate,
		timeout:      verifyTimeout,
		graceTimeout: graceTimeout,
	}
	for _, address := range addresses {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("dns: resolver: %w", err)
		}
		v.resolvers = append(v.resolvers, nameServer{name: resolverName(host), address: address, timeout: resolverTimeout})
	}
	return v, nil
}

// systemResolvers returns the name servers in a resolv.conf. Without the file, or without a name server in it, it
// returns the resolver on this machine, as the C library does.
func systemResolvers(path string) ([]string, error) {
	conf, err := miekg.ClientConfigFromFile(path)
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

// resolverName is how findings name a resolver. Merchants know public resolvers by their addresses, not private ones.
func resolverName(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil && !store.IsPublicAddress(ip) {
		return "this service's resolver"
	}
	return "the resolver " + host
}

// Verify asks every resolver and the host's zone's own name servers where the host leads, and weighs their answers. It
// takes at most 8 seconds, and returns early when ctx ends. Concurrent calls for the same host share one verification.
func (v *Verifier) Verify(ctx context.Context, host string) store.DNSFinding {
	host = miekg.CanonicalName(host)
	found := v.running.DoChan(host, func() (any, error) {
		// Not derived from ctx: other callers may wait for the same finding.
		ctx, cancel := context.WithTimeout(context.Background(), v.timeout)
		defer cancel()
		return v.verify(ctx, host), nil
	})
	select {
	case f := <-found:
		return f.Val.(store.DNSFinding)
	case <-ctx.Done():
		f := finding(store.DNSPending, "timeout", "no answer about "+bare(host)+" came in time", "try again in a few minutes")
		f.CheckedAt = v.Now().UTC()
		return f
	}
}

// verify asks all sides at the same time.
func (v *Verifier) verify(ctx context.Context, host string) store.DNSFinding {
	answered, setAnswered := context.WithCancel(ctx)
	defer setAnswered()
	l := &lookup{Verifier: v, host: host, answered: answered}
	l.targetAddresses = sync.OnceValues(func() (map[netip.Addr]bool, error) { return l.allAddresses(ctx, v.target) })

	var own side
	var resolvers []side
	var caa observation
	parts := []func(){
		func() { resolvers = l.askResolvers(ctx); setAnswered() },
		func() { own = l.askOwn(ctx) },
		func() { caa = l.askCAA(ctx) },
	}
	l.each(len(parts), func(i int) { parts[i]() })

	for _, s := range append([]side{own}, resolvers...) {
		v.Log.Debug("dns seen", "host", bare(host), "by", s.who, "verdict", s.verdict, "code", s.code, "fact", s.fact, "hidden", s.hidden)
	}
	f := weigh(own, resolvers, caa)
	f.CheckedAt = v.Now().UTC()
	return f
}

// askResolvers follows the chain from the host once for each resolver.
func (l *lookup) askResolvers(ctx context.Context) []side {
	seen := make([]side, len(l.resolvers))
	l.each(len(seen), func(i int) {
		r := l.resolvers[i]
		seen[i] = side{r.name, observation{verdict: store.DNSPending, code: "bad_answer"}} // remains if the next line panics
		seen[i].observation = l.follow(ctx, func(ctx context.Context, name string) []view { return []view{r.view(ctx, name)} })
	})
	return seen
}

// askOwn follows the chain from the host, and asks each zone's own name servers on the way. When those of the host's
// zone cannot be asked, the observation has no verdict, and says why if the merchant can do something about it. When those
// of a later zone cannot be asked, askOwn asks the resolvers about that zone.
func (l *lookup) askOwn(ctx context.Context) side {
	var hostZone zoneServers
	seen := l.follow(ctx, func(ctx context.Context, name string) []view {
		z, views := l.askZone(ctx, name)
		if name == l.host {
			hostZone = z
		} else if len(views) == 0 {
			views = l.views(ctx, name)
		}
		return views
	})
	switch seen.verdict {
	case "":
		seen = hostZone.obstacle()
	case store.DNSUnreachable: // no resolver could be reached, when they were asked about a later zone
		seen = observation{}
	}
	return side{hostZone.who(), seen}
}

// follow follows the chain from the host to the end.
func (l *lookup) follow(ctx context.Context, ask func(context.Context, string) []view) observation {
	c := chain{lookup: l, ask: ask, chained: map[string]string{}}
	return c.followPath(ctx, []string{l.host})
}
