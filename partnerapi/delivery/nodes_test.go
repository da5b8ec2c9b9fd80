package delivery

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres"
)

// node opens a node on a database.
func (b *bed) node(url string) *bed {
	b.t.Helper()
	engine := must(postgres.Open(b.t.Context(), url, postgres.Options{Log: slog.New(slog.DiscardHandler)}))
	n := &bed{t: b.t, engine: engine, keys: b.keys, allow: b.allow}
	n.s = Open(Config{
		Engine: engine, Shared: engine.(store.Shared), Keys: b.keys, Allow: b.allow, Log: slog.New(slog.NewTextHandler(&n.log, nil)), Now: time.Now,
		Backoff: func(int) time.Duration { return 20 * time.Millisecond }, Interval: 100 * time.Millisecond, // eight shards of each node ask the database so often
	})
	b.t.Cleanup(n.close)
	return n
}

func TestTwoNodesDeliverEachEventInOrder(t *testing.T) {
	pgtest.Need(t)
	url := pgtest.NewServer(t).URL("postgres")
	b := newBed(t)
	first := b.node(url)
	p := must(first.engine.AddPartner(t.Context(), "Acme"))
	s := newSink(t)
	var destinations []Destination
	for range 4 { // in several shards
		m, tag := first.shop(p.ID)
		first.m, first.tag = m, tag
		destinations = append(destinations, first.create(s.URL, nil))
	}
	second := b.node(url)
	// What one node takes of a browser, the other can read.
	first.createPlatform("meta", `{"pixelId":"123456","endpoint":"http://127.0.0.1:1"}`, map[string]string{"accessToken": "x"})
	sealed := first.s.Seal(first.m.ID, netip.MustParseAddr(visitorIP), []byte(visitorAgent))
	second.until("the other node has the key", func() bool {
		return second.s.Browser(first.m.ID, sealed) == (kind.Browser{Address: visitorIP, UserAgent: visitorAgent})
	})
	n := 0
	send := func(from *bed, events int) {
		for range events {
			n++
			d := destinations[n%len(destinations)]
			from.n = n - 1
			from.sendTo(d.Merchant, tagOf(t, from.engine, d.Merchant), fmt.Sprint(d.Merchant, n%3), "Purchase", "")
		}
	}
	delivered := func(on *bed) (sum int) {
		for _, d := range destinations {
			sum += int(on.status(d).Delivered)
		}
		return sum
	}
	send(first, 40)
	send(second, 40)
	second.until("all delivered", func() bool { return delivered(second) == 80 })
	// The node that does not deliver changes a destination.
	if _, _, err := second.s.Update(t.Context(), mustMerchant(t, second.engine, destinations[0].Merchant), destinations[0].ID, Change{Paused: new(true)}); err != nil {
		t.Fatal(err)
	}
	held := func() bool {
		first.s.mu.Lock()
		defer first.s.mu.Unlock()
		sh := first.s.shards[first.s.shardOf(destinations[0].Merchant)]
		if sh == nil {
			return true
		}
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return !sh.of[destinations[0].Merchant].runners[0].isOn()
	}
	first.until("the other node knows", held)
	send(first, 40)
	second.until("all others delivered", func() bool { return delivered(second) == 110 })
	first.close() // the other node takes over
	if _, _, err := second.s.Update(t.Context(), mustMerchant(t, second.engine, destinations[0].Merchant), destinations[0].ID, Change{Paused: new(false)}); err != nil {
		t.Fatal(err)
	}
	send(second, 40)
	second.until("all delivered", func() bool { return delivered(second) == 160 })
	b.expectOrder(s.all(), 160)
	if got := len(s.all()); got != 160 {
		t.Errorf("%d events were sent, want 160", got)
	}
}

func tagOf(t *testing.T, e store.Engine, m store.MerchantID) store.TagID {
	return mustMerchant(t, e, m).Tags[0].ID
}

func mustMerchant(t *testing.T, e store.Engine, id store.MerchantID) store.Merchant {
	t.Helper()
	m := must(e.Merchant(t.Context(), id))
	return m
}
