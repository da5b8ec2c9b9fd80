package certs

import (
	"crypto/x509"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/mholt/acmez/v3/acme"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres"
	"mtagd/tlsmgr/acmetest"
)

// nodes are several nodes on one database.
type nodes struct {
	*certWorld
	database string
	patience time.Duration // how much later than usual the database may answer
}

// node is one of them.
type node struct {
	w           *certWorld
	certs       *Certificates
	http, https string
}

func newNodes(t *testing.T, database string, opt acmetest.Options) *nodes {
	return newNodesWith(t, database, opt, longEnough)
}

func newNodesWith(t *testing.T, database string, opt acmetest.Options, patience time.Duration) *nodes {
	return &nodes{newCertWorldOn(t, openNodeWith(t, database, patience), opt), database, patience}
}

func openNode(t *testing.T, database string) store.Engine {
	return openNodeWith(t, database, longEnough)
}

// openNodeWith opens a database. On a busy machine it may need several attempts.
func openNodeWith(t *testing.T, database string, patience time.Duration) store.Engine {
	t.Helper()
	for deadline := time.Now().Add(longEnough); ; {
		engine, err := postgres.Open(t.Context(), database, postgres.Options{Log: slog.New(slog.DiscardHandler), Patience: patience})
		if err == nil {
			return engine
		}
		if store.KindOf(err) != store.KindUnavailable || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// add starts a node with an engine of its own. The CA validates at the node that was started last.
func (n *nodes) add(change ...func(*Config, *pace)) *node {
	n.Helper()
	engine := openNodeWith(n.T, n.database, n.patience)
	n.Cleanup(func() {
		if err := engine.Close(); err != nil {
			n.Error(err)
		}
	})
	n.dir = "/nonexistent" // nothing may be written there
	n.start(append(change, func(cfg *Config, _ *pace) {
		cfg.Shared = engine.(store.Shared)
		cfg.Hosts = store.NewHosts(engine.Directory(), n.ownHost)
	})...)
	return &node{n.certWorld, n.certs, n.http, n.https}
}

// serves waits until the node serves a certificate of the host.
func (n *node) serves(host string) (cert *x509.Certificate) {
	n.w.Helper()
	n.w.until("the node serves "+host, func() bool {
		n.w.https = n.https
		var err error
		cert, err = n.w.visit(host)
		return err == nil
	})
	return cert
}

// waitsForLock waits until the node waits for the lock of a host's orders, which another one has.
func (n *node) waitsForLock(host string) {
	n.w.Helper()
	waits := n.certs.magic.ordering.Storage.(*sharedStorage).lock(issueLock(host))
	n.w.until("the node waits for the lock of "+host, func() bool {
		free := waits.TryAcquire(1)
		if free {
			waits.Release(1)
		}
		return !free
	})
}

// exec runs a statement of the test itself.
func (n *nodes) exec(sql string, args ...any) {
	n.Helper()
	conn, err := pgx.Connect(n.Context(), n.database)
	if err != nil {
		n.Fatal(err)
	}
	_, err = conn.Exec(n.Context(), sql, args...)
	if err := errors.Join(err, conn.Close(n.Context())); err != nil {
		n.Fatal(err)
	}
}

// At the start, both nodes miss the certificate of the own host. An order whose challenge a node answers too late, on a busy
// machine, is made again: so only those count that got a certificate.
func TestTwoNodesOrderOnce(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	a, b := n.add(), n.add()
	if !a.serves(n.ownHost).Equal(b.serves(n.ownHost)) {
		t.Error("the nodes have different certificates")
	}
	tag := n.addTag("shop.com", true)
	n.until("both nodes know the host", func() bool {
		return a.certs.Hosts.MayHaveCertificate(tag.Host) && b.certs.Hosts.MayHaveCertificate(tag.Host)
	})
	a.certs.Order(tag.Host)
	b.certs.Order(tag.Host)
	if !a.serves(tag.Host).Equal(b.serves(tag.Host)) {
		t.Error("the nodes have different certificates")
	}
	if orders := n.ca.countFinalized(); orders != 2 {
		t.Errorf("%d certificates of two hosts", orders)
	}
	first, err := a.certs.ca.account.open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := b.certs.ca.account.open(t.Context(), false); err != nil || first.Location != second.Location {
		t.Errorf("the nodes have different accounts, %v", err)
	}
	started := n.add() // it finds everything in the store
	started.serves(n.ownHost)
	started.serves(tag.Host)
	if orders := n.ca.countFinalized(); orders != 2 {
		t.Errorf("%d certificates of two hosts, after another node has started", orders)
	}
}

// The load balancer sends the CA to any node.
func TestAnotherNodeAnswersTheChallenge(t *testing.T) {
	for _, challenge := range []string{acme.ChallengeTypeTLSALPN01, acme.ChallengeTypeHTTP01} {
		t.Run(challenge, func(t *testing.T) {
			t.Parallel()
			n := newNodes(t, pgtest.Database(t), acmetest.Options{})
			n.firstChallenge = challenge
			a := n.add()
			b := n.add(func(_ *Config, p *pace) { p.loadNew = time.Hour }) // it orders nothing itself
			a.serves(n.ownHost)
			tag := n.addTag("shop.com", true)
			n.until("the node knows the host", func() bool { return a.certs.Hosts.MayHaveCertificate(tag.Host) })
			n.ca.Validate(b.http, b.https)
			a.certs.Order(tag.Host)
			a.serves(tag.Host)
			if orders := n.ca.Orders(); orders != 2 {
				t.Errorf("%d orders: one was refused", orders)
			}
			if left, err := b.certs.ca.challenges.shared.Files(t.Context(), challengesDir, false); err != nil || len(left) > 0 {
				t.Errorf("challenges are left: %v, %v", left, err)
			}
			if _, ok := b.certs.HTTPChallenge(t.Context(), tag.Host, "/.well-known/acme-challenge/x"); ok {
				t.Error("a challenge that has ended is answered")
			}
		})
	}
}
