package dns

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"mtagd/store"
)

const (
	testHost   = "mtag-ab12.shop.com"
	testTarget = "edge.example.com"
)

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newVerifier asks the given resolvers, with a short timeout.
func newVerifier(t *testing.T, resolvers ...string) *Verifier {
	t.Helper()
	v, err := NewVerifier(Config{CNAMETarget: testTarget, Resolvers: resolvers, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return testTime }})
	if err != nil {
		t.Fatal(err)
	}
	v.hidesPrivate = false           // so that findings show what the resolvers say
	v.graceTimeout = 5 * time.Second // the usual second is too short on a busy machine
	for i := range v.resolvers {
		v.resolvers[i].timeout = time.Second
	}
	return v
}

func expect(t *testing.T, got store.DNSFinding, verdict store.DNSVerdict, code string, words ...string) {
	t.Helper()
	if got.Verdict != verdict || got.Code != code {
		t.Errorf("found %s (%s): %s; want %s (%s)", got.Verdict, got.Code, got.Detail, verdict, code)
	}
	for _, w := range words {
		if !strings.Contains(got.Detail, w) {
			t.Errorf("detail %q does not have %q", got.Detail, w)
		}
	}
	if !got.CheckedAt.Equal(testTime) {
		t.Errorf("checked at %v, want %v", got.CheckedAt, testTime)
	}
}

func TestOneResolver(t *testing.T) {
	cases := []struct {
		sentence string
		zone     string
		verdict  store.DNSVerdict
		code     string
		detail   string
	}{
		{"a CNAME record to the target is correct", "correct", store.DNSCorrect, "ok",
			"mtag-ab12.shop.com points to edge.example.com"},
		{"names compare without regard to case", "case", store.DNSCorrect, "ok", testHost},
		{"eight CNAME records may lead to the target", "chain", store.DNSCorrect, "ok", testTarget},
		{"nine CNAME records are too many", "too_many_hops", store.DNSWrong, "too_many_hops", "point it straight to edge.example.com"},
		{"a loop is wrong", "loop", store.DNSWrong, "loop", "point it to edge.example.com"},
		{"a CNAME record to another name is wrong", "elsewhere", store.DNSWrong, "wrong_target",
			"mtag-ab12.shop.com points to elsewhere.net; point it to edge.example.com"},
		{"a CNAME record to a name that does not exist is wrong", "dangling", store.DNSWrong, "wrong_target", "points to gone.shop.com"},
		{"a name that does not exist is wrong", "no_such_name", store.DNSWrong, "no_record",
			"add a CNAME record that points to edge.example.com"},
		{"a name with records of other types only is wrong", "no_such_record", store.DNSWrong, "no_record", "has no record"},
		{"addresses that the target has are correct", "flattened", store.DNSCorrect, "flattened", "has the addresses of edge.example.com"},
		{"a chain that ends at the target's addresses is correct", "flattened_alias", store.DNSCorrect, "flattened", testHost},
		{"addresses of which one is not the target's are wrong", "half_flattened", store.DNSWrong, "wrong_address", "replace its A and AAAA records"},
		{"an address that is not the target's is wrong", "own_address", store.DNSWrong, "wrong_address", "not those of edge.example.com"},
	}
	for _, c := range cases {
		for _, chases := range []bool{false, true} {
			name := c.sentence
			if chases {
				name += ", with the whole chain in one answer"
			}
			t.Run(name, func(t *testing.T) {
				s := serve(t, c.zone, &server{chases: chases})
				expect(t, newVerifier(t, s.address).Verify(t.Context(), testHost), c.verdict, c.code, c.detail)
			})
		}
	}
	t.Run("the host may be written in capitals and with a final dot", func(t *testing.T) {
		s := serve(t, "correct", &server{})
		expect(t, newVerifier(t, s.address).Verify(t.Context(), "MTAG-ab12.Shop.com."), store.DNSCorrect, "ok", testHost+" points")
	})
	t.Run("a chain that is in one answer is not asked for again", func(t *testing.T) {
		s := serve(t, "chain", &server{chases: true, reply: func(question, answer *miekg.Msg, _ bool) *miekg.Msg {
			if name := question.Question[0].Name; name == "a1.shop.com." {
				t.Errorf("%s was asked for", name)
			}
			return answer
		}})
		newVerifier(t, s.address).Verify(t.Context(), testHost)
	})
}

// If the host's CNAME record points elsewhere, the answer about the name that it points to does not matter.
func TestARecordElsewhereIsWrongWhateverIsThere(t *testing.T) {
	for name, there := range map[string]int{
		"REFUSED":  miekg.RcodeRefused,
		"NXDOMAIN": miekg.RcodeNameError,
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "elsewhere", &server{reply: func(question, answer *miekg.Msg, _ bool) *miekg.Msg {
				if strings.EqualFold(question.Question[0].Name, testHost+".") {
					return answer
				}
				return new(miekg.Msg).SetRcode(question, there)
			}})
			expect(t, newVerifier(t, s.address).Verify(t.Context(), testHost), store.DNSWrong, "wrong_target", "points to elsewhere.net")
		})
	}
	t.Run("SERVFAIL for its addresses", func(t *testing.T) {
		s := serve(t, "elsewhere", &server{reply: func(question, answer *miekg.Msg, _ bool) *miekg.Msg {
			if question.Question[0].Qtype == miekg.TypeCNAME {
				return answer
			}
			return new(miekg.Msg).SetRcode(question, miekg.RcodeServerFailure)
		}})
		expect(t, newVerifier(t, s.address).Verify(t.Context(), testHost), store.DNSWrong, "wrong_target", "points to elsewhere.net")
	})
}

// withRcode answers every question with a response code and no records.
func withRcode(code int) func(question, answer *miekg.Msg, overTCP bool) *miekg.Msg {
	return func(question, _ *miekg.Msg, _ bool) *miekg.Msg {
		return new(miekg.Msg).SetRcode(question, code)
	}
}

func silent(_, _ *miekg.Msg, _ bool) *miekg.Msg { return nil }

func TestUnusableAnswersArePending(t *testing.T) {
	cases := []struct {
		sentence string
		reply    func(question, answer *miekg.Msg, overTCP bool) *miekg.Msg
		code     string
	}{
		{"SERVFAIL", withRcode(miekg.RcodeServerFailure), "servfail"},
		{"REFUSED", withRcode(miekg.RcodeRefused), "refused"},
		{"NOTIMP", withRcode(miekg.RcodeNotImplemented), "bad_answer"},
		{"silence", silent, "timeout"},
		{"a referral", func(question, _ *miekg.Msg, _ bool) *miekg.Msg {
			m := new(miekg.Msg).SetReply(question)
			m.Ns = []miekg.RR{&miekg.NS{Hdr: miekg.RR_Header{Name: "shop.com.", Rrtype: miekg.TypeNS, Class: miekg.ClassINET}, Ns: "ns.shop.com."}}
			return m
		}, "lame_delegation"},
		{"an answer to another question", func(_, answer *miekg.Msg, _ bool) *miekg.Msg {
			answer.Question[0].Name = "mtag-zz99.shop.com."
			return answer
		}, "bad_answer"},
		{"an answer to a question of another type", func(_, answer *miekg.Msg, _ bool) *miekg.Msg {
			answer.Question[0].Qtype = miekg.TypeMX
			return answer
		}, "bad_answer"},
		{"an answer without the question", func(_, answer *miekg.Msg, _ bool) *miekg.Msg {
			answer.Question = nil
			return answer
		}, "bad_answer"},
		{"an answer with another id", func(_, answer *miekg.Msg, _ bool) *miekg.Msg {
			answer.Id++
			return answer
		}, "bad_answer"},
		{"an answer without the response bit", func(_, answer *miekg.Msg, _ bool) *miekg.Msg {
			answer.Response = false
			return answer
		}, "bad_answer"},
	}
	for _, c := range cases {
		t.Run(c.sentence+" is pending", func(t *testing.T) {
			t.Parallel()
			s := serve(t, "correct", &server{reply: c.reply})
			expect(t, newVerifier(t, s.address).Verify(t.Context(), testHost), store.DNSPending, c.code, testHost)
		})
	}
}

func TestAsking(t *testing.T) {
	t.Run("a truncated answer is asked for again over TCP", func(t *testing.T) {
		s := serve(t, "correct", &server{reply: func(_, answer *miekg.Msg, overTCP bool) *miekg.Msg {
			if !overTCP {
				answer.Truncated, answer.Answer = true, nil
			}
			return answer
		}})
		expect(t, newVerifier(t, s.address).Verify(t.Context(), testHost), store.DNSCorrect, "ok")
	})
	t.Run("a truncated answer is pending when there is none over TCP", func(t *testing.T) {
		s := serve(t, "correct", &server{udpOnly: true, reply: func(_, answer *miekg.Msg, _ bool) *miekg.Msg {
			answer.Truncated, answer.Answer = true, nil
			return answer
		}})
		expect(t, newVerifier(t, s.address).Verify(t.Context(), testHost), store.DNSPending, "no_tcp", "TCP")
	})
	t.Run("a question is asked again when its packet is lost", func(t *testing.T) {
		var lost sync.Map
		s := serve(t, "correct", &server{reply: func(question, answer *miekg.Msg, _ bool) *miekg.Msg {
			if _, again := lost.LoadOrStore(question.Question[0], true); !again {
				return nil
			}
			return answer
		}})
		expect(t, newVerifier(t, s.address).Verify(t.Context(), testHost), store.DNSCorrect, "ok")
	})
	t.Run("a question asks for recursion and leaves room for 1232 bytes", func(t *testing.T) {
		s := serve(t, "correct", &server{reply: func(question, answer *miekg.Msg, _ bool) *miekg.Msg {
			if !question.RecursionDesired {
				t.Error("the question has no RD bit")
			}
			if opt := question.IsEdns0(); opt == nil || opt.UDPSize() != 1232 {
				t.Errorf("EDNS option %v, want a UDP size of 1232", opt)
			}
			return answer
		}})
		newVerifier(t, s.address).Verify(t.Context(), testHost)
	})
	t.Run("a cancelled verification is pending", func(t *testing.T) {
		s := serve(t, "correct", &server{reply: silent})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		expect(t, newVerifier(t, s.address).Verify(ctx, testHost), store.DNSPending, "timeout")
	})
	t.Run("a verification ends in time even if a server is silent", func(t *testing.T) {
		s := serve(t, "correct", &server{reply: silent})
		v := newVerifier(t, s.address)
		v.timeout, v.resolvers[0].timeout = 50*time.Millisecond, time.Hour
		expect(t, v.Verify(t.Context(), testHost), store.DNSPending, "timeout")
	})
	t.Run("concurrent calls for one host share a verification", func(t *testing.T) {
		release := make(chan struct{})
		s := serve(t, "correct", &server{reply: func(_, answer *miekg.Msg, _ bool) *miekg.Msg {
			<-release
			return answer
		}})
		v := newVerifier(t, s.address)
		gone, leave := context.WithCancel(t.Context())
		leave()
		v.Verify(gone, testHost) // returns early, but the verification goes on for others
		joined := v.running.DoChan(testHost+".", func() (any, error) {
			t.Error("no verification is in progress")
			return store.DNSFinding{}, nil
		})
		close(release)
		found := <-joined
		expect(t, found.Val.(store.DNSFinding), store.DNSCorrect, "ok")
	})
	t.Run("stray packets before the answer are ignored", func(t *testing.T) {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		records := readZone(t, "correct")
		done := make(chan struct{})
		go func() {
			defer close(done)
			buf := make([]byte, 1232)
			for {
				n, asker, err := conn.ReadFrom(buf)
				if err != nil {
					return // closed below
				}
				question := new(miekg.Msg)
				if err := question.Unpack(buf[:n]); err != nil {
					t.Error(err)
					return
				}
				forged := new(miekg.Msg).SetRcode(question, miekg.RcodeNameError)
				forged.Id++
				answer := new(miekg.Msg).SetReply(question)
				answer.Answer = records
				for _, packet := range [][]byte{[]byte("x"), []byte("not a DNS message at all"), pack(t, forged), pack(t, answer)} {
					if _, err := conn.WriteTo(packet, asker); err != nil && !errors.Is(err, net.ErrClosed) {
						t.Error(err) // it may be closed: Verify returns before every question is answered
					}
				}
			}
		}()
		expect(t, newVerifier(t, conn.LocalAddr().String()).Verify(t.Context(), testHost), store.DNSCorrect, "ok")
		conn.Close()
		<-done
	})
}

func pack(t *testing.T, m *miekg.Msg) []byte {
	b, err := m.Pack()
	if err != nil {
		t.Error(err)
	}
	return b
}

// closedPort returns an address without a listener.
func closedPort(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.LocalAddr().String()
}

func TestSeveralResolvers(t *testing.T) {
	correct := func(t *testing.T) string { return serve(t, "correct", &server{}).address }
	absent := func(t *testing.T) string { return serve(t, "no_such_name", &server{}).address }
	elsewhere := func(t *testing.T) string { return serve(t, "elsewhere", &server{}).address }
	servfail := func(t *testing.T) string {
		return serve(t, "correct", &server{reply: withRcode(miekg.RcodeServerFailure)}).address
	}
	mute := func(t *testing.T) string { return serve(t, "correct", &server{reply: silent}).address }

	cases := []struct {
		sentence  string
		resolvers []func(*testing.T) string
		verdict   store.DNSVerdict
		code      string
	}{
		{"all that reach the target are correct", []func(*testing.T) string{correct, correct}, store.DNSCorrect, "ok"},
		{"one that reaches it and one without a record are pending", []func(*testing.T) string{absent, correct}, store.DNSPending, "partly_propagated"},
		{"one that reaches it and one that sees the old target are pending", []func(*testing.T) string{correct, elsewhere}, store.DNSPending, "partly_propagated"},
		{"one that reaches it and one that fails are pending", []func(*testing.T) string{correct, servfail}, store.DNSPending, "partly_propagated"},
		{"one that reaches it and one that is silent are pending", []func(*testing.T) string{correct, mute}, store.DNSPending, "partly_propagated"},
		{"one that sees another target and one that fails are wrong", []func(*testing.T) string{servfail, elsewhere}, store.DNSWrong, "wrong_target"},
		{"of several that are wrong the first gives the reason", []func(*testing.T) string{absent, elsewhere}, store.DNSWrong, "no_record"},
		{"one that cannot be reached leaves a right answer right", []func(*testing.T) string{closedPort, correct}, store.DNSCorrect, "ok"},
		{"one that cannot be reached leaves a wrong answer wrong", []func(*testing.T) string{elsewhere, closedPort}, store.DNSWrong, "wrong_target"},
		{"one that cannot be reached and one that is silent are pending", []func(*testing.T) string{closedPort, mute}, store.DNSPending, "timeout"},
		{"none that can be reached is unreachable", []func(*testing.T) string{closedPort, closedPort}, store.DNSUnreachable, "unreachable"},
	}
	for _, c := range cases {
		t.Run(c.sentence, func(t *testing.T) {
			t.Parallel()
			var addresses []string
			for _, start := range c.resolvers {
				addresses = append(addresses, start(t))
			}
			expect(t, newVerifier(t, addresses...).Verify(t.Context(), testHost), c.verdict, c.code)
		})
	}
}

func TestConfig(t *testing.T) {
	t.Run("a CNAME target that is no host name is refused", func(t *testing.T) {
		for _, target := range []string{"", "https://edge.example.com", "edge example.com"} {
			if _, err := NewVerifier(Config{CNAMETarget: target, Resolvers: []string{"127.0.0.1:53"}}); err == nil {
				t.Errorf("target %q was accepted", target)
			}
		}
	})
	t.Run("a resolver without a port is refused", func(t *testing.T) {
		if _, err := NewVerifier(Config{CNAMETarget: testTarget, Resolvers: []string{"127.0.0.1"}}); err == nil {
			t.Error("it was accepted")
		}
	})
	t.Run("the system's resolvers are those of resolv.conf", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(path, []byte("search lan\nnameserver 192.0.2.53\nnameserver 2001:db8::53\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := systemResolvers(path)
		if want := []string{"192.0.2.53:53", "[2001:db8::53]:53"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	})
	t.Run("without a resolv.conf the resolver is on this machine", func(t *testing.T) {
		got, err := systemResolvers(filepath.Join(t.TempDir(), "none"))
		if want := []string{"127.0.0.1:53"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	})
}

// A zone that was not found has no name, and the root zone's name is a dot. Neither can be in a sentence as it is.
func TestNamesOfUnknownZoneAndRoot(t *testing.T) {
	verify := func(t *testing.T, s *server) (store.DNSFinding, string) {
		t.Helper()
		v := newVerifier(t, s.address)
		var log bytes.Buffer
		v.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		v.AllowPrivate = true
		_, port, _ := net.SplitHostPort(s.address)
		var err error
		if v.Port, err = strconv.Atoi(port); err != nil {
			t.Fatal(err)
		}
		return v.Verify(t.Context(), testHost), log.String()
	}
	t.Run("a zone that could not be found", func(t *testing.T) {
		found, log := verify(t, serve(t, "correct", &server{}))
		expect(t, found, store.DNSCorrect, "ok")
		if !strings.Contains(log, `by="the zone's name servers"`) {
			t.Errorf("the log is %s", log)
		}
	})
	t.Run("the root", func(t *testing.T) {
		found, log := verify(t, serve(t, "correct", &server{reply: func(question, _ *miekg.Msg, _ bool) *miekg.Msg {
			answer := new(miekg.Msg).SetReply(question)
			switch q := question.Question[0]; {
			case q.Name == "." && q.Qtype == miekg.TypeNS:
				answer.Answer = []miekg.RR{rr(". NS a.root.")}
			case q.Name == "a.root." && q.Qtype == miekg.TypeA:
				answer.Answer = []miekg.RR{rr("a.root. A 127.0.0.1")}
			case question.RecursionDesired: // the server is the resolver here, and the root's name server below
				answer.Rcode = miekg.RcodeServerFailure
			default:
				answer.Rcode, answer.Authoritative = miekg.RcodeNameError, true
				answer.Ns = []miekg.RR{rr(". SOA a.root. admin. 1 3600 600 86400 60")}
			}
			return answer
		}}))
		expect(t, found, store.DNSWrong, "no_domain", "according to the DNS root's name servers, the domain shop.com does not exist")
		if !strings.Contains(log, `by="the DNS root's name servers"`) {
			t.Errorf("the log is %s", log)
		}
	})
}
