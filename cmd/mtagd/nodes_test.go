package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store/pgtest"
	"mtagd/store/postgres/schema"
)

// nodes are two servers on one database.
type nodes struct {
	*testing.T
	database string
	data     [2]string
	node     [2]*service
	key      string
	merchant string
	tag      string
}

// databases is a server of PostgreSQL for all tests that do not make it fail. The first one starts it, and TestMain ends it.
var databases struct {
	*pgtest.Server
	made int
}

// newDatabase returns the address of a new database.
func newDatabase(t *testing.T) (url string) {
	t.Helper()
	pgtest.Need(t)
	if databases.Server == nil {
		var err error
		if databases.Server, err = pgtest.Start(pgtest.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	databases.made++
	name := fmt.Sprintf("test%d", databases.made)
	if err := databases.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	return databases.URL(name)
}

func newNodes(t *testing.T, flags ...string) *nodes {
	t.Helper()
	zone, err := startZone()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(zone.stop)
	n := &nodes{T: t, database: newDatabase(t), data: [2]string{t.TempDir(), t.TempDir()}}
	for i := range n.node {
		s, err := startService(n.data[i], zone.address, append(flags, "--store", n.database)...)
		if err != nil {
			t.Fatal(err)
		}
		n.node[i] = s
		t.Cleanup(func() {
			if !s.ended {
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return n
}

// command runs a command on the database, through the server of a data directory if there is one.
func (n *nodes) command(data string, args ...string) (output string, err error) {
	done, err := mtagd(job{Args: append(args, "--data", data, "--store", n.database)})
	if err == nil && done.Code != exitDone {
		err = fmt.Errorf("exit code %d", done.Code)
	}
	return done.Stdout + done.Stderr, err
}

// ask sends a request to a node, and reads the answer into v unless it is nil.
func (n *nodes) ask(node int, r request, v any) int {
	n.Helper()
	got, err := n.node[node].do(http.DefaultClient, r)
	if err != nil {
		n.Fatal(err)
	}
	if v != nil {
		if err := json.Unmarshal(got.body, v); err != nil {
			n.Fatalf("%s %s: %d %s", r.method, r.path, got.status, got.body)
		}
	}
	return got.status
}

func (n *nodes) mark(node int, id string) request {
	return request{host: tagHost, method: "POST", path: "/mark/" + n.tag,
		body: fmt.Sprintf(`{"event":"Visit","muid":"user-1","event_id":%q}`, id)}
}

// awaitStatus waits until a request has a status. Other nodes know a change within a second.
func (n *nodes) awaitStatus(node int, r request, want int) {
	n.Helper()
	got := 0
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = n.ask(node, r, nil); got == want {
			return
		}
	}
	n.Errorf("%s %s has status %d, want %d", r.method, r.path, got, want)
}

// total returns how many events node lists.
func (n *nodes) total(node int) int {
	n.Helper()
	var list struct{ Pagination struct{ TotalItems int } }
	if status := n.ask(node, request{host: baseHost, method: "GET", path: "/v1/partners/events?merchantId=" + n.merchant, key: n.key}, &list); status != 200 {
		n.Errorf("events: status %d", status)
	}
	return list.Pagination.TotalItems
}

// addShop makes a partner with a merchant and its tag. The partner is made from a data directory, which may have no server.
func (n *nodes) addShop(from string) {
	n.Helper()
	var partner struct{ PartnerID string }
	out, err := n.command(from, "partner", "add", "--name", "Acme")
	if err != nil || json.Unmarshal([]byte(out), &partner) != nil {
		n.Fatal(err, out)
	}
	var issued struct{ APIKey string }
	out, err = n.command(n.data[0], "key", "issue", "--partner", partner.PartnerID)
	if err != nil || json.Unmarshal([]byte(out), &issued) != nil {
		n.Fatal(err, out)
	}
	n.key = issued.APIKey

	list := request{host: baseHost, method: "GET", path: "/v1/partners/merchant", key: n.key}
	n.awaitStatus(0, list, http.StatusOK)
	n.awaitStatus(1, list, http.StatusOK)
	var merchant struct{ MerchantID string }
	n.ask(0, request{host: baseHost, method: "POST", path: "/v1/partners/merchant", key: n.key, body: `{"name":"Shop"}`}, &merchant)
	n.merchant = merchant.MerchantID
	var tag struct{ TagID string }
	n.ask(1, request{host: baseHost, method: "POST", path: "/v1/partners/tracktag/generate", key: n.key,
		body: fmt.Sprintf(`{"merchantId":%q,"type":"client-side"}`, n.merchant)}, &tag)
	n.tag = tag.TagID
}

// Two nodes on one PostgreSQL database are one service: what one of them knows, the other knows. A node that is killed
// takes nothing along.
func TestTwoNodesOnOneDatabase(t *testing.T) {
	n := newNodes(t)
	elsewhere := t.TempDir() // where no server runs: commands open the database themselves
	n.addShop(elsewhere)
	n.awaitStatus(0, n.mark(0, "order-1"), http.StatusCreated)
	n.awaitStatus(1, n.mark(1, "order-1"), http.StatusCreated) // it is recorded already
	n.awaitStatus(1, n.mark(1, "order-2"), http.StatusCreated)
	for node := range n.node {
		if got := n.total(node); got != 2 {
			t.Errorf("node %d lists %d events, want 2", node, got)
		}
	}

	if out, err := n.command(n.data[0], "tag", "suspend", n.tag); err != nil {
		t.Fatal(err, out)
	}
	n.awaitStatus(1, n.mark(1, "order-3"), http.StatusForbidden)
	if out, err := n.command(n.data[1], "tag", "resume", n.tag); err != nil {
		t.Fatal(err, out)
	}
	n.awaitStatus(0, n.mark(0, "order-3"), http.StatusCreated)
	n.awaitStatus(1, n.mark(1, "order-3"), http.StatusCreated)

	// A sender goes on with the other node, as behind a load balancer, and sends again what was not acknowledged.
	const senders, events = 4, 30
	var all sync.WaitGroup
	killed := make(chan struct{})
	for s := range senders {
		all.Go(func() {
			for i := range events {
				if s == 0 && i == events/2 {
					close(killed)
				}
				for node := i % 2; ; node = 1 {
					got, err := n.node[node].do(http.DefaultClient, n.mark(node, fmt.Sprintf("%d-%d", s, i)))
					if err == nil && got.status == http.StatusCreated {
						break
					}
					if node == 1 {
						t.Errorf("node 1 answers %d %s, %v", got.status, got.body, err)
						return
					}
				}
			}
		})
	}
	<-killed
	if err := n.node[0].kill(); err != nil {
		t.Error(err)
	}
	all.Wait()
	if got, want := n.total(1), 3+senders*events; got != want {
		t.Errorf("%d events are listed, want %d", got, want)
	}

	for _, data := range []string{n.data[1], elsewhere} {
		for _, command := range [][]string{{"verify"}, {"partner", "list"}} {
			if out, err := n.command(data, command...); err != nil {
				t.Errorf("%s: %v: %s", command, err, out)
			}
		}
	}
	for _, command := range [][]string{{"backup", t.TempDir()}, {"repair", "--to", t.TempDir() + "/new"}, {"serve", "--backup-to", t.TempDir(),
		"--base-host", baseHost, "--client-tag-host", tagHost, "--cname-target", cnameTarget}, {"dev"}} {
		if out, err := n.command(elsewhere, command...); err == nil || !strings.Contains(out, "store") {
			t.Errorf("%s: %v: %s", command, err, out)
		}
	}
}

// awaitExchanges waits until the nodes know of each other, and of all changes.
func (n *nodes) awaitExchanges() {
	n.Helper()
	db, err := pgx.Connect(n.Context(), n.database)
	if err != nil {
		n.Fatal(err)
	}
	defer db.Close(n.Context())
	began := 0
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		var last int // of the node that has sent fewer messages
		if err := db.QueryRow(n.Context(), "SELECT CASE count(*) WHEN 2 THEN min(last) ELSE 0 END FROM (SELECT max(seq) AS last FROM message GROUP BY node) AS m").Scan(&last); err != nil {
			n.Fatal(err)
		}
		if began == 0 {
			began = last
		} else if last >= began+3 {
			return
		}
	}
	n.Fatal("the nodes do not exchange messages")
}

// flood sends events to both nodes until they refuse them for their bytes, and returns how many bytes were stored.
func (n *nodes) flood() int64 {
	n.Helper()
	n.awaitExchanges()
	var stored atomic.Int64
	var all sync.WaitGroup
	for s := range 4 {
		all.Go(func() {
			for i, refused := 0, 0; refused < 5; i++ {
				r := n.mark(s%2, fmt.Sprintf("%d-%d", s, i))
				r.body = strings.TrimSuffix(r.body, "}") + `,"filler":"` + strings.Repeat("x", 900) + `"}`
				switch status := n.ask(s%2, r, nil); status {
				case http.StatusCreated:
					stored.Add(int64(len(r.body)) + 128)
				case http.StatusTooManyRequests:
					refused++
				default:
					n.Errorf("status %d", status)
					return
				}
			}
		})
	}
	all.Wait()
	return stored.Load()
}

// One address with one tag id cannot fill a database: it has half of a merchant's share, which is a quarter of a small
// database.
func TestOneAddressStoresAPartOfTheStore(t *testing.T) {
	n := newNodes(t, "--store-size", "4MiB")
	n.addShop(n.data[0])
	if got := n.flood(); got > 512<<10+10_000 || got < 256<<10 {
		t.Errorf("%d bytes were stored, want half of 1 MiB", got)
	}
	resp, err := http.Get("http://" + n.node[0].admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	if err != nil || !regexp.MustCompile(`(?m)^mtagd_disk_free_bytes{part="store"} [1-3]\.[0-9]*e\+06$`).Match(metrics) {
		t.Errorf("the metrics do not have what is left, %v: %s", err, metrics)
	}
	out, err := exec.Command("mtagd", serveArgs(t.TempDir(), "127.0.0.1:53", []string{"--store-size", "4MiB"})...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--store-size: goes together with --store") {
		t.Errorf("without a database: %v: %s", err, out)
	}
}

// Both nodes get more events of a merchant than it may store, at the same time. Together they store no more than one node
// would.
func TestTwoNodesStoreWhatOneMayStore(t *testing.T) {
	n := newNodes(t)
	n.addShop(n.data[0])
	const limit = 600_000 // of which one address may store half
	if out, err := n.command(n.data[0], "merchant", "limit", n.merchant, "--bytes-per-day", fmt.Sprintf("%dB", limit)); err != nil {
		t.Fatal(err, out)
	}
	if got := n.flood(); got > limit/2+10_000 || got < limit/4 {
		t.Errorf("%d bytes were stored, want at most half of %d", got, limit)
	}
}

func TestTheStoreMustBeAnAddress(t *testing.T) {
	out, err := exec.Command("mtagd", "partner", "list", "--data", t.TempDir(), "--store", "/var/lib/mtagd").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--store: must be an address") {
		t.Errorf("%v: %s", err, out)
	}
	out, err = exec.Command("mtagd", "partner", "list", "--data", t.TempDir(), "--store", "postgres://mtagd:hunter2@127.0.0.1:1/mtagd").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--store: ") || strings.Contains(string(out), "hunter2") {
		t.Errorf("%v: %s", err, out)
	}
	fromVariable := exec.Command("mtagd", "partner", "list", "--data", t.TempDir())
	fromVariable.Env = append(os.Environ(), "MTAGD_STORE=mysql://db/mtagd")
	out, err = fromVariable.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "MTAGD_STORE: must be an address") {
		t.Errorf("%v: %s", err, out)
	}
}

// Two nodes with HTTPS have the same certificates, and the CA may ask either of them. The second one cannot write a file.
func TestTwoNodesShareCertificates(t *testing.T) {
	database := newDatabase(t)
	w := newSecureWorld(t, "--store", database)
	client := w.client()
	if _, err := w.begin(client, "first.com"); err != nil {
		t.Fatal(err)
	}
	second, err := startService("/sys/mtagd", w.zone.address, "--store", database,
		"--tls", "acme", "--https", "127.0.0.1:0", "--acme-ca", w.ca.URL, "--acme-ca-root", w.ca.RootsFile)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.stop(); err != nil {
			t.Error(err)
		}
	})
	w.ca.Validate(second.http, second.https)
	merchant, _, host, err := w.newTag(client, "second.com")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.verify(client, merchant, host); err != nil {
		t.Fatal(err)
	}
	if err := w.waitLog(fmt.Sprintf(`"msg":"certificate issued","host":%q`, host)); err != nil {
		t.Fatal(err)
	}
	w.https = second.https // where the client connects now
	var health struct{ Status string }
	if err := w.call(w.client(), "GET", "https://"+host+"/health", "", "", &health); err != nil || health.Status != "ok" {
		t.Errorf("%v, %+v", err, health)
	}
	if n := w.ca.Orders(); n != 4 {
		t.Errorf("%d orders for 4 hosts", n)
	}
	left, err := os.ReadDir(w.data)
	if err != nil || len(left) != 1 || left[0].Name() != "mtagd.sock" {
		t.Errorf("the data directory has %v, %v", left, err)
	}
	if out, err := exec.Command("mtagd", "serve", "--data", w.data, "--store", database, "--tls", "off", "--http", "127.0.0.1:0", "--admin", "off",
		"--base-host", baseHost, "--client-tag-host", tagHost, "--cname-target", cnameTarget).CombinedOutput(); err == nil || !strings.Contains(string(out), "a --data of its own") {
		t.Errorf("two servers with one data directory: %v: %s", err, out)
	}
}

// A node is killed while it changes the tables: while it waits for the first of them, and when only the new version is not
// noted yet. Nothing is changed then, and the next start changes all.
func TestANodeThatIsKilledWhileItChangesTheTables(t *testing.T) {
	ctx := t.Context()
	url := newDatabase(t)
	// updateTables opens the database, which makes its tables or updates them, and verifies it.
	updateTables := func() {
		t.Helper()
		for _, command := range [][]string{{"partner", "add", "--name", "Acme"}, {"verify"}} {
			if out, err := exec.Command("mtagd", append(command, "--data", t.TempDir(), "--store", url)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	updateTables()
	var conns [2]*pgx.Conn
	for i := range conns {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.Background()) }()
		conns[i] = c
	}
	db, inTheWay := conns[0], conns[1]
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	run := func(conn *pgx.Conn, sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	count := func(from string) (n int) {
		t.Helper()
		if err := db.QueryRow(ctx, "SELECT count(*) FROM "+from).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const others = "pg_stat_activity WHERE application_name = 'mtagd'"
	for _, lock := range []string{"usage IN ACCESS SHARE", "goose_db_version IN SHARE"} {
		run(db, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
		if err := schema.Migrate(ctx, pool, 9); err != nil {
			t.Fatal(err)
		}
		run(inTheWay, "BEGIN; LOCK TABLE "+lock+" MODE")
		node := exec.Command("mtagd", serveArgs(t.TempDir(), "127.0.0.1:1", []string{"--store", url})...)
		if err := node.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the node waits for "+lock, func() bool { return count(others+" AND wait_event_type = 'Lock'") == 1 })
		if err := node.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = node.Wait() // it was killed
		run(inTheWay, "ROLLBACK")
		eventually(t, "the server has ended the statement of the killed node", func() bool { return count(others) == 0 })
		if n := count("pg_class WHERE relname = 'tally'"); n != 0 {
			t.Errorf("killed at %s: the table tally is there", lock)
		}
		updateTables()
		if n := count("pg_class WHERE relname = 'tally'"); n != 1 {
			t.Errorf("killed at %s: the next start has not made the table tally", lock)
		}
	}
}
