package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/mholt/acmez/v3/acme"

	"mtagd/store"
	"mtagd/store/postgres"
	"mtagd/store/postgres/pgtest"
	"mtagd/tlsmgr/acmetest"
)

// nodes are several nodes on one database.
type nodes struct {
	*certWorld
	database string
}

// node is one of them.
type node struct {
	w           *certWorld
	certs       *Certificates
	http, https string
}

func newNodes(t *testing.T, database string, opt acmetest.Options) *nodes {
	return &nodes{newCertWorldOn(t, openNode(t, database), opt), database}
}

func openNode(t *testing.T, database string) store.Engine {
	t.Helper()
	engine, err := postgres.Open(t.Context(), database, postgres.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

// add starts a node with an engine of its own. The CA validates at the node that was started last.
func (n *nodes) add(change ...func(*Config, *pace)) *node {
	n.Helper()
	engine := openNode(n.T, n.database)
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

// Both kinds of storage do what certmagic expects of one.
func TestStorage(t *testing.T) {
	shared := openNode(t, pgtest.Database(t))
	t.Cleanup(func() {
		if err := shared.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, s := range map[string]certmagic.Storage{
		"files":  newStorage(Config{Dir: t.TempDir()}),
		"shared": newStorage(Config{Shared: shared.(store.Shared)}),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			for key, value := range map[string]string{
				"certificates/ca/a.test/a.test.crt": "one", "certificates/ca/a.test/a.test.key": "\x00\xff", "certificates/ca/a.test-b/c": "two",
				"certificates/ca/b.test/b.test.crt": "three", "ocsp/x": "", "certificates/ca/a.test/a.test.json": "{}",
			} {
				if err := errors.Join(s.Store(ctx, key, []byte("before")), s.Store(ctx, key, []byte(value))); err != nil {
					t.Fatal(err)
				}
				if got, err := s.Load(ctx, key); err != nil || string(got) != value {
					t.Errorf("%s has %q, %v", key, got, err)
				}
			}
			for _, missing := range []string{"certificates/ca/c.test", "certificates/ca/a", "ocsp/x/y", "certificate"} {
				_, loading := s.Load(ctx, missing)
				_, stating := s.Stat(ctx, missing)
				if missing == "ocsp/x/y" { // below a file
					if loading == nil || stating == nil || s.Exists(ctx, missing) && name == "shared" {
						t.Errorf("%s: %v, %v", missing, loading, stating)
					}
					continue
				}
				_, listing := s.List(ctx, missing, true)
				if !errors.Is(loading, fs.ErrNotExist) || !errors.Is(stating, fs.ErrNotExist) || !errors.Is(listing, fs.ErrNotExist) || s.Exists(ctx, missing) {
					t.Errorf("%s: %v, %v, %v, exists %v", missing, loading, stating, listing, s.Exists(ctx, missing))
				}
				if err := s.Delete(ctx, missing); err != nil {
					t.Errorf("%s cannot be deleted: %v", missing, err)
				}
			}
			if _, err := s.Load(ctx, "certificates/ca"); err == nil {
				t.Error("a directory can be loaded")
			}
			for _, c := range []struct {
				path      string
				recursive bool
				want      []string
			}{
				{"certificates", false, []string{"certificates/ca"}},
				{"certificates/ca", false, []string{"certificates/ca/a.test", "certificates/ca/a.test-b", "certificates/ca/b.test"}},
				{"certificates/ca", true, []string{
					"certificates/ca/a.test", "certificates/ca/a.test-b", "certificates/ca/a.test-b/c", "certificates/ca/a.test/a.test.crt",
					"certificates/ca/a.test/a.test.json", "certificates/ca/a.test/a.test.key", "certificates/ca/b.test", "certificates/ca/b.test/b.test.crt"}},
				{"certificates/ca/a.test", true, []string{
					"certificates/ca/a.test/a.test.crt", "certificates/ca/a.test/a.test.json", "certificates/ca/a.test/a.test.key"}},
				{"", false, []string{"certificates", "ocsp"}},
			} {
				got, err := s.List(ctx, c.path, c.recursive)
				if slices.Sort(got); err != nil || !slices.Equal(got, c.want) {
					t.Errorf("%q, recursive %v: %q, %v", c.path, c.recursive, got, err)
				}
			}
			file, err := s.Stat(ctx, "certificates/ca/b.test/b.test.crt")
			if err != nil || !file.IsTerminal || file.Size != 5 || time.Since(file.Modified).Abs() > time.Hour || file.Key != "certificates/ca/b.test/b.test.crt" {
				t.Errorf("file %+v, %v", file, err)
			}
			if dir, err := s.Stat(ctx, "certificates/ca"); err != nil || dir.IsTerminal {
				t.Errorf("directory %+v, %v", dir, err)
			}
			if err := errors.Join(s.Delete(ctx, "certificates/ca/a.test"), s.Delete(ctx, "ocsp/x")); err != nil {
				t.Error(err)
			}
			if s.Exists(ctx, "certificates/ca/a.test") || s.Exists(ctx, "ocsp/x") || !s.Exists(ctx, "certificates/ca/a.test-b/c") || !s.Exists(ctx, "certificates/ca") {
				t.Error("Delete has deleted too much, or too little")
			}
		})
	}
}

func TestOneNodeAtATimeHasALock(t *testing.T) {
	n := &nodes{&certWorld{T: t}, pgtest.Database(t)}
	storages := make([]*sharedStorage, 2)
	for i := range storages {
		engine := openNode(t, n.database)
		t.Cleanup(func() {
			if err := engine.Close(); err != nil {
				t.Error(err)
			}
		})
		storages[i] = newStorage(Config{Shared: engine.(store.Shared)}).(*sharedStorage)
	}
	a, b := storages[0], storages[1]
	ctx := t.Context()
	if err := a.Lock(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	for _, s := range storages {
		if got, err := s.TryLock(ctx, "x"); got || err != nil {
			t.Fatalf("locked twice, %v", err)
		}
	}
	if got, err := b.TryLock(ctx, "y"); !got || err != nil {
		t.Errorf("another name cannot be locked: %v", err)
	}
	ended, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := b.Lock(ended, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that has ended returns %v", err)
	}
	waiting := make(chan error)
	go func() { waiting <- b.Lock(ctx, "x") }()
	if err := errors.Join(a.RenewLockLease(ctx, "x", time.Second), a.Unlock(ctx, "x"), <-waiting); err != nil {
		t.Fatal(err)
	}

	// b dies, or is away for too long.
	if got, err := a.TryLock(ctx, "x"); got || err != nil {
		t.Fatalf("locked twice, %v", err)
	}
	n.exec("UPDATE lease SET expires = clock_timestamp() - interval '1 s' WHERE name = 'x'")
	if err := a.Lock(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	if err := b.RenewLockLease(ctx, "x", time.Second); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("a lock that was lost is renewed: %v", err)
	}
	if err := b.Unlock(ctx, "x"); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("a lock that was lost is released: %v", err)
	}
	if err := errors.Join(a.RenewLockLease(ctx, "x", time.Second), a.Unlock(ctx, "x"), b.Unlock(ctx, "y")); err != nil {
		t.Error(err)
	}
}

// losingStorage loses all locks in Load.
type losingStorage struct {
	*sharedStorage
	lose func()
}

func (s losingStorage) Load(ctx context.Context, key string) ([]byte, error) {
	text, err := s.sharedStorage.Load(ctx, key)
	s.lose()
	return text, err
}

// A node that was away replaces no account key: another node may have registered it.
func TestAccountKeyIsStoredUnderTheLockOnly(t *testing.T) {
	n := &nodes{&certWorld{T: t}, pgtest.Database(t)}
	engine := openNode(t, n.database)
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	storage := losingStorage{newStorage(Config{Shared: engine.(store.Shared)}).(*sharedStorage), func() {
		n.exec("UPDATE lease SET holder = $1", uuid.New())
	}}
	a := newAccount(Config{}, &acme.Client{}, storage, "ca")
	if _, err := a.register(t.Context()); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("registering returns %v", err)
	}
	if storage.Exists(t.Context(), a.keyFile) {
		t.Error("the key was stored")
	}
}

// At the start, both nodes miss the certificate of the own host.
func TestTwoNodesOrderOnce(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	a, b := n.add(), n.add()
	if !a.serves(n.ownHost).Equal(b.serves(n.ownHost)) {
		t.Error("the nodes have different certificates")
	}
	tag := n.addTag("shop.com", true)
	n.until("both nodes know the host", func() bool {
		return a.certs.orders.Hosts.MayHaveCertificate(tag.Host) && b.certs.orders.Hosts.MayHaveCertificate(tag.Host)
	})
	a.certs.Order(tag.Host)
	b.certs.Order(tag.Host)
	if !a.serves(tag.Host).Equal(b.serves(tag.Host)) {
		t.Error("the nodes have different certificates")
	}
	if orders := n.ca.Orders(); orders != 2 {
		t.Errorf("%d orders for two hosts", orders)
	}
	first, err := a.certs.orders.ca.account.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second, err := b.certs.orders.ca.account.open(t.Context()); err != nil || first.Location != second.Location {
		t.Errorf("the nodes have different accounts, %v", err)
	}
	started := n.add() // it finds everything in the store
	started.serves(n.ownHost)
	started.serves(tag.Host)
	if orders := n.ca.Orders(); orders != 2 {
		t.Errorf("%d orders for two hosts, after another node has started", orders)
	}
}

// The load balancer sends the CA to any node.
func TestAnotherNodeAnswersTheChallenge(t *testing.T) {
	for _, challenge := range []string{acme.ChallengeTypeTLSALPN01, acme.ChallengeTypeHTTP01} {
		t.Run(challenge, func(t *testing.T) {
			t.Parallel()
			n := newNodes(t, pgtest.Database(t), acmetest.Options{})
			n.firstChallenge = challenge
			a, b := n.add(), n.add()
			a.serves(n.ownHost)
			b.certs.orders.cancel() // it orders nothing itself
			tag := n.addTag("shop.com", true)
			n.until("the node knows the host", func() bool { return a.certs.orders.Hosts.MayHaveCertificate(tag.Host) })
			n.ca.Validate(b.http, b.https)
			a.certs.Order(tag.Host)
			a.serves(tag.Host)
			if orders := n.ca.Orders(); orders != 2 {
				t.Errorf("%d orders: one was refused", orders)
			}
			if left, err := b.certs.orders.ca.challenges.shared.Files(t.Context(), challengesDir, false); err != nil || len(left) > 0 {
				t.Errorf("challenges are left: %v, %v", left, err)
			}
			if _, ok := b.certs.HTTPChallenge(tag.Host, "/.well-known/acme-challenge/x"); ok {
				t.Error("a challenge that has ended is answered")
			}
		})
	}
}

func TestAnotherNodeTakesTheOrderOfADeadOne(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	n.exec("INSERT INTO lease (name, holder, expires) VALUES ($1, $2, clock_timestamp() + interval '1 h')", "issue_cert_"+n.ownHost, uuid.New())
	a := n.add()
	n.until("the order waits", func() bool { return a.certs.Certificate(n.ownHost).Status == store.CertificatePending })
	n.exec("UPDATE lease SET expires = clock_timestamp() - interval '1 s'")
	a.serves(n.ownHost)
}

func TestFailuresOfAllNodesCount(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	a, b := n.add(), n.add()
	a.serves(n.ownHost)
	n.ca.Validate("", "")
	before := n.ca.Validations()
	tag := n.addTag("shop.com", true)
	for _, node := range []*node{a, b} {
		n.until("the node knows the host", func() bool { return node.certs.orders.Hosts.MayHaveCertificate(tag.Host) })
		node.certs.Order(tag.Host)
	}
	n.until("both nodes know that the CA would refuse", func() bool {
		return time.Until(a.certs.orders.ca.nextTry(tag.Host)) > 0 && time.Until(b.certs.orders.ca.nextTry(tag.Host)) > 0
	})
	if got := n.ca.Validations() - before; got != failuresAllowed {
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
	writer := a.certs.orders.magic.ordering.Storage
	file := certmagic.StorageKeys.SitePrivateKey(a.certs.orders.ca.IssuerKey(), n.ownHost)
	right, err := writer.Load(t.Context(), file)
	if err := errors.Join(err, writer.Lock(t.Context(), issueLock(n.ownHost)), writer.Store(t.Context(), file, []byte(newKey(t)))); err != nil {
		t.Fatal(err)
	}
	b := n.add()
	waits := b.certs.orders.magic.ordering.Storage.(*sharedStorage).lock(issueLock(n.ownHost))
	n.until("the node waits for the writer", func() bool {
		free := waits.TryAcquire(1)
		if free {
			waits.Release(1)
		}
		return !free
	})
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
		return a.certs.orders.states.leadsElsewhere(tag.Host) && b.certs.orders.states.leadsElsewhere(tag.Host)
	})
	n.until("the first node has a certificate", func() bool {
		a.certs.Order(tag.Host)
		return !a.certs.orders.magic.expiryOf(tag.Host).IsZero()
	})
	b.serves(tag.Host)
}

// After a failure on one node, the others make the same pause, unless they have reason to believe that the cause was repaired.
func TestNodesPauseAfterAFailureOfAnother(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	slow := func(_ *Config, p *pace) { p.hostRefused, p.maxWait = time.Hour, time.Hour }
	a, b := n.add(slow), n.add(slow)
	a.serves(n.ownHost)
	n.ca.Validate("", "")
	before := n.ca.Validations()
	tag := n.addTag("shop.com", true)
	waits := func(node *node) bool { return !node.certs.Certificate(tag.Host).NextTry.IsZero() }
	n.until("both nodes wait", func() bool { return waits(a) && waits(b) })
	if got := n.ca.Validations() - before; got != 1 {
		t.Errorf("%d validations failed", got)
	}
	for _, node := range []*node{a, b} {
		if left := time.Until(node.certs.Certificate(tag.Host).NextTry); left < longEnough {
			t.Errorf("the next try is in %v", left)
		}
	}
	if err := a.certs.orders.ca.limits.failed(t.Context(), tag.Host, acme.ChallengeTypeHTTP01, true, time.Time{}); err != nil {
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
	n := newNodes(t, server.URL("postgres"), acmetest.Options{})
	a := n.add()
	cert := a.serves(n.ownHost)
	ordered := n.ca.Orders()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	n.ca.WantRenewal(t, cert)
	for began := time.Now(); time.Since(began) < 2*time.Second; {
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
	n.until("the node knows the host", func() bool { return a.certs.orders.Hosts.MayHaveCertificate(tag.Host) })
	a.certs.Order(tag.Host)
	a.serves(tag.Host)
}

// A flood of questions for challenges is one question at a time to the store, and each sees what was there when it was put.
func TestReadsAreShared(t *testing.T) {
	count := 0
	r := reads[int]{every: time.Millisecond, read: func(context.Context) (int, error) {
		count++
		return count, nil
	}}
	last := 0
	for range 3 {
		got := make(chan int)
		for range 100 {
			go func() {
				n, err := r.get(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- n
			}()
		}
		newest := last
		for range 100 {
			n := <-got
			if n <= last {
				t.Errorf("read %d is from before the question", n)
			}
			newest = max(newest, n)
		}
		last = newest
	}
	if last > 150 {
		t.Errorf("%d reads for 300 questions", last)
	}
	r.read = func(context.Context) (int, error) { return 0, fmt.Errorf("away") }
	if _, err := r.get(t.Context()); err == nil {
		t.Error("a failure is hidden")
	}
}
