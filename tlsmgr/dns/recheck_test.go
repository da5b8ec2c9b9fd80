package dns

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local"
)

// recheckTest is a Recheck with a real engine. The test sets what DNS checks find.
type recheckTest struct {
	*testing.T
	store.Engine
	partner store.PartnerID
	recheck *Recheck
	log     bytes.Buffer // read after stop

	mu       sync.Mutex
	verdicts map[string]store.DNSVerdict // what a check of a host finds; correct unless set
	checks   map[string]int              // checks of a host so far
	found    map[string]store.DNSVerdict // the last finding that Found got for a host
	updates  int                         // calls of UpdateTag by the Recheck
	running  int                         // checks in progress
	most     int                         // the highest value of running
}

func newRecheckTest(t *testing.T, every time.Duration) *recheckTest {
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
	b := &recheckTest{T: t, Engine: engine, verdicts: map[string]store.DNSVerdict{}, checks: map[string]int{}, found: map[string]store.DNSVerdict{}}
	p, err := engine.AddPartner(t.Context(), "Partner")
	if err != nil {
		t.Fatal(err)
	}
	b.partner = p.ID
	b.recheck = NewRecheck(RecheckConfig{
		Hosts: store.NewHosts(engine.Directory(), "api.service.com"), Engine: b, Verify: b.verify,
		Found: func(host string, f store.DNSFinding) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.found[host] = f.Verdict
		},
		Every: every, Log: slog.New(slog.NewTextHandler(&b.log, nil)),
	})
	return b
}

// UpdateTag counts the writes.
func (b *recheckTest) UpdateTag(ctx context.Context, id store.TagID, change func(store.Tag) store.Tag) (store.Tag, error) {
	b.mu.Lock()
	b.updates++
	b.mu.Unlock()
	return b.Engine.UpdateTag(ctx, id, change)
}

func (b *recheckTest) verify(_ context.Context, host string) store.DNSFinding {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checks[host]++
	verdict := b.verdicts[host]
	if verdict == "" {
		verdict = store.DNSCorrect
	}
	return store.DNSFinding{Verdict: verdict, Code: "test", Detail: "as the test says", CheckedAt: time.Now()}
}

func (b *recheckTest) setDNS(host string, v store.DNSVerdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.verdicts[host] = v
}

func (b *recheckTest) checked(host string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.checks[host]
}

// addTag generates a server-side tag. If verified is true, the tag has a correct finding that is an hour old, so that
// Now does not trust it.
func (b *recheckTest) addTag(domain string, verified bool) store.Tag {
	b.Helper()
	m, err := b.AddMerchant(b.Context(), b.partner, store.NewMerchant{Name: domain})
	if err != nil {
		b.Fatal(err)
	}
	tag, _, err := b.GenerateTag(b.Context(), m.ID, store.ServerSide, domain)
	if err != nil {
		b.Fatal(err)
	}
	if verified {
		old := store.DNSFinding{Verdict: store.DNSCorrect, CheckedAt: time.Now().Add(-time.Hour)}
		if tag, err = b.Engine.UpdateTag(b.Context(), tag.ID, func(t store.Tag) store.Tag { return t.AfterVerify(old) }); err != nil {
			b.Fatal(err)
		}
	}
	return tag
}

func (b *recheckTest) tag(id store.TagID) store.Tag {
	b.Helper()
	tag, err := b.Tag(b.Context(), id)
	if err != nil {
		b.Fatal(err)
	}
	return tag
}

func (b *recheckTest) until(what string, condition func() bool) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("timed out waiting until %s", what)
		}
	}
}

// untilCheckedAgain waits for a whole check of a host that began after the call.
func (b *recheckTest) untilCheckedAgain(host string) {
	b.Helper()
	before := b.checked(host)
	b.until(host+" is checked again", func() bool { return b.checked(host) >= before+3 })
}

func TestRecheckFollowsAHostThatMovesAwayAndComesBack(t *testing.T) {
	b := newRecheckTest(t, 10*time.Millisecond)
	tag := b.addTag("shop.com", true)
	b.recheck.Start()
	b.untilCheckedAgain(tag.Host)
	if got := b.tag(tag.ID); !got.Connected || !got.DNS.CheckedAt.Equal(tag.DNS.CheckedAt) {
		t.Errorf("a finding that changes nothing was written: %+v", got)
	}

	b.setDNS(tag.Host, store.DNSWrong)
	b.until("the tag is not connected", func() bool { return !b.tag(tag.ID).Connected })
	if got := b.tag(tag.ID); got.Status() != store.Active || !got.Verified || got.DNS.Verdict != store.DNSWrong {
		t.Errorf("the tag is %s with finding %+v", got.Status(), got.DNS)
	}
	b.untilCheckedAgain(tag.Host)
	for _, uncertain := range []store.DNSVerdict{store.DNSPending, store.DNSUnreachable} {
		b.setDNS(tag.Host, uncertain)
		b.until("Found gets the finding", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.found[tag.Host] == uncertain })
		if b.tag(tag.ID).Connected {
			t.Errorf("the finding %s connects the tag", uncertain)
		}
	}

	b.setDNS(tag.Host, store.DNSCorrect)
	b.until("the tag is connected", func() bool { return b.tag(tag.ID).Connected })
	b.untilCheckedAgain(tag.Host)
	b.recheck.Stop()
	if b.updates != 2 {
		t.Errorf("%d writes for 2 changes", b.updates)
	}
	for _, here := range []string{"here=false", "here=true"} {
		if n := strings.Count(b.log.String(), here); n != 1 {
			t.Errorf("the log has %s %d times, want once: %s", here, n, b.log.String())
		}
	}
}

// A tag of an earlier version is not connected, and nobody knows since when.
func TestRecheckNotesSinceWhenAHostLeadsElsewhere(t *testing.T) {
	b := newRecheckTest(t, time.Hour)
	tag := b.addTag("shop.com", true)
	_, err := b.Engine.UpdateTag(t.Context(), tag.ID, func(t store.Tag) store.Tag { t.Connected = false; return t })
	if err != nil {
		t.Fatal(err)
	}
	b.setDNS(tag.Host, store.DNSWrong)
	for range 2 {
		b.recheck.Now(t.Context(), tag.Host)
		if got := b.tag(tag.ID); got.ElsewhereSince.IsZero() || !got.ElsewhereSince.Equal(got.DNS.CheckedAt) || b.updates != 1 {
			t.Errorf("after %d writes the tag is %+v with %+v", b.updates, got, got.DNS)
		}
	}
}

func TestRecheckNeverActivatesATag(t *testing.T) {
	b := newRecheckTest(t, 10*time.Millisecond)
	inactive, active := b.addTag("later.com", false), b.addTag("shop.com", true)
	b.recheck.Start()
	b.untilCheckedAgain(active.Host)
	b.recheck.Stop()
	if b.checks[inactive.Host] != 0 || b.checks["api.service.com"] != 0 {
		t.Errorf("checked %v", b.checks)
	}
	b.recheck.Now(t.Context(), inactive.Host)
	if got := b.tag(inactive.ID); got.Status() != store.Inactive || got.Connected || got.DNS != nil {
		t.Errorf("the inactive tag is %+v", got)
	}
}

func TestRecheckOfATrackingDomain(t *testing.T) {
	b := newRecheckTest(t, 10*time.Millisecond)
	const host = "track.agency.com"
	if _, err := b.EnablePreverified(t.Context(), b.partner, host); err != nil {
		t.Fatal(err)
	}
	b.recheck.Start()
	b.setDNS(host, store.DNSWrong) // no tag is on it yet
	b.untilCheckedAgain(host)
	m, err := b.AddMerchant(t.Context(), b.partner, store.NewMerchant{Name: "Shop"})
	if err != nil {
		t.Fatal(err)
	}
	tag, _, err := b.GenerateTag(t.Context(), m.ID, store.Preverified, "")
	if err != nil {
		t.Fatal(err)
	}
	b.until("the first tag of the tracking domain is not connected", func() bool { return !b.tag(tag.ID).Connected })
	b.recheck.Stop()
	if n := strings.Count(b.log.String(), "host has moved"); n != 1 {
		t.Errorf("the log has %d moves, want 1: %s", n, b.log.String())
	}
}

func TestNowTrustsAFreshFinding(t *testing.T) {
	b := newRecheckTest(t, time.Hour)
	fresh, old := b.addTag("fresh.com", false), b.addTag("old.com", true)
	found := store.DNSFinding{Verdict: store.DNSCorrect, Code: "fresh", CheckedAt: time.Now()}
	if _, err := b.Engine.UpdateTag(t.Context(), fresh.ID, func(t store.Tag) store.Tag { return t.AfterVerify(found) }); err != nil {
		t.Fatal(err)
	}
	b.setDNS(old.Host, store.DNSWrong)
	if f := b.recheck.Now(t.Context(), fresh.Host); f.Code != "fresh" || b.checked(fresh.Host) != 0 {
		t.Errorf("a fresh finding was not trusted: %+v", f)
	}
	if f := b.recheck.Now(t.Context(), old.Host); f.Verdict != store.DNSWrong || b.tag(old.ID).Connected {
		t.Errorf("an old finding was trusted: %+v", f)
	}
}

// Checks that wait for slow servers must not pile up.
func TestRechecksAtOnceAreLimited(t *testing.T) {
	b := newRecheckTest(t, time.Millisecond)
	var last store.Tag
	for i := range 3 * rechecksAtOnce {
		last = b.addTag(fmt.Sprintf("shop-%d.com", i), true)
	}
	release := make(chan struct{})
	quick := b.recheck.Verify
	b.recheck.Verify = func(ctx context.Context, host string) store.DNSFinding {
		b.count(1)
		defer b.count(-1)
		<-release
		return quick(ctx, host)
	}
	b.recheck.Start()
	b.until("all slots are taken", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.running >= rechecksAtOnce })
	time.Sleep(20 * time.Millisecond) // long enough for another check to begin, which would be wrong
	close(release)
	b.untilCheckedAgain(last.Host)
	b.recheck.Stop()
	if b.most != rechecksAtOnce {
		t.Errorf("%d checks at once, want %d", b.most, rechecksAtOnce)
	}
}

func (b *recheckTest) count(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running += n
	b.most = max(b.most, b.running)
}
