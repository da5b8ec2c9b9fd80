package dns

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	miekg "github.com/miekg/dns"
)

// view is what one server says about one name. When err and delegated are nil, it has aliases, or addresses, or none of
// both.
type view struct {
	by        nameServer
	aliases   []string          // targets of the name's CNAME records; more than one is a mistake
	chained   map[string]string // aliases of other names in the same answer: a resolver sends a whole chain
	addresses map[netip.Addr]bool
	absent    bool   // the name does not exist (NXDOMAIN), nor does any name below it
	authority string // if absent: the zone whose SOA the answer has
	noAlias   bool   // the name has no CNAME record; its addresses may be unknown
	delegated *delegation
	err       error
}

func newView(by nameServer) view {
	return view{by: by, chained: map[string]string{}, addresses: map[netip.Addr]bool{}}
}

// view asks for the CNAME record and the addresses of a name at the same time. If there is a CNAME record, it alone
// counts: it may be right although its target has no addresses, or the target's zone fails. Addresses count if there is
// none. Besides, some servers answer only questions about addresses; their answers include the CNAME record.
func (s nameServer) view(ctx context.Context, name string) view {
	seen := newView(s)
	// The errors for types that the server never answers. For AAAA, silence counts as "no such record".
	failed := map[uint16]error{miekg.TypeCNAME: errTimeout, miekg.TypeA: errTimeout, miekg.TypeAAAA: nil}
	s.askTypes(ctx, name, []uint16{miekg.TypeCNAME, miekg.TypeA, miekg.TypeAAAA}, func(a answer) bool {
		failed[a.qtype] = a.err
		if a.err == nil {
			seen.read(a.m, name)
			seen.noAlias = seen.noAlias || a.qtype == miekg.TypeCNAME && len(seen.aliases) == 0
		}
		return len(seen.aliases) > 0 || seen.delegated != nil
	})
	if len(seen.aliases) == 0 && len(seen.addresses) == 0 && !seen.absent && seen.delegated == nil {
		seen.err = cmp.Or(failed[miekg.TypeCNAME], failed[miekg.TypeA], failed[miekg.TypeAAAA])
	}
	return seen
}

// read adds what an answer says about the view's name.
func (v *view) read(m *miekg.Msg, name string) {
	var aliases []string
	for _, rr := range m.Answer {
		if address, ok := addressOf(rr); ok {
			v.addresses[address] = true
		}
		if alias, ok := rr.(*miekg.CNAME); ok {
			owner, target := miekg.CanonicalName(alias.Hdr.Name), miekg.CanonicalName(alias.Target)
			if owner != name {
				v.chained[owner] = target
			} else if !slices.Contains(aliases, target) {
				aliases = append(aliases, target)
			}
		}
	}
	if len(aliases) > 0 {
		v.aliases = aliases
		return
	}
	v.delegated = v.by.referral(m)
	if m.Rcode == miekg.RcodeNameError {
		v.absent = true
		for _, rr := range m.Ns {
			if rr.Header().Rrtype == miekg.TypeSOA {
				v.authority = miekg.CanonicalName(rr.Header().Name)
			}
		}
	}
}

// agrees reports whether two views of a name are the same: equal records, or the same failure.
func (v view) agrees(w view) bool {
	if v.err != nil || w.err != nil {
		return v.err != nil && w.err != nil && failureOf(v.by, v.err).code == failureOf(w.by, w.err).code
	}
	return slices.Equal(slices.Sorted(slices.Values(v.aliases)), slices.Sorted(slices.Values(w.aliases))) &&
		maps.Equal(v.addresses, w.addresses)
}

// serverNames lists the servers of some views, in the form for a sentence.
func serverNames(views []view) string {
	var names []string
	for _, v := range views {
		names = append(names, v.by.name)
	}
	return list(names)
}

var errNoAddress = errors.New("no address")

// addressesOf asks a recursive resolver for the addresses at the end of the chain that begins at a name. The error is
// errNoAddress if the resolver says that there are none, and errTimeout if it does not answer.
func (s nameServer) addressesOf(ctx context.Context, name string) (map[netip.Addr]bool, error) {
	found := map[netip.Addr]bool{}
	err := errTimeout
	s.askTypes(ctx, name, []uint16{miekg.TypeA, miekg.TypeAAAA}, func(a answer) bool {
		switch {
		case a.err == nil:
			err = errNoAddress
			for _, rr := range a.m.Answer {
				if address, ok := addressOf(rr); ok {
					found[address] = true
				}
			}
		case err == errTimeout:
			err = a.err
		}
		return false
	})
	if len(found) > 0 {
		err = nil
	}
	return found, err
}

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
	answers := make(chan answer, len(l.resolvers))
	for _, r := range l.resolvers {
		r.begin(ctx, name, qtype, answers)
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

// allAddresses returns the addresses of a name from all resolvers together. If none knows one, it returns the error of the last one
// that has any.
func (l *lookup) allAddresses(ctx context.Context, name string) (map[netip.Addr]bool, error) {
	known := make([]map[netip.Addr]bool, len(l.resolvers))
	errs := make([]error, len(l.resolvers))
	l.each(len(known), func(i int) { known[i], errs[i] = l.resolvers[i].addressesOf(ctx, name) })
	all := map[netip.Addr]bool{}
	for _, some := range known {
		maps.Copy(all, some)
	}
	if len(all) > 0 {
		return all, nil
	}
	slices.Reverse(errs)
	return all, cmp.Or(errs...)
}

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
