package tlsmgr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// udpSize is the EDNS buffer size that crosses the internet in one piece.
const udpSize = 1232

// How long one try of one question waits for its answer. A resolver may have to ask others first.
const (
	resolverTimeout   = 2 * time.Second
	nameServerTimeout = time.Second
)

// siblingPatience is how much longer than the first answer the answers to questions asked beside it are
// waited for. A server that has just answered about a name has the rest at hand; some never answer
// about a type that they do not know.
const siblingPatience = time.Second

// Why a server that was reached gave no answer to go by. Any other error of ask says that it was
// not reached.
var (
	errTimeout   = errors.New("no answer in time")
	errNoTCP     = errors.New("truncated over UDP, no answer over TCP")
	errBadAnswer = errors.New("unusable answer")
	errServfail  = errors.New("SERVFAIL")
	errBogus     = errors.New("SERVFAIL unless signatures are left unchecked")
	errRefused   = errors.New("REFUSED")
	errLame      = errors.New("not a server of the zone")
)

// nameServer is a server that can be asked: a recursive resolver, or one of a zone's own name servers.
type nameServer struct {
	name    string // as sentences call it: "ns1.shop.com", "the resolver 9.9.9.9"
	address string // host:port
	zone    string // the zone that it was found for; "" for a recursive resolver
	timeout time.Duration
}

func (s nameServer) recursive() bool { return s.zone == "" }

// ask asks one question, twice if need be. The message it returns answers that question: the name has
// such records, or has none, or does not exist, or is delegated to a zone below the server's own.
func (s nameServer) ask(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	question := new(dns.Msg).SetQuestion(name, qtype)
	question.RecursionDesired = s.recursive()
	question.SetEdns0(udpSize, false)

	answer, err := s.try(ctx, question)
	if err != nil && ctx.Err() == nil {
		answer, err = s.try(ctx, question)
	}
	if err == nil && (answer.Rcode == dns.RcodeFormatError || answer.Rcode == dns.RcodeNotImplemented) {
		question.Extra = nil // servers older than EDNS
		answer, err = s.try(ctx, question)
	}
	if err == nil && answer.Rcode == dns.RcodeServerFailure && s.recursive() {
		answer, err = s.tryUnchecked(ctx, question, answer)
	}
	if err != nil {
		return nil, err
	}
	switch answer.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError:
		if s.isLame(answer) {
			return nil, errLame
		}
		return answer, nil
	case dns.RcodeServerFailure:
		return nil, errServfail
	case dns.RcodeRefused, dns.RcodeNotAuth:
		if s.recursive() {
			return nil, errRefused
		}
		return nil, errLame
	default:
		return nil, errBadAnswer
	}
}

// tryUnchecked tells a broken DNSSEC signature from other failures: the resolver has an answer once it is
// told not to check (CD=1), and none again when it is to check.
func (s nameServer) tryUnchecked(ctx context.Context, question, failed *dns.Msg) (*dns.Msg, error) {
	question.CheckingDisabled = true
	unchecked, err := s.try(ctx, question)
	if err != nil || unchecked.Rcode == dns.RcodeServerFailure {
		return failed, nil
	}
	question.CheckingDisabled = false
	again, err := s.try(ctx, question)
	if err == nil && again.Rcode == dns.RcodeServerFailure {
		return nil, errBogus
	}
	return again, err
}

// try asks over UDP, and again over TCP when the answer did not fit.
func (s nameServer) try(ctx context.Context, question *dns.Msg) (*dns.Msg, error) {
	question.Id = dns.Id()
	answer, err := s.exchange(ctx, "udp", question)
	if err == nil && answer.Truncated {
		if answer, err = s.exchange(ctx, "tcp", question); err != nil {
			return nil, errNoTCP
		}
	}
	return answer, err
}

// exchange sends a question and waits for its answer. Over UDP anybody may send anything to the
// port: what does not belong to the question is passed over, not taken for the answer.
func (s nameServer) exchange(ctx context.Context, network string, question *dns.Msg) (_ *dns.Msg, err error) {
	// The bytes come from strangers: a message that trips the library must not end the process.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errBadAnswer, p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()

	client := dns.Client{Net: network}
	conn, err := client.DialContext(ctx, s.address)
	if err != nil {
		return nil, settle(ctx, err)
	}
	defer conn.Close()
	// An answer that is no longer wanted is not waited for, nor one that does not come in time.
	defer context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0)) // fails on a connection that is closed already
	})()
	conn.UDPSize = udpSize
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

// settle tells silence from a server that cannot be reached.
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

// isLame reports whether an answer comes from a server that does not know the zone: it has no records, and
// points to other servers that are not those of a zone below its own, or to nobody. "No such
// record" comes with the zone's SOA or with the authoritative bit. Resolvers are believed without either.
func (s nameServer) isLame(m *dns.Msg) bool {
	if m.Rcode != dns.RcodeSuccess || m.Authoritative || len(m.Answer) > 0 {
		return false
	}
	if hasType(m.Ns, dns.TypeSOA) {
		return false
	}
	if s.recursive() {
		return hasType(m.Ns, dns.TypeNS)
	}
	return s.delegation(m) == nil
}

func hasType(rrs []dns.RR, rrtype uint16) bool {
	return slices.ContainsFunc(rrs, func(rr dns.RR) bool { return rr.Header().Rrtype == rrtype })
}

// askTypes asks for several types of a name at once and hands over the answers as they come, until take
// returns true. After the first answer it waits for the others no longer than siblingPatience; what is not
// answered by then is not handed over.
func (s nameServer) askTypes(ctx context.Context, name string, types []uint16, take func(qtype uint16, m *dns.Msg, err error) (enough bool)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		qtype uint16
		m     *dns.Msg
		err   error
	}
	answers := make(chan answer, len(types))
	for _, qtype := range types {
		go func() {
			m, err := s.ask(ctx, name, qtype)
			answers <- answer{qtype, m, err}
		}()
	}
	var waited <-chan time.Time
	for range types {
		select {
		case a := <-answers:
			if take(a.qtype, a.m, a.err) {
				return
			}
			if a.err == nil && waited == nil {
				waited = time.After(siblingPatience)
			}
		case <-waited:
			return
		}
	}
}
