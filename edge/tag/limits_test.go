package tag

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/edge/tag/tagtest"
	"mtagd/store"
)

// limited is a world with limits. The test controls its clock and the free disk space.
type limited struct {
	*world
	now  time.Time
	free uint64
	log  strings.Builder
}

// roomy is an engine whose disk has as much room as the test says.
type roomy struct {
	store.Engine
	free *uint64
}

func (r roomy) FreeSpace() uint64 { return *r.free }

func newLimited(t *testing.T, configure ...func(*Config)) *limited {
	t.Helper()
	l := &limited{now: time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC), free: 1 << 40}
	l.world = newWorld(t, append([]func(*Config){func(cfg *Config) {
		cfg.Engine = roomy{cfg.Engine, &l.free}
		cfg.Now = func() time.Time { return l.now }
		cfg.Log = slog.New(slog.NewTextHandler(&l.log, nil))
		cfg.Limits = true
		cfg.Refusals = limit.NewRefusals(cfg.Log, cfg.Metrics)
		limitAddress(limit.DefaultAddressEvents)(cfg)
	}}, configure...)...)
	return l
}

// limitAddress limits the events that one address may send in a second.
func limitAddress(perSecond int) func(*Config) {
	return func(cfg *Config) { cfg.Clients = limit.NewClients(perSecond, nil, cfg.Refusals, cfg.Log) }
}

// from sends a request from an address.
func (l *limited) from(address, method, target, body string, headers ...string) tagtest.Reply {
	l.Helper()
	ctx := new(fasthttp.RequestCtx)
	ctx.Init(new(fasthttp.Request), &net.TCPAddr{IP: net.ParseIP(address)}, nil)
	return l.serve(ctx, method, clientHost, target, body, headers...)
}

// events sends a batch of n events from an address, and demands the status.
func (l *limited) events(address string, n, status int) tagtest.Reply {
	l.Helper()
	r := l.from(address, "POST", "/mark/"+string(l.Client.ID), "["+strings.Repeat(event+",", n-1)+event+"]")
	r.Want(l.T, status, "")
	return r
}

// limit sets limits of the merchant.
func (l *limited) limit(limits store.MerchantLimits) {
	l.Helper()
	if _, err := l.Engine.UpdateMerchant(l.Context(), l.Merchant, func(m store.Merchant) store.Merchant {
		m.Limits = limits
		return m
	}); err != nil {
		l.Fatal(err)
	}
}

// refused demands that the reply is a 429 with this message, and with this Retry-After.
func (l *limited) refused(r tagtest.Reply, message, retryAfter string) {
	l.Helper()
	r.Want(l.T, 429, fmt.Sprintf(`{"success":false,"message":%q}`, message))
	if got := r.Header.Get("Retry-After"); got != retryAfter {
		l.Errorf("Retry-After %q, want %q", got, retryAfter)
	}
}

const (
	fromAddress = "Too many requests from this address, please retry"
	forMerchant = "Too many events for this merchant, please retry"
	forTheDay   = "This merchant has stored as much as it may in a day, please retry later"
)

func TestAnAddressThatSendsTooManyEventsIsRefusedAloneAndMayComeBack(t *testing.T) {
	l := newLimited(t, limitAddress(100))
	mark := "/mark/" + string(l.Client.ID)
	for range 3 { // the burst
		l.events("192.0.2.1", 1000, 200)
	}
	l.refused(l.from("192.0.2.1", "POST", mark, event), fromAddress, "1")
	l.refused(l.events("192.0.2.1", 2, 429), fromAddress, "1")
	l.from("192.0.2.2", "POST", mark, event).Want(t, 201, "")
	l.now = l.now.Add(time.Second)
	l.events("192.0.2.1", 100, 200)
	l.refused(l.from("192.0.2.1", "POST", mark, event), fromAddress, "1")
	if got := len(l.Events(t)); got != 2000 { // one page: there are more
		t.Errorf("%d events are listed", got)
	}
}

// A batch that is refused leaves nothing behind.
func TestABatchIsRefusedWhole(t *testing.T) {
	l := newLimited(t)
	l.limit(store.MerchantLimits{EventsPerSecond: 1})
	l.events("192.0.2.1", 15, 200)
	l.refused(l.events("192.0.2.2", 10, 429), forMerchant, "5")
	if got := len(l.Events(t)); got != 15 {
		t.Errorf("%d events are listed, want those of the first batch", got)
	}
}

func TestEveryRequestCountsWhateverItsAnswer(t *testing.T) {
	for _, c := range []struct {
		is, method, target, body string
		status, tokens           int
	}{
		{"an event", "POST", "/mark/$TAG", event, 201, 1},
		{"a look-up", "POST", "/id/$TAG", `{"email":"a@b.c"}`, 200, 1},
		{"an unknown tag", "POST", "/mark/cs_x", event, 404, 1},
		{"a body that is no JSON", "POST", "/mark/$TAG", "{", 400, 1},
		{"a batch that is no JSON", "POST", "/mark/$TAG", "[" + strings.Repeat(" ", 160<<10), 400, 11},
		{"a large event", "POST", "/mark/$TAG", `{"muid":"m","event":"A","x":"` + strings.Repeat("x", 33<<10) + `"}`, 201, 3},
		{"an unknown path", "GET", "/x", "", 404, 1},
		{"the script", "GET", "/script", "", 200, 1},
		{"a preflight", "OPTIONS", "/mark/$TAG", "", 204, 1},
		{"a wrong method", "DELETE", "/mark/$TAG", "", 405, 1},
		{"a wrong method for /health", "POST", "/health", "", 405, 1},
	} {
		t.Run(c.is, func(t *testing.T) {
			l := newLimited(t, limitAddress(1))
			target := strings.ReplaceAll(c.target, "$TAG", string(l.Client.ID))
			for sent := 0; sent < 30; sent += c.tokens { // thirty seconds' worth
				l.from("192.0.2.1", c.method, target, c.body).Want(t, c.status, "")
			}
			l.refused(l.from("192.0.2.1", c.method, target, c.body), fromAddress, map[int]string{1: "1", 3: "1", 11: "3"}[c.tokens])
			l.from("192.0.2.1", "GET", "/health", "").Want(t, 200, "")
			l.from("192.0.2.2", c.method, target, c.body).Want(t, c.status, "")
		})
	}
}

func TestAMerchantHasOneRateOverAllItsTagsAndTheOperatorCanChangeIt(t *testing.T) {
	l := newLimited(t)
	l.limit(store.MerchantLimits{EventsPerSecond: 2})
	for i := range 20 {
		l.from(fmt.Sprintf("192.0.2.%d", i), "POST", "/mark/"+string(l.Client.ID), event).Want(t, 201, "")
	}
	other := func() tagtest.Reply {
		return l.do("POST", l.ServerSide.Host, "/mark/"+string(l.ServerSide.ID), event)
	}
	l.refused(other(), forMerchant, "1")
	l.refused(l.do("POST", l.ServerSide.Host, "/id/"+string(l.ServerSide.ID), event), forMerchant, "1")
	if strings.Count(l.log.String(), "cause=merchant_events") != 1 || !strings.Contains(l.log.String(), string(l.Merchant)) {
		t.Errorf("the log has not one line that names the merchant: %s", l.log.String())
	}
	l.limit(store.MerchantLimits{EventsPerSecond: 3})
	other().Want(t, 201, "")
	l.limit(store.MerchantLimits{EventsPerSecond: store.NoLimit})
	for range 100 {
		other().Want(t, 201, "")
	}
}

// The default leaves a large shop alone: ten thousand events a second from five addresses.
func TestALargeShopReachesNoLimit(t *testing.T) {
	l := newLimited(t)
	for range 3 {
		for i := range 5 {
			l.events(fmt.Sprintf("192.0.2.%d", i), 1000, 200)
			l.events(fmt.Sprintf("192.0.2.%d", i), 1000, 200)
		}
		l.now = l.now.Add(time.Second)
	}
}

func TestAMerchantStoresItsShareOfTheDiskInADay(t *testing.T) {
	l := newLimited(t)
	large := `{"muid":"m","event":"A","x":"` + strings.Repeat("x", 60<<10) + `"}`
	cost := len(large) + besidesRaw
	l.limit(store.MerchantLimits{BytesPerDay: store.Limit(8 * cost)})
	send := func(address string) tagtest.Reply {
		return l.from(address, "POST", "/mark/"+string(l.Client.ID), large)
	}
	for range 4 {
		send("192.0.2.1").Want(t, 201, "")
	}
	l.refused(send("192.0.2.1"), forTheDay, "1") // one address leaves half to the others
	for range 4 {
		send("192.0.2.2").Want(t, 201, "")
	}
	l.refused(send("192.0.2.3"), forTheDay, "1")
	l.refused(l.events("192.0.2.3", 2, 429), forTheDay, "1")
	l.refused(l.from("192.0.2.3", "POST", "/id/"+string(l.Client.ID), `{"muid":"m","email":"a@b.c"}`), forTheDay, "1")
	if got := len(l.Events(t)); got != 8 {
		t.Errorf("%d events are listed, want 8", got)
	}
	l.now = l.now.Add(3 * time.Hour)
	send("192.0.2.3").Want(t, 201, "") // an eighth of a day gives an eighth of the limit
	l.refused(send("192.0.2.3"), forTheDay, "1")
	l.limit(store.MerchantLimits{BytesPerDay: store.NoLimit})
	send("192.0.2.3").Want(t, 201, "")
}

// What is not stored costs nothing of the day: a stranger must not use it up with requests that fail.
func TestOnlyStoredBytesCount(t *testing.T) {
	l := newLimited(t)
	l.limit(store.MerchantLimits{BytesPerDay: 1000})
	for range 100 {
		l.mark(`{"email":"nobody@example.com","event":"A"}`).Want(t, 404, "")
		l.mark(`{"muid":"m","event":"not a name"}`).Want(t, 400, "")
		l.mark(`{"muid":"m","event":"A","event_id":"1"}`).Want(t, 201, "")
	}
}

func TestTheDefaultForBytesIsATenthOfTheFreeSpace(t *testing.T) {
	for _, c := range []struct{ free, day uint64 }{
		{1 << 40, 1 << 40 / 10},
		{8 << 30, 1 << 30},
		{1 << 30, 1 << 28},
	} {
		l := newLimits(limit.NewClients(1, nil, nil, nil), nil, func() uint64 { return c.free }, nil)
		from := &sender{merchant: "m", now: time.Now()}
		if !l.stores(from, 0) {
			t.Errorf("%d bytes are free: a sender may store nothing", c.free)
		}
		if !l.stores(from, int(c.day/addressShare)-1) || !l.stores(from, 2) {
			t.Errorf("%d bytes are free: a sender may not store half of %d", c.free, c.day)
		}
		if l.stores(from, 0) {
			t.Errorf("%d bytes are free: a sender may store more than half of %d", c.free, c.day)
		}
	}
}

// stores reports whether a sender may store so many bytes, and takes them.
func (l *limits) stores(from *sender, bytes int) bool {
	from.stored, from.admitted = bytes, false
	ok := l.admit(new(fasthttp.RequestCtx), from, 1, 0)
	if ok {
		l.settle(from)
	}
	return ok
}

// A stranger may know the tag ids of many merchants, and a partner may make many.
func TestTheBytesOfManyMerchantsAreLimited(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		is               string
		clients          bool
		partnerBytes     store.Limit
		merchantBytes    store.Limit
		address, partner func(i int) string
		free             uint64
		want             int // GiB from 1,000 merchants
		refused          *answer
	}{
		{"one address stores a tenth of the disk", true, 0, 0, same, number, 100 * gib, 10, tooManyBytesFromAddress},
		{"one address stores a quarter of a small disk", true, 0, 0, same, number, 4 * gib, 1, tooManyBytesFromAddress},
		{"an address that is a proxy has no limit", false, 0, 0, same, number, 100 * gib, 1000, nil},
		{"one partner stores a quarter of the disk", true, 0, 0, number, same, 100 * gib, 25, tooManyBytesOfPartner},
		{"a full disk has something left for an address", true, 0, 0, same, number, 0, 1, tooManyBytesFromAddress},
		{"the operator limits a partner", true, 7 * gib, 0, number, same, 100 * gib, 7, tooManyBytesOfPartner},
		{"the operator lifts a partner's limit", true, store.NoLimit, 0, number, same, 100 * gib, 1000, nil},
		{"a merchant without limit has its partner's", true, 0, store.NoLimit, number, same, 100 * gib, 25, tooManyBytesOfPartner},
		{"a merchant with a high limit raises that of an address", true, 0, 40 * gib, same, number, 100 * gib, 40, tooManyBytesFromAddress},
	} {
		t.Run(c.is, func(t *testing.T) {
			var clients *limit.Clients
			if c.clients {
				clients = limit.NewClients(1, nil, nil, nil)
			}
			l := newLimits(clients, nil, func() uint64 { return c.free }, nil)
			now, stored := time.Now(), 0
			ctx := new(fasthttp.RequestCtx)
			for i := range 1000 {
				from := &sender{
					address: netip.MustParseAddr(c.address(i)), merchant: store.MerchantID(fmt.Sprint(i)),
					limits:  store.MerchantLimits{BytesPerDay: c.merchantBytes},
					partner: store.PartnerID(c.partner(i)), partnerBytes: c.partnerBytes, now: now,
				}
				if !l.admit(ctx, from, 1, 0) {
					break
				}
				from.stored = gib
				l.settle(from)
				stored++
			}
			if stored != c.want {
				t.Errorf("%d GiB were stored, want %d", stored, c.want)
			}
			if c.refused != nil && string(ctx.Response.Body()) != string(c.refused.body) {
				t.Errorf("answered %s, want %s", ctx.Response.Body(), c.refused.body)
			}
		})
	}
}

func same(int) string { return "192.0.2.1" }

func number(i int) string { return fmt.Sprintf("198.51.%d.%d", i/256, i%256) }

func TestAProxyIsSuspectedOnceAnHour(t *testing.T) {
	l := newLimited(t, limitAddress(1))
	flood := func(headers ...string) int {
		for range 100 {
			l.from("192.0.2.1", "GET", "/script", "", headers...)
		}
		return strings.Count(l.log.String(), "if it is a proxy")
	}
	if n := flood(); n != 0 {
		t.Errorf("%d hints without X-Forwarded-For, want none", n)
	}
	for range 2 {
		if n := flood("X-Forwarded-For", "198.51.100.1"); n != 1 {
			t.Errorf("%d hints, want 1", n)
		}
	}
	l.now = l.now.Add(time.Hour)
	if n := flood("X-Forwarded-For", "198.51.100.1"); n != 2 {
		t.Errorf("%d hints after an hour, want 2", n)
	}
	if strings.Contains(l.log.String(), "192.0.2.1") || strings.Contains(l.log.String(), "198.51.100.1") {
		t.Errorf("the log has an address: %s", l.log.String())
	}
}

func TestWithoutLimitsNothingIsRefused(t *testing.T) {
	l := newLimited(t, func(cfg *Config) { cfg.Limits = false }, limitAddress(1))
	l.limit(store.MerchantLimits{EventsPerSecond: 1, BytesPerDay: 1})
	for range 10 {
		l.events("192.0.2.1", 1000, 200)
	}
}

func TestRefusalsOfTagsAreCounted(t *testing.T) {
	l := newLimited(t)
	l.from("192.0.2.1", "POST", "/mark/cs_x", event).Want(t, 404, "")
	if _, err := l.Engine.UpdateTag(t.Context(), l.Client.ID, func(t store.Tag) store.Tag { t.Suspended = true; return t }); err != nil {
		t.Fatal(err)
	}
	l.mark(event).Want(t, 403, "")
	families, err := l.server.cfg.Metrics.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "mtagd_refused_total" && m.GetCounter().GetValue() > 0 {
				got[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if fmt.Sprint(got) != "map[suspended merchant:1 unknown_tag none:1]" {
		t.Errorf("counted %v", got)
	}
}
