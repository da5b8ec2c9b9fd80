package certs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/google/uuid"
	"github.com/mholt/acmez/v3/acme"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/tlsmgr/acmetest"
)

func TestAnotherNodeTakesTheOrderOfADeadOne(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	n.exec("INSERT INTO lease (name, holder, expires) VALUES ($1, $2, clock_timestamp() + interval '1 h')", "issue_cert_"+n.ownHost, uuid.New())
	a := n.add()
	a.waitsForLock(n.ownHost)
	n.exec("UPDATE lease SET expires = clock_timestamp() - interval '1 s'")
	a.serves(n.ownHost)
}

func TestFailuresOfAllNodesCount(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	a, b := n.add(), n.add()
	a.serves(n.ownHost)
	n.ca.Validate("", "")
	before := n.ca.countValidations()
	tag := n.addTag("shop.com", true)
	for _, node := range []*node{a, b} {
		n.until("the node knows the host", func() bool { return node.certs.Hosts.MayHaveCertificate(tag.Host) })
		node.certs.Order(tag.Host)
	}
	n.until("both nodes know that the CA would refuse", func() bool {
		return time.Until(a.certs.ca.nextTry(tag.Host)) > 0 && time.Until(b.certs.ca.nextTry(tag.Host)) > 0
	})
	if got := n.ca.countValidations() - before; got != failuresAllowed {
		t.Errorf("%d validations failed, want %d", got, failuresAllowed)
	}
}

// A node that starts while another one writes a renewed certificate, file by file, finds a key that does not match. It waits, and
// removes nothing.
func TestFilesThatAnotherNodeIsWritingAreKept(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	a := n.add()
	cert := a.serves(n.ownHost)
	writer := a.certs.magic.ordering.Storage
	file := certmagic.StorageKeys.SitePrivateKey(a.certs.ca.IssuerKey(), n.ownHost)
	right, err := writer.Load(t.Context(), file)
	if err := errors.Join(err, writer.Lock(t.Context(), issueLock(n.ownHost)), writer.Store(t.Context(), file, []byte(newKey(t)))); err != nil {
		t.Fatal(err)
	}
	b := n.add()
	b.waitsForLock(n.ownHost)
	if err := errors.Join(writer.Store(t.Context(), file, right), writer.Unlock(t.Context(), issueLock(n.ownHost))); err != nil {
		t.Fatal(err)
	}
	if !b.serves(n.ownHost).Equal(cert) || n.ca.Orders() != 1 {
		t.Errorf("the certificate was replaced: %d orders", n.ca.Orders())
	}
}

// The resolver of one node may still have the old answer when another node has found the DNS correct.
func TestNodeServesAHostThatItTakesToLeadElsewhere(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	a := n.add(func(cfg *Config, _ *pace) {
		cfg.CheckDNS = func(context.Context, string) store.DNSFinding { return store.DNSFinding{Verdict: store.DNSCorrect} }
	})
	b := n.add()
	tag := n.addTag("shop.com", true)
	n.setDNS(tag.Host, store.DNSWrong)
	n.until("the host leads elsewhere for both nodes", func() bool {
		return a.certs.states.leadsElsewhere(tag.Host) && b.certs.states.leadsElsewhere(tag.Host)
	})
	n.until("the first node has a certificate", func() bool {
		a.certs.Order(tag.Host)
		return !a.certs.magic.expiryOf(tag.Host).IsZero()
	})
	b.serves(tag.Host)
}

// After a failure on one node, the others make the same pause, unless they have reason to believe that the cause was repaired.
func TestNodesPauseAfterAFailureOfAnother(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	slow := func(_ *Config, p *pace) { p.hostRefused, p.maxWait = time.Hour, time.Hour }
	a := n.add(slow)
	a.serves(n.ownHost) // before there is another node: the CA validates at this one, which cannot fail
	b := n.add(slow)
	n.ca.Validate("", "")
	before := n.ca.countValidations()
	tag := n.addTag("shop.com", true)
	waits := func(node *node) bool { return !node.certs.Certificate(tag.Host).NextTry.IsZero() }
	n.until("both nodes wait", func() bool { return waits(a) && waits(b) })
	if got := n.ca.countValidations() - before; got != 1 {
		t.Errorf("%d validations failed", got)
	}
	for _, node := range []*node{a, b} {
		if left := time.Until(node.certs.Certificate(tag.Host).NextTry); left < longEnough {
			t.Errorf("the next try is in %v", left)
		}
	}
	if err := a.certs.ca.limits.failed(t.Context(), tag.Host, acme.ChallengeTypeHTTP01, true, time.Time{}); err != nil {
		t.Fatal(err)
	}
	n.ca.Validate(b.http, b.https)
	b.certs.Order(tag.Host)
	b.serves(tag.Host)
}

// While the database is away, handshakes go on with the certificates in memory, although some are due for renewal. When it is back,
// orders go on. Nothing was ordered because it could not be read.
func TestHandshakesGoOnWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	n := newNodesWith(t, server.URL("postgres"), acmetest.Options{}, 0)
	a := n.add()
	cert := a.serves(n.ownHost)
	ordered := n.ca.Orders()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	n.ca.wantRenewal(t, cert)
	for began := time.Now(); time.Since(began) < 5*quickPace.renewCheck; {
		visited := time.Now()
		if _, err := n.visit(n.ownHost); err != nil || time.Since(visited) > longEnough/2 {
			t.Fatalf("after %v: %v", time.Since(visited), err)
		}
	}
	if orders := n.ca.Orders(); orders != ordered {
		t.Errorf("%d orders without the database", orders-ordered)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	n.until("the node is ready", func() bool { return n.engine.Ready() == nil })
	tag := n.addTag("shop.com", true)
	n.until("the node knows the host", func() bool { return a.certs.Hosts.MayHaveCertificate(tag.Host) })
	a.certs.Order(tag.Host)
	a.serves(tag.Host)
}
