package tlsmgr

import (
	"context"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"github.com/miekg/dns"

	"mtagd/store"
)

// lookup is one verification while it goes on.
type lookup struct {
	*Verifier
	host string
	// answered ends when every resolver has said, or failed to say, what it sees at the host.
	answered context.Context
	// targetAddresses are all that the resolvers know.
	targetAddresses func() (map[netip.Addr]bool, error)
}

// side is one of those who were asked about the host, and what it sees there.
type side struct {
	who string
	sighting
}

func (v *Verifier) verify(ctx context.Context, host string) store.DNSFinding {
	answered, haveAnswered := context.WithCancel(ctx)
	defer haveAnswered()
	l := &lookup{Verifier: v, host: host, answered: answered}
	l.targetAddresses = sync.OnceValues(func() (map[netip.Addr]bool, error) { return l.allAddresses(ctx, v.target) })

	var own side
	var resolvers []side
	var caa sighting
	parts := []func(){
		func() { resolvers = l.askResolvers(ctx); haveAnswered() },
		func() { own = l.askOwn(ctx) },
		func() { caa = l.askCAA(ctx) },
	}
	l.each(len(parts), func(i int) { parts[i]() })

	for _, s := range append([]side{own}, resolvers...) {
		v.log.Debug("dns seen", "host", bare(host), "by", s.who, "verdict", s.verdict, "code", s.code, "fact", s.fact)
	}
	f := weigh(own, resolvers, caa)
	f.CheckedAt = v.now().UTC()
	return f
}

// askResolvers asks every resolver.
func (l *lookup) askResolvers(ctx context.Context) []side {
	seen := make([]side, len(l.resolvers))
	l.each(len(seen), func(i int) {
		r := l.resolvers[i]
		seen[i] = side{r.name, sighting{verdict: store.DNSPending, code: "bad_answer"}}
		seen[i].sighting = l.follow(ctx, func(ctx context.Context, name string) []view { return []view{r.view(ctx, name)} })
	})
	return seen
}

// askOwn asks the name servers of the host's zone, and then those of each zone that its CNAME records lead
// through; where one's cannot be asked, the resolvers. When those of the host's zone cannot be
// asked, the sighting has no verdict, and no code either unless that is somebody's mistake.
func (l *lookup) askOwn(ctx context.Context) side {
	var hosts zone
	seen := l.follow(ctx, func(ctx context.Context, name string) []view {
		z, views := l.askZone(ctx, name)
		if name == l.host {
			hosts = z
		} else if len(views) == 0 {
			views = make([]view, len(l.resolvers))
			l.each(len(views), func(i int) { views[i] = l.resolvers[i].view(ctx, name) })
		}
		return views
	})
	switch seen.verdict {
	case "":
		seen = hosts.obstacle()
	case store.DNSUnreachable: // the resolvers, asked in the place of a zone's servers
		seen = sighting{}
	}
	return side{bare(hosts.name) + "'s name servers", seen}
}

func (l *lookup) follow(ctx context.Context, ask func(context.Context, string) []view) sighting {
	c := chain{host: l.host, target: l.target, ask: ask, targetAddresses: l.targetAddresses, told: map[string]string{}}
	return c.from(ctx, []string{l.host})
}

// patient is a context for questions that only help to find a cause: it ends soon after the resolvers
// have answered about the host, since a resolver that could has the rest at hand by then.
func (l *lookup) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.answered, func() { time.AfterFunc(l.causePatience, cancel) })
	return ctx, func() { stop(); cancel() }
}

// anyResolver asks all resolvers at once. The first answer with records is taken; without one, any
// answer; without an answer, an error of one of them.
func (l *lookup) anyResolver(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		m   *dns.Msg
		err error
	}
	answers := make(chan answer, len(l.resolvers))
	for _, r := range l.resolvers {
		go func() {
			m, err := r.ask(ctx, name, qtype)
			answers <- answer{m, err}
		}()
	}
	var best answer
	for range l.resolvers {
		a := <-answers
		if a.err == nil && len(a.m.Answer) > 0 {
			return a.m, nil
		}
		if best.m == nil {
			best = a
		}
	}
	return best.m, best.err
}

// allAddresses are the addresses that any of the resolvers knows a name by. The error is of one that
// has none to tell.
func (l *lookup) allAddresses(ctx context.Context, name string) (map[netip.Addr]bool, error) {
	known := make([]map[netip.Addr]bool, len(l.resolvers))
	errs := make([]error, len(l.resolvers))
	l.each(len(known), func(i int) { known[i], errs[i] = l.resolvers[i].allAddresses(ctx, name) })
	all := map[netip.Addr]bool{}
	var err error
	for i := range known {
		for a := range known[i] {
			all[a] = true
		}
		if errs[i] != nil {
			err = errs[i]
		}
	}
	if len(all) > 0 {
		err = nil
	}
	return all, err
}

// each calls f with 0 to n-1 at once, and waits. What is looked at comes from strangers' zones: a
// mistake of ours that only they could think of must not end the process.
func (v *Verifier) each(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					v.log.Error("dns look-up panicked", "panic", p, "stack", string(debug.Stack()))
				}
			}()
			f(i)
		})
	}
	all.Wait()
}
