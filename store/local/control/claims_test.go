package control

import (
	"testing"
	"time"

	"mtagd/store"
)

// A file of a version without times of claims: the 7 days of an unverified claim begin when it is first opened, and the
// 30 days of one whose DNS leads elsewhere with the first recheck.
func TestClaimsOfAnOlderVersion(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	data, err := Open(dir, clock, quiet)
	if err != nil {
		t.Fatal(err)
	}
	reopen := func() {
		t.Helper()
		if err := data.Close(); err != nil {
			t.Fatal(err)
		}
		if data, err = Open(dir, clock, quiet); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if err := data.Close(); err != nil {
			t.Error(err)
		}
	}()
	p, err := data.AddPartner(t.Context(), "Acme")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(domain string) (store.Tag, error) {
		t.Helper()
		m, err := data.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
		if err != nil {
			t.Fatal(err)
		}
		tag, _, err := data.GenerateTag(t.Context(), m.ID, store.ServerSide, domain)
		return tag, err
	}
	update := func(id store.TagID, v store.DNSVerdict, after func(store.Tag, store.DNSFinding) store.Tag) {
		t.Helper()
		f := store.DNSFinding{Verdict: v, CheckedAt: now}
		if _, err := data.UpdateTag(t.Context(), id, func(tag store.Tag) store.Tag { return after(tag, f) }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ask("unverified.com"); err != nil {
		t.Fatal(err)
	}
	away, err := ask("away.com")
	if err != nil {
		t.Fatal(err)
	}
	update(away.ID, store.DNSCorrect, store.Tag.AfterVerify)
	update(away.ID, store.DNSWrong, store.Tag.AfterVerify)

	// The older version knew none of these fields.
	now = now.AddDate(1, 0, 0)
	if err := data.Close(); err != nil {
		t.Fatal(err)
	}
	toFormat1(t, dir, func(_ string, fields map[string]any) {
		delete(fields, "claimedAt")
		delete(fields, "elsewhereSince")
	})
	if data, err = Open(dir, clock, quiet); err != nil {
		t.Fatal(err)
	}

	expect := func(domain string, state store.ClaimState, freeFrom time.Time) {
		t.Helper()
		c, err := data.Claim(t.Context(), domain)
		if err != nil || c.State != state || !c.FreeFrom.Equal(freeFrom) {
			t.Errorf("%s: %+v, %v; want %s, free from %v", domain, c, err, state, freeFrom)
		}
	}
	opened := now
	if n := data.countsOf(p.ID).unverifiedClaims(now); n != 1 {
		t.Errorf("%d unverified claims count, want 1", n)
	}
	expect("unverified.com", store.ClaimUnverified, opened.Add(store.UnverifiedClaimAge))
	expect("away.com", store.ClaimVerified, time.Time{})

	now = now.Add(24 * time.Hour)
	reopen() // the time does not begin again
	expect("unverified.com", store.ClaimUnverified, opened.Add(store.UnverifiedClaimAge))
	update(away.ID, store.DNSWrong, store.Tag.AfterRecheck)
	expect("away.com", store.ClaimElsewhere, now.Add(store.ElsewhereClaimAge))
	now = opened.Add(store.UnverifiedClaimAge)
	if n := data.countsOf(p.ID).unverifiedClaims(now); n != 0 {
		t.Errorf("%d unverified claims count after a week, want 0", n)
	}
	if _, err := ask("unverified.com"); err != nil {
		t.Error(err)
	}
	if _, err := ask("away.com"); store.KindOf(err) != store.KindConflict {
		t.Error(err)
	}
}
