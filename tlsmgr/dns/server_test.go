package dns

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	miekg "github.com/miekg/dns"

	"mtagd/tlsmgr/dnstest"
)

// server is a resolver on loopback that knows the records of one zone file.
type server struct {
	address string
	records []miekg.RR

	// chases: answers contain the whole chain of CNAME records, like those of most resolvers. Without it they contain
	// only the first record.
	chases bool
	// udpOnly: the server does not listen on TCP.
	udpOnly bool
	// reply, if not nil, may change the answer. If it returns nil, no answer is sent.
	reply func(question, answer *miekg.Msg, overTCP bool) *miekg.Msg
}

// serve runs s on UDP and TCP until the test ends, with the records of a file in testdata/resolver.
func serve(t *testing.T, zone string, s *server) *server {
	t.Helper()
	s.records = readZone(t, zone)

	running := dnstest.Run(t, miekg.HandlerFunc(s.serveDNS))
	if s.udpOnly {
		if err := running.StopTCP(); err != nil {
			t.Fatal(err)
		}
	}
	s.address = running.Address
	return s
}

func readZone(t *testing.T, zone string) []miekg.RR {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "resolver", zone+".zone"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var records []miekg.RR
	parser := miekg.NewZoneParser(f, ".", f.Name())
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		records = append(records, rr)
	}
	if err := parser.Err(); err != nil {
		t.Fatal(err)
	}
	return records
}

func (s *server) serveDNS(w miekg.ResponseWriter, question *miekg.Msg) {
	answer := s.answer(question)
	if s.reply != nil {
		_, overTCP := w.RemoteAddr().(*net.TCPAddr)
		answer = s.reply(question, answer, overTCP)
	}
	if answer != nil {
		w.WriteMsg(answer) // fails when the client has closed its socket
	}
}

func (s *server) answer(question *miekg.Msg) *miekg.Msg {
	answer := new(miekg.Msg).SetReply(question)
	answer.RecursionAvailable = true
	name, qtype := question.Question[0].Name, question.Question[0].Qtype
	// Follow at most nine records, because of loops.
	for range 9 {
		known, next := false, ""
		for _, rr := range s.records {
			if !strings.EqualFold(rr.Header().Name, name) {
				continue
			}
			known = true
			if c, ok := rr.(*miekg.CNAME); ok {
				next = c.Target
			}
			if rr.Header().Rrtype == qtype || next != "" {
				answer.Answer = append(answer.Answer, rr)
			}
		}
		if !known {
			answer.Rcode = miekg.RcodeNameError
		}
		if next == "" || qtype == miekg.TypeCNAME && !s.chases {
			break
		}
		name = next
	}
	return answer
}
