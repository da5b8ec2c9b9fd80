package tlsmgr

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"
)

// udpSize is the EDNS buffer size that crosses the internet in one piece.
const udpSize = 1232

// Why a resolver that was reached gave no answer to go by. Any other error of ask says that the
// resolver was not reached.
var (
	errTimeout   = errors.New("no answer in time")
	errBadAnswer = errors.New("unusable answer")
	errServfail  = errors.New("SERVFAIL")
	errRefused   = errors.New("REFUSED")
	errLame      = errors.New("a referral instead of an answer")
)

// resolver is a recursive resolver to ask.
type resolver struct {
	address string // host:port
	timeout time.Duration
}

// ask asks one question, twice if need be. The message it returns answers that question: the name has such records,
// or has none, or does not exist.
func (r resolver) ask(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	answer, err := r.try(ctx, name, qtype)
	if err != nil && ctx.Err() == nil {
		answer, err = r.try(ctx, name, qtype)
	}
	if err != nil {
		return nil, err
	}
	switch answer.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError:
		if isReferral(answer) {
			return nil, errLame
		}
		return answer, nil
	case dns.RcodeServerFailure:
		return nil, errServfail
	case dns.RcodeRefused:
		return nil, errRefused
	default:
		return nil, errBadAnswer
	}
}

// try asks over UDP, and again over TCP when the answer did not fit.
func (r resolver) try(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	question := new(dns.Msg).SetQuestion(name, qtype) // draws an id, sets RD
	question.SetEdns0(udpSize, false)

	answer, err := r.exchange(ctx, "udp", question)
	if err == nil && answer.Truncated {
		if answer, err = r.exchange(ctx, "tcp", question); err != nil {
			return nil, errTimeout // reached it was, over UDP
		}
	}
	return answer, err
}

// exchange sends a question and waits for its answer. Over UDP anybody may send anything to the
// port: what does not belong to the question is passed over, not taken for the answer.
func (r resolver) exchange(ctx context.Context, network string, question *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()

	client := dns.Client{Net: network}
	conn, err := client.DialContext(ctx, r.address)
	if err != nil {
		return nil, settle(ctx, err)
	}
	defer conn.Close()
	conn.UDPSize = udpSize
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if err := conn.WriteMsg(question); err != nil {
		return nil, settle(ctx, err)
	}
	junk := false
	for {
		answer, err := conn.ReadMsg()
		if netErr := (*net.OpError)(nil); errors.As(err, &netErr) {
			if junk {
				return nil, errBadAnswer
			}
			return nil, settle(ctx, err)
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

// settle tells silence from a resolver that cannot be reached.
func settle(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return errTimeout
	}
	return err
}

// isAnswerTo reports whether a message is the response to a question: the library looks at the id alone.
func isAnswerTo(question, m *dns.Msg) bool {
	if m.Id != question.Id || !m.Response || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return false
	}
	asked, answered := question.Question[0], m.Question[0]
	return asked.Qtype == answered.Qtype && asked.Qclass == answered.Qclass &&
		dns.CanonicalName(asked.Name) == dns.CanonicalName(answered.Name)
}

// isReferral reports whether a server points to other servers instead of answering: it is no resolver, or
// a delegation leads to a server that does not know the zone. "No such record" comes with
// the zone's SOA.
func isReferral(m *dns.Msg) bool {
	if m.Rcode != dns.RcodeSuccess || m.Authoritative || len(m.Answer) > 0 {
		return false
	}
	servers := false
	for _, rr := range m.Ns {
		switch rr.(type) {
		case *dns.SOA:
			return false
		case *dns.NS:
			servers = true
		}
	}
	return servers
}

// addresses are a name's IPv4 and IPv6 addresses, those behind CNAME records included.
func (r resolver) addresses(ctx context.Context, name string) (map[netip.Addr]bool, error) {
	found := map[netip.Addr]bool{}
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		answer, err := r.ask(ctx, name, qtype)
		if err != nil {
			return nil, err
		}
		for _, rr := range answer.Answer {
			var ip net.IP
			switch rr := rr.(type) {
			case *dns.A:
				ip = rr.A
			case *dns.AAAA:
				ip = rr.AAAA
			}
			if addr, ok := netip.AddrFromSlice(ip); ok {
				found[addr.Unmap()] = true
			}
		}
	}
	return found, nil
}
