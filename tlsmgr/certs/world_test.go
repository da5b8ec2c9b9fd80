package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/time/rate"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/tlsmgr/acmetest"
	"mtagd/tlsmgr/dnstest"
)

// worlds counts the worlds of a run, so that each can have its own host names: certmagic remembers the failed renewals of
// the whole process in one map, by host.
var worlds atomic.Int64

// longEnough limits every wait. It is generous: on a slow machine a renewal may fail first, and is retried after a
// minute.
const longEnough = 3 * time.Minute

// quickPace shortens intervals of hours to fit into a test.
var quickPace = pace{
	renewCheck:  200 * time.Millisecond,
	loadNew:     200 * time.Millisecond,
	visitor:     longEnough,
	order:       time.Minute,
	caFailed:    50 * time.Millisecond,
	hostRefused: 50 * time.Millisecond,
	caLimited:   50 * time.Millisecond,
	maxWait:     200 * time.Millisecond,
}

// certWorld is a CA, a resolver that gives every name the address 127.0.0.1, an engine, and the Certificates under
// test with their HTTP and HTTPS listeners.
type certWorld struct {
	*testing.T
	ca      *testCA
	engine  store.Engine
	partner store.PartnerID
	dir     string
	log     *slog.Logger

	ownHost, trackingHost string

	tokens         *rate.Limiter // of new orders; nil: no limit
	firstChallenge string        // type of challenge; empty: the usual one
	recheckEvery   time.Duration // how often the DNS of all hosts is checked again

	certs       *Certificates
	http, https string

	mu    sync.Mutex
	found map[string]store.DNSVerdict // what a DNS check finds for a host; correct unless set
}

func newCertWorld(t *testing.T, opt acmetest.Options) *certWorld {
	t.Helper()
	engine, err := local.Open(t.TempDir(), local.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return newCertWorldOn(t, engine, opt)
}

// testLog is a test's output until its end. A renewal that Stop cuts off may log later, and t.Output panics then.
type testLog struct {
	mu sync.Mutex
	to io.Writer
}

func (l *testLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(b)
}

func (l *testLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = io.Discard
}

// newCertWorldOn makes a world of an engine, which it closes.
func newCertWorldOn(t *testing.T, engine store.Engine, opt acmetest.Options) *certWorld {
	t.Helper()
	opt.Resolver = startNames(t)
	n := worlds.Add(1)
	out := &testLog{to: t.Output()}
	t.Cleanup(out.end) // the last one
	w := &certWorld{
		T: t, ca: startCA(t, opt), dir: t.TempDir(), found: map[string]store.DNSVerdict{}, recheckEvery: 200 * time.Millisecond,
		ownHost: fmt.Sprintf("api%d.service.test", n), trackingHost: fmt.Sprintf("t.agency%d.test", n),
		log: slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	w.engine = engine
	// A database that answers too late has its connections closed, and a change with them.
	w.until("a partner is added", func() bool {
		p, err := engine.AddPartner(t.Context(), "Partner")
		if err != nil && store.KindOf(err) != store.KindUnavailable {
			t.Fatal(err)
		}
		w.partner = p.ID
		return err == nil
	})
	return w
}

// start starts the certificates. They run until stop is called or the test ends.
func (w *certWorld) start(change ...func(*Config, *pace)) (stop func()) {
	w.Helper()
	plain, secure := w.listen(), w.listen()
	cfg := Config{
		Dir: w.dir, Hosts: store.NewHosts(w.engine.Directory(), w.ownHost), CheckDNS: w.checkDNS,
		CA: w.ca.URL, Roots: w.ca.Roots,
		Log: w.log,
	}
	p := quickPace
	for _, c := range change {
		c(&cfg, &p)
	}
	w.certs = newCertificates(cfg, p)
	if w.tokens != nil {
		w.certs.ca.turns.tokens = w.tokens
	}
	if w.firstChallenge != "" {
		w.certs.ca.limits.works = w.firstChallenge
	}
	w.http, w.https = plain.Addr().String(), secure.Addr().String()
	w.ca.Validate(w.http, w.https)

	certs := w.certs
	server := http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host)
		if answer, ok := certs.HTTPChallenge(r.Context(), host, r.URL.Path); ok {
			fmt.Fprint(rw, answer)
			return
		}
		http.NotFound(rw, r)
	})}
	go server.Serve(plain)
	go serveHandshakes(tls.NewListener(secure, certs.TLSConfig()))
	certs.Start()
	recheck, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.recheck(recheck, certs) })
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			running.Wait()
			server.Close()
			secure.Close()
			certs.Stop()
		})
	}
	w.Cleanup(stop)
	return stop
}

// startWithoutRetries starts with tag hosts only. A refused order is not retried within the test.
func (w *certWorld) startWithoutRetries() {
	w.start(func(cfg *Config, p *pace) {
		cfg.Hosts = store.NewHosts(w.engine.Directory())
		p.hostRefused = time.Hour
		p.maxWait = time.Hour
	})
}

// recheck stands in for the hourly recheck of DNS, but runs more often.
func (w *certWorld) recheck(ctx context.Context, certs *Certificates) {
	ticker := time.NewTicker(w.recheckEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, host := range certs.Hosts.OfTags() {
			certs.DNSFound(host, w.checkDNS(ctx, host))
		}
	}
}

func (w *certWorld) listen() net.Listener {
	w.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	return l
}

func serveHandshakes(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = c.(*tls.Conn).Handshake() // the client notices when it fails
		}()
	}
}

// startNames runs a resolver that gives every name the address 127.0.0.1.
func startNames(t *testing.T) (address string) {
	t.Helper()
	return dnstest.Run(t, dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		reply := new(dns.Msg).SetReply(query)
		if q := query.Question[0]; q.Qtype == dns.TypeA {
			reply.Answer = append(reply.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1},
				A:   net.IPv4(127, 0, 0, 1),
			})
		}
		w.WriteMsg(reply) // if the answer is lost, the client times out
	})).Address
}

func (w *certWorld) checkDNS(_ context.Context, host string) store.DNSFinding {
	w.mu.Lock()
	defer w.mu.Unlock()
	verdict := w.found[host]
	if verdict == "" {
		verdict = store.DNSCorrect
	}
	return store.DNSFinding{Verdict: verdict, Code: "test", Detail: "as the test says", CheckedAt: time.Now()}
}

func (w *certWorld) setDNS(host string, v store.DNSVerdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found[host] = v
}

// addTag generates a server-side tag, and verifies it if verified is true.
func (w *certWorld) addTag(domain string, verified bool) store.Tag {
	w.Helper()
	m, err := w.engine.AddMerchant(w.Context(), w.partner, store.NewMerchant{Name: domain})
	if err != nil {
		w.Fatal(err)
	}
	tag, _, err := w.engine.GenerateTag(w.Context(), m.ID, store.ServerSide, domain)
	if err != nil {
		w.Fatal(err)
	}
	if verified {
		tag = w.verify(tag)
	}
	return tag
}

func (w *certWorld) verify(tag store.Tag) store.Tag {
	w.Helper()
	tag, err := w.engine.UpdateTag(w.Context(), tag.ID, func(t store.Tag) store.Tag {
		return t.AfterVerify(w.checkDNS(w.Context(), t.Host))
	})
	if err != nil {
		w.Fatal(err)
	}
	return tag
}

// visit makes a TLS handshake and returns the certificate. It fails unless the CA issued the certificate for the name.
func (w *certWorld) visit(name string) (*x509.Certificate, error) {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: longEnough}, "tcp", w.https,
		&tls.Config{ServerName: name, RootCAs: w.ca.Issuers, NextProtos: []string{"http/1.1"}})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0], nil
}

func (w *certWorld) mustVisit(name string) *x509.Certificate {
	w.Helper()
	cert, err := w.visit(name)
	if err != nil {
		w.Fatalf("%s: %v", name, err)
	}
	return cert
}

func (w *certWorld) until(what string, condition func() bool) {
	w.Helper()
	deadline := time.Now().Add(longEnough)
	for !condition() {
		if time.Now().After(deadline) {
			w.Fatalf("timed out waiting until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (w *certWorld) untilStatus(host string, want store.CertificateStatus) store.Certificate {
	w.Helper()
	var got store.Certificate
	w.until(fmt.Sprintf("the certificate of %s is %s", host, want), func() bool {
		got = w.certs.Certificate(host)
		return got.Status == want
	})
	return got
}
