package dns

import (
	"context"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	miekg "github.com/miekg/dns"
)

// graceTimeout is how long other questions may go on after every resolver has answered about the host or failed. A
// resolver that works answers them in that time.
const graceTimeout = time.Second

// lookup is one verification in progress.
type lookup struct {
	*Verifier
	host            string
	answered        context.Context                     // is cancelled when every resolver has answered about the host or failed
	targetAddresses func() (map[netip.Addr]bool, error) // of the CNAME target
}

// anyResolver asks all resolvers at the same time. It returns the first answer that has records; if none has, any
// answer; if there is none, one of the errors.
func (l *lookup) anyResolver(ctx context.Context, name string, qtype uint16) (*miekg.Msg, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		m   *miekg.Msg
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

// allAddresses returns the addresses of a name from all resolvers together. If no resolver knows one, it returns one of
// their errors.
func (l *lookup) allAddresses(ctx context.Context, name string) (map[netip.Addr]bool, error) {
	known := make([]map[netip.Addr]bool, len(l.resolvers))
	errs := make([]error, len(l.resolvers))
	l.each(len(known), func(i int) { known[i], errs[i] = l.resolvers[i].addressesOf(ctx, name) })
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

// views asks every resolver about a name.
func (l *lookup) views(ctx context.Context, name string) []view {
	views := make([]view, len(l.resolvers))
	l.each(len(views), func(i int) { views[i] = l.resolvers[i].view(ctx, name) })
	return views
}

// afterResolvers returns a context for questions that no verification should wait for: about the zone's name servers and
// about CAA records. It ends graceTimeout after every resolver has answered about the host or failed.
func (l *lookup) afterResolvers(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.answered, func() { time.AfterFunc(l.graceTimeout, cancel) })
	return ctx, func() { stop(); cancel() }
}

// each calls f with 0 to n-1 at the same time, and waits for all of them. It recovers panics: the answers come from
// strangers' zones, and one that triggers a bug here must not end the process.
func (l *lookup) each(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					l.Log.Error("DNS lookup panicked", "panic", p, "stack", string(debug.Stack()))
				}
			}()
			f(i)
		})
	}
	all.Wait()
}
