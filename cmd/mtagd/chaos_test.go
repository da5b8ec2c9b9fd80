package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"mtagd/store/pgtest"
)

var (
	chaosTime = flag.Duration("chaos", 0, "how long TestChaos draws faults at random; 0: it makes a few, each once")
	chaosOnly = flag.String("chaosfaults", "", "TestChaos makes only faults whose name has this in it")
	chaosSeed = flag.Uint64("chaosseed", 0, "the seed of what TestChaos draws; 0: another one each time")
)

// chaos is a service of two nodes on a PostgreSQL cluster of a primary and two standbys, any one of which must have a
// commit. Every process reaches every server through a link of its own, which faults cut.
type chaos struct {
	*testing.T
	seed    uint64
	cluster *cluster
	node    [2]*chaosNode
	client  *http.Client
	zone    string

	key     string
	shop         // whose events are counted
	once    shop // for repeat
	people  shop // for erasePersons
	persons persons

	sent    *sent
	ended   chan struct{} // closed when the clients must end
	allSent chan struct{} // closed when they have: the followers read to the end
	faults  map[string]int
	outages map[string][]time.Duration // until both nodes recorded again
	ops     []operation
	mu      sync.Mutex // guards ops
	losses  []span     // when a primary may have lost events that it had shown
}

// shop is a merchant with a client-side tag.
type shop struct{ merchant, tag string }

// chaosNode is one "mtagd serve", which is started again after a kill.
type chaosNode struct {
	name    string
	data    string
	store   string
	running atomic.Pointer[service]
	stopped atomic.Int64 // how often it was stopped: requests may take as long as they like then
}

// answerTimeout is how long a client waits. No request may take as long, whatever has failed, unless the node itself is
// stopped. Beside other tests the machine itself may be slow.
func answerTimeout() time.Duration {
	if *chaosTime == 0 {
		return startTimeout
	}
	return 20 * time.Second
}

func TestChaos(t *testing.T) {
	c := newChaos(t)
	if err := c.cluster.awaitStandbys(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	clients, followers := c.startClients()
	end := sync.OnceFunc(func() {
		close(c.ended)
		clients.Wait()
		close(c.allSent)
		followers.Wait()
	})
	t.Cleanup(end)
	c.awaitService("start", time.Now())
	random := rand.New(rand.NewPCG(c.seed, 1))
	if *chaosTime == 0 {
		for _, f := range faults {
			if f.quick {
				c.make(f, random)
			}
		}
	}
	for *chaosTime > 0 && time.Since(began) < *chaosTime && !t.Failed() {
		if f := faults[random.IntN(len(faults))]; strings.Contains(f.name, *chaosOnly) {
			c.make(f, random)
		}
	}
	end()
	c.check()
	c.summarize(time.Since(began))
}

func newChaos(t *testing.T) *chaos {
	t.Helper()
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	pgtest.Need(t)
	cluster, err := newCluster(3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.close(); err != nil {
			t.Error(err)
		}
	})
	zone, err := startZone()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(zone.stop)
	c := &chaos{T: t, seed: seed, cluster: cluster, zone: zone.address, ended: make(chan struct{}), allSent: make(chan struct{}), sent: newSent(),
		faults: map[string]int{}, outages: map[string][]time.Duration{},
		persons: persons{stays: map[string]bool{}, goes: map[string]bool{}, unknown: map[string]bool{}},
		client:  &http.Client{Timeout: answerTimeout(), Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	t.Cleanup(c.client.CloseIdleConnections)
	for i := range c.node {
		n := &chaosNode{name: fmt.Sprintf("node%d", i), data: t.TempDir()}
		if n.store, err = cluster.url(n.name, "postgres"); err != nil {
			t.Fatal(err)
		}
		c.node[i] = n
		c.start(n)
		t.Cleanup(func() {
			if s := n.running.Load(); !s.ended {
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if _, c.key, err = newPartner(c.node[0].data, "Acme"); err != nil {
		t.Fatal(err)
	}
	c.shop, c.once, c.people = c.newShop("Shop"), c.newShop("Once"), c.newShop("People")
	for _, n := range c.node { // another node knows a change within a second
		c.awaitTag(n, c.people.tag)
	}
	return c
}

func (c *chaos) newShop(name string) (s shop) {
	c.Helper()
	s.merchant = c.object(request{method: "POST", path: "/v1/partners/merchant", body: fmt.Sprintf(`{"name":%q}`, name)})["merchantId"].(string)
	s.tag = c.object(request{method: "POST", path: "/v1/partners/tracktag/generate",
		body: fmt.Sprintf(`{"merchantId":%q,"type":"client-side"}`, s.merchant)})["tagId"].(string)
	return s
}

// awaitTag waits until a node knows a tag, and all that was changed before.
func (c *chaos) awaitTag(n *chaosNode, tag string) {
	c.Helper()
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		got, err := c.ask(n, request{host: tagHost, method: "POST", path: "/id/" + tag, body: `{"muid":"muid-0"}`})
		if err == nil && got.status == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%s does not know the tag %s: %d %s %v", n.name, tag, got.status, got.body, err)
		}
	}
}

// start starts a node. It ends with this process, even when it is stopped then.
func (c *chaos) start(n *chaosNode) {
	c.Helper()
	cmd := exec.Command("mtagd", serveArgs(n.data, c.zone, []string{"--store", n.store, "--limits", "off", "--dns-allow-private"})...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s, err := launch(cmd)
	if err != nil {
		c.Fatal(err)
	}
	n.running.Store(s)
	if err := s.waitReady(); err != nil {
		c.Fatal(err, s.Log())
	}
}

// ask sends a request of the partner to a node. A request that takes too long is an error of the service.
func (c *chaos) ask(n *chaosNode, r request) (answer, error) {
	if r.host == "" {
		r.host = baseHost
		if r.key == "" {
			r.key = c.key
		}
	}
	stopped, began := n.stopped.Load(), time.Now()
	got, err := n.running.Load().do(c.client, r)
	if time.Since(began) >= answerTimeout() && stopped == n.stopped.Load() && stopped%2 == 0 {
		c.Errorf("%s %s on %s has no answer after %v", r.method, r.path, n.name, answerTimeout())
	}
	if err != nil {
		return got, err
	}
	switch {
	case got.status == http.StatusServiceUnavailable || got.status == http.StatusTooManyRequests:
		if got.header.Get("Retry-After") == "" {
			c.Errorf("%s %s on %s: %d without Retry-After", r.method, r.path, n.name, got.status)
		}
	case got.status >= 500:
		c.Errorf("%s %s on %s: %d %s: %s", r.method, r.path, n.name, got.status, got.body, n.errors())
	}
	return got, nil
}

// retry sends a request to one node after the other until it is answered otherwise than with 503, as a client behind a load
// balancer does. It returns false when the clients must end before.
func (c *chaos) retry(r request) (answer, bool) {
	for i := 0; ; i++ {
		got, err := c.ask(c.node[i%2], r)
		if err == nil && got.status != http.StatusServiceUnavailable {
			return got, true
		}
		if !c.pause() {
			return got, false
		}
	}
}

// pause is what a client does before it tries again. It returns false when the clients must end.
func (c *chaos) pause() bool {
	select {
	case <-c.ended:
		return false
	case <-time.After(50 * time.Millisecond):
		return true
	}
}

func (c *chaos) startClients() (clients, followers *sync.WaitGroup) {
	clients, followers = new(sync.WaitGroup), new(sync.WaitGroup)
	for i := range c.sent.read {
		followers.Go(func() { c.follow(i) })
	}
	for i := range 4 {
		clients.Go(func() { c.send(i) })
	}
	clients.Go(c.manage)
	clients.Go(c.erasePersons)
	for i := range 3 {
		clients.Go(func() { c.claim(i) })
		clients.Go(func() { c.repeat(i) })
	}
	return clients, followers
}

// make makes a fault, ends it, and waits until all is as before.
func (c *chaos) make(f fault, random *rand.Rand) {
	if c.Failed() {
		return
	}
	c.Logf("%s", f.name)
	c.faults[f.name]++
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Minute)
	defer cancel()
	if err := f.make(ctx, c, random); err != nil {
		c.Fatalf("%s: %v", f.name, err)
	}
	c.awaitService(f.name, time.Now())
	if err := c.cluster.awaitStandbys(ctx); err != nil {
		c.Fatalf("%s: %v", f.name, err)
	}
}

// awaitService waits until both nodes are ready and record, and notes how long that took.
func (c *chaos) awaitService(after string, since time.Time) {
	c.Helper()
	for i, n := range c.node {
		for try := 0; ; try++ {
			key := fmt.Sprintf("probe-%s-%d-%d", after, i, time.Now().UnixNano())
			if c.sendOne(n, key, true) == isRecorded {
				break
			}
			if time.Since(since) > time.Minute {
				c.Fatalf("after %s, %s records nothing for a minute: %s", after, n.name, tail(n.running.Load().Log()))
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err := n.running.Load().waitReady(); err != nil {
			c.Fatal(err)
		}
	}
	c.outages[after] = append(c.outages[after], time.Since(since))
}

func tail(log string) string { return log[max(0, len(log)-4000):] }

// errors returns the last errors in the node's log.
func (n *chaosNode) errors() string {
	var lines []string
	for line := range strings.Lines(tail(n.running.Load().Log())) {
		if strings.Contains(line, `"ERROR"`) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// object sends a request that must succeed, and returns the object in its answer.
func (c *chaos) object(r request) map[string]any {
	c.Helper()
	got, ok := c.retry(r)
	if !ok || got.status >= 300 {
		c.Fatalf("%s %s: %d %s", r.method, r.path, got.status, got.body)
	}
	return decodeObject(c.T, got.body)
}
