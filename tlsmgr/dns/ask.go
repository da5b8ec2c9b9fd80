package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	miekg "github.com/miekg/dns"
)

// udpSize is the EDNS buffer size: answers of this size are not fragmented on the internet.
const udpSize = 1232

// Timeouts of one attempt to get an answer. A resolver gets more time, because it may have to ask other servers.
const (
	resolverTimeout   = 2 * time.Second
	nameServerTimeout = time.Second
)

// siblingTimeout limits the wait for a name's records of other types after the first answer about the name. A server then has
// the others at hand, but some never answer questions about a type they do not know.
const siblingTimeout = time.Second

// Why a server that was reached gave no usable answer. Any other error of ask means that it was not reached.
var (
	errTimeout   = errors.New("no answer in time")
	errNoTCP     = errors.New("truncated over UDP, no answer over TCP")
	errBadAnswer = errors.New("unusable answer")
	errServfail  = errors.New("SERVFAIL")
	errBogus     = errors.New("SERVFAIL, but an answer when signatures are not checked")
	errRefused   = errors.New("REFUSED")
	errLame      = errors.New("not a server of the zone")
)

// nameServer is a server that can be asked: a recursive resolver, or one of a zone's own name servers.
type nameServer struct {
	name    string // in findings: "ns1.shop.com", "the resolver 9.9.9.9"
	address string // host:port
	zone    string // the zone that it should serve; empty for a recursive resolver
	timeout time.Duration
}

func (s nameServer) recursive() bool { return s.zone == "" }

// answer is what ask returns, and the type that was asked for.
type answer struct {
	qtype uint16
	m     *miekg.Msg
	err   error
}

func (s nameServer) begin(ctx context.Context, name string, qtype uint16, answers chan<- answer) {
	go func() {
		m, err := s.ask(ctx, name, qtype)
		answers <- answer{qtype, m, err}
	}()
}

// askTypes asks for a name's records of several types at the same time. It calls take for each answer as it arrives,
// until take returns true. After the first answer it waits for the others for at most siblingTimeout.
func (s nameServer) askTypes(ctx context.Context, name string, types []uint16, take func(answer) (enough bool)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, len(types))
	for _, qtype := range types {
		s.begin(ctx, name, qtype, answers)
	}
	var timeout <-chan time.Time
	for range types {
		select {
		case a := <-answers:
			if take(a) {
				return
			}
			if a.err == nil && timeout == nil {
				timeout = time.After(siblingTimeout)
			}
		case <-timeout:
			return
		}
	}
}

// ask asks one question, and retries it once. The message that it returns answers the question: the name has
// records of the type, or has none, or does not exist, or is delegated to a zone below the server's own.
func (s nameServer) ask(ctx context.Context, name string, qtype uint16) (*miekg.Msg, error) {
	question := new(miekg.Msg).SetQuestion(name, qtype)
	question.RecursionDesired = s.recursive()
	question.SetEdns0(udpSize, false)

	answer, err := s.try(ctx, question)
	if err != nil && ctx.Err() == nil {
		answer, err = s.try(ctx, question)
	}
	if err == nil && (answer.Rcode == miekg.RcodeFormatError || answer.Rcode == miekg.RcodeNotImplemented) {
		question.Extra = nil // the server may be older than EDNS
		answer, err = s.try(ctx, question)
	}
	if err == nil && answer.Rcode == miekg.RcodeServerFailure && s.recursive() {
		answer, err = s.tryUnchecked(ctx, question, answer)
	}
	if err != nil {
		return nil, err
	}
	switch answer.Rcode {
	case miekg.RcodeSuccess, miekg.RcodeNameError:
		if s.isLame(answer) {
			return nil, errLame
		}
		return answer, nil
	case miekg.RcodeServerFailure:
		return nil, errServfail
	case miekg.RcodeRefused, miekg.RcodeNotAuth:
		if s.recursive() {
			return nil, errRefused
		}
		return nil, errLame
	default:
		return nil, errBadAnswer
	}
}

// tryUnchecked finds out whether a broken DNSSEC signature is the cause of a SERVFAIL. If so, the resolver answers when
// it is asked not to check signatures (CD=1), and fails again when it checks them.
func (s nameServer) tryUnchecked(ctx context.Context, question, failed *miekg.Msg) (*miekg.Msg, error) {
	question.CheckingDisabled = true
	unchecked, err := s.try(ctx, question)
	if err != nil || unchecked.Rcode == miekg.RcodeServerFailure {
		return failed, nil
	}
	question.CheckingDisabled = false
	checked, err := s.try(ctx, question)
	if err == nil && checked.Rcode == miekg.RcodeServerFailure {
		return nil, errBogus
	}
	return checked, err
}

// try asks over UDP, and over TCP when the answer was truncated.
func (s nameServer) try(ctx context.Context, question *miekg.Msg) (*miekg.Msg, error) {
	question.Id = miekg.Id()
	answer, err := s.exchange(ctx, "udp", question)
	if err == nil && answer.Truncated {
		if answer, err = s.exchange(ctx, "tcp", question); err != nil {
			return nil, errNoTCP
		}
	}
	return answer, err
}

// exchange sends a question and waits for its answer. Over UDP it skips other packets, because anyone can send them.
func (s nameServer) exchange(ctx context.Context, network string, question *miekg.Msg) (_ *miekg.Msg, err error) {
	// The bytes come from strangers: a message that makes the library panic must not end the process.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errBadAnswer, p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()

	client := miekg.Client{Net: network}
	conn, err := client.DialContext(ctx, s.address)
	if err != nil {
		return nil, asTimeout(ctx, err)
	}
	defer conn.Close()
	// When ctx ends, by its timeout or because the answer is not needed any more, the read below fails.
	defer context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0)) // an error means that the connection is closed already
	})()
	conn.UDPSize = udpSize
	if err := conn.WriteMsg(question); err != nil {
		return nil, asTimeout(ctx, err)
	}
	junk := false
	for {
		answer, err := conn.ReadMsg()
		if netErr := (*net.OpError)(nil); errors.As(err, &netErr) {
			if junk {
				return nil, errBadAnswer
			}
			return nil, asTimeout(ctx, err)
		}
		if err == nil && isAnswerTo(question, answer) {
			return answer, nil
		}
		if network == "tcp" {
			return nil, errBadAnswer
		}
		junk = true
	}
}

// asTimeout returns errTimeout if a network error means that no answer came in time. Any other error means that the
// server cannot be reached; it is returned as it is.
func asTimeout(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return errTimeout
	}
	return err
}

// isAnswerTo reports whether a message is the response to a question. The library compares the id only.
func isAnswerTo(question, m *miekg.Msg) bool {
	if m.Id != question.Id || !m.Response || m.Opcode != miekg.OpcodeQuery || len(m.Question) != 1 {
		return false
	}
	asked, answered := question.Question[0], m.Question[0]
	return asked.Qtype == answered.Qtype && asked.Qclass == answered.Qclass &&
		miekg.CanonicalName(asked.Name) == miekg.CanonicalName(answered.Name)
}

// isLame reports whether an answer shows that the server does not serve the zone: it has no records, neither the
// authoritative bit nor the zone's SOA (which an honest "no such record" has), and is no referral to a zone below. From
// a resolver, an answer is lame only if it is a referral.
func (s nameServer) isLame(m *miekg.Msg) bool {
	if m.Rcode != miekg.RcodeSuccess || m.Authoritative || len(m.Answer) > 0 || hasType(m.Ns, miekg.TypeSOA) {
		return false
	}
	if s.recursive() {
		return hasType(m.Ns, miekg.TypeNS)
	}
	return s.referral(m) == nil
}

func hasType(rrs []miekg.RR, rrtype uint16) bool {
	return slices.ContainsFunc(rrs, func(rr miekg.RR) bool { return rr.Header().Rrtype == rrtype })
}

// delegation is a zone's name servers, as a server of the zone above names them.
type delegation struct {
	zone    string
	servers []string                // names
	glue    map[string][]netip.Addr // addresses in the same answer, by name
}

// referral reads an answer that refers to the name servers of a zone below the server's own, on the way down to the
// name in the question. It returns nil for any other answer.
func (s nameServer) referral(m *miekg.Msg) *delegation {
	if s.recursive() || m.Rcode != miekg.RcodeSuccess || m.Authoritative || len(m.Answer) > 0 {
		return nil
	}
	d := &delegation{glue: map[string][]netip.Addr{}}
	for _, rr := range m.Ns {
		ns, ok := rr.(*miekg.NS)
		if !ok {
			continue
		}
		zone := miekg.CanonicalName(ns.Hdr.Name)
		if zone == s.zone || !miekg.IsSubDomain(s.zone, zone) || !miekg.IsSubDomain(zone, m.Question[0].Name) {
			return nil
		}
		d.zone = zone
		d.servers = append(d.servers, miekg.CanonicalName(ns.Ns))
	}
	if d.servers == nil {
		return nil
	}
	for _, rr := range m.Extra {
		if address, ok := addressOf(rr); ok {
			name := miekg.CanonicalName(rr.Header().Name)
			d.glue[name] = append(d.glue[name], address)
		}
	}
	return d
}

// addressOf is the address in an A or AAAA record; the zero Addr in a malformed one. It returns false for other records.
func addressOf(rr miekg.RR) (netip.Addr, bool) {
	var ip net.IP
	switch rr := rr.(type) {
	case *miekg.A:
		ip = rr.A
	case *miekg.AAAA:
		ip = rr.AAAA
	default:
		return netip.Addr{}, false
	}
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap(), true
}
