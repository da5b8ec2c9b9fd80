package tlsmgr

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/tlsmgr/acmetest"
	"mtagd/tlsmgr/certs"
	"mtagd/tlsmgr/dns"
	"mtagd/tlsmgr/dnstest"
)

const (
	target       = "edge.service.test"
	elsewhere    = "elsewhere.test"
	trackingHost = "track.agency.test"
)

// names is a resolver with one CNAME record: that of the tracking domain.
type names struct {
	address string

	mu     sync.Mutex
	target string // what the tracking domain points to
}

func startNames(t *testing.T, target string) *names {
	t.Helper()
	n := &names{target: target}
	n.address = dnstest.Run(t, n).Address
	return n
}

func (n *names) pointTo(target string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.target = target
}

// ServeDNS gives every name the address 127.0.0.1, except elsewhere, which has none. Before that it follows the
// tracking domain's CNAME record.
func (n *names) ServeDNS(w miekg.ResponseWriter, question *miekg.Msg) {
	reply := new(miekg.Msg).SetReply(question)
	q := question.Question[0]
	name := q.Name
	if strings.EqualFold(name, trackingHost+".") {
		n.mu.Lock()
		name = n.target + "."
		n.mu.Unlock()
		reply.Answer = append(reply.Answer, &miekg.CNAME{
			Hdr: miekg.RR_Header{Name: q.Name, Rrtype: miekg.TypeCNAME, Class: miekg.ClassINET, Ttl: 1}, Target: name,
		})
	}
	if q.Qtype == miekg.TypeA && name != elsewhere+"." {
		reply.Answer = append(reply.Answer, &miekg.A{
			Hdr: miekg.RR_Header{Name: name, Rrtype: miekg.TypeA, Class: miekg.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1),
		})
	}
	w.WriteMsg(reply) // if the answer is lost, the client times out
}

// newEngine returns an engine that has a partner with a preverified tag on the tracking domain.
func newEngine(t *testing.T) (store.Engine, store.TagID) {
	t.Helper()
	engine, err := local.Open(t.TempDir(), local.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	p, err := engine.AddPartner(t.Context(), "Agency")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := engine.EnablePreverified(t.Context(), p.ID, trackingHost); err != nil {
		t.Fatal(err)
	}
	m, err := engine.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
	if err != nil {
		t.Fatal(err)
	}
	tag, _, err := engine.GenerateTag(t.Context(), m.ID, store.Preverified, "")
	if err != nil {
		t.Fatal(err)
	}
	return engine, tag.ID
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

func TestRecheckUpdatesTagsWithoutTLS(t *testing.T) {
	resolver := startNames(t, target)
	engine, tag := newEngine(t)
	m, err := New(Config{
		RecheckEvery: 20 * time.Millisecond, Engine: engine, OwnHosts: []string{"api.service.test"}, Log: slog.New(slog.DiscardHandler),
		DNS: dns.Config{CNAMETarget: target, Resolvers: []string{resolver.address}, Port: 53, Now: time.Now},
	})
	if err != nil {
		t.Fatal(err)
	}
	if m.Certificates != nil {
		t.Error("the manager has certificates without TLS")
	}
	m.Start()
	defer m.Stop()
	connected := func() bool {
		got, err := engine.Tag(t.Context(), tag)
		if err != nil {
			t.Fatal(err)
		}
		return got.Connected
	}
	resolver.pointTo(elsewhere)
	until(t, "the tag is not connected", func() bool { return !connected() })
	resolver.pointTo(target)
	until(t, "the tag is connected", connected)
}

func TestRecheckPassesFindingsToTheCertificates(t *testing.T) {
	resolver := startNames(t, elsewhere)
	engine, tag := newEngine(t)
	ca := acmetest.Start(t, acmetest.Options{Resolver: resolver.address})
	plain, secure := listen(t), listen(t)
	var log bytes.Buffer // read after Stop
	m, err := New(Config{
		RecheckEvery: 100 * time.Millisecond, Engine: engine, Log: slog.New(slog.NewTextHandler(&log, nil)),
		DNS: dns.Config{CNAMETarget: target, Resolvers: []string{resolver.address}, Port: 53, Now: time.Now},
		Certificates: &certs.Config{
			Dir: t.TempDir(), CA: ca.URL, Roots: ca.Roots,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ca.Validate(plain.Addr().String(), secure.Addr().String())
	challenges := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host) // the test's CA does not ask at port 80
		if answer, ok := m.Certificates.HTTPChallenge(r.Context(), host, r.URL.Path); ok {
			fmt.Fprint(w, answer)
		}
	})}
	go challenges.Serve(plain)
	defer challenges.Close()
	handshakes := http.Server{ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go handshakes.Serve(tls.NewListener(secure, m.Certificates.TLSConfig()))
	defer handshakes.Close()

	m.Start()
	until(t, "the tag is not connected", func() bool {
		got, err := engine.Tag(t.Context(), tag)
		return err == nil && !got.Connected
	})
	if n := ca.Orders(); n != 0 {
		t.Errorf("%d orders for a host whose DNS leads elsewhere", n)
	}
	resolver.pointTo(target)
	until(t, "the tracking domain has its certificate", func() bool {
		return m.Certificates.Certificate(trackingHost).Status == store.CertificateValid
	})
	m.Stop()
	for _, line := range []string{"here=false", "here=true"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("%s is logged %d times, want once: %s", line, n, log.String())
		}
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
