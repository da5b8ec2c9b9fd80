package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

// The audit log keeps the newest entries only. With a smaller bound it gets shorter little by little.
func TestTheAuditLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	open := func(limit int) *Data {
		d, err := Open(dir, time.Now, quiet)
		testenv.Check(t, err)
		d.AuditLimits.Partners, d.AuditLimits.PartnerAge = limit, 0
		return d
	}
	var id store.PartnerID
	add := func(d *Data, n int) {
		for range n {
			if _, err := d.UpdatePartner(t.Context(), id, func(p store.Partner) store.Partner { p.Suspended = !p.Suspended; return p }); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(d *Data, n int, newest store.AuditID) {
		t.Helper()
		entries, err := d.Audit(t.Context(), store.AuditQuery{Limit: 100})
		if err != nil || len(entries) != n {
			t.Fatalf("%d entries, want %d; %v", len(entries), n, err)
		}
		for i, e := range entries {
			if e.ID != newest-store.AuditID(i) {
				t.Errorf("entry %d has the number %d", i, e.ID)
			}
		}
	}

	d := open(10)
	p, err := d.AddPartner(t.Context(), "Acme")
	testenv.Check(t, err)
	id = p.ID
	add(d, 9)
	want(d, 10, 10)
	add(d, 15)
	want(d, 10, 25)
	testenv.Check(t, d.Close())

	d = open(4)
	add(d, 1)
	want(d, 9, 26)
	add(d, 10)
	want(d, 4, 36)
	testenv.Check(t, d.Close())
}

// What the JSON of an entry says of its holder is found, whatever its texts contain.
func TestTheHolderInAnEntry(t *testing.T) {
	for _, e := range []store.AuditEntry{
		{},
		{Partner: "p1", Actor: store.Actor{Kind: store.ByKey}},
		{Partner: "p1", Actor: store.Actor{Kind: store.ByOperator, Name: "ann"}, Reason: "x"},
		{Partner: "p1", Actor: store.Actor{Kind: store.ByService}, Detail: `"actor":{"kind":"operator"`},
		{Actor: store.Actor{Kind: store.ByLink, Name: `","partnerId":"p2"`, Request: `\","partnerId":"p2"`}},
	} {
		text, err := json.Marshal(e)
		testenv.Check(t, err)
		if got, want := holderIn(text), e.Holder(); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// A change whose entry cannot be written is not made. The entries of changes that are made are copied to the log of the
// process.
func TestNoChangeWithoutItsEntry(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var lines strings.Builder
	d, err := Open(t.TempDir(), func() time.Time { return now }, slog.New(slog.NewTextHandler(&lines, nil)))
	testenv.Check(t, err)
	defer d.Close()
	actor := store.Actor{Kind: store.ByOperator, Name: "ann", Request: "r1"}
	p, err := d.AddPartner(store.WithReason(store.WithActor(t.Context(), actor), "contract 7"), "Acme")
	testenv.Check(t, err)
	now = time.Date(12026, 3, 1, 12, 0, 0, 0, time.UTC) // a time that JSON cannot hold
	_, err = d.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner { p.Suspended = true; return p })
	if err == nil {
		t.Error("no error")
	}
	inDirectory, _ := d.Directory().Partner(p.ID)
	if stored, err := d.Partners(t.Context()); err != nil || stored[0].Suspended || inDirectory.Suspended {
		t.Errorf("stored %+v, in the directory %+v, %v", stored, inDirectory, err)
	}
	if entries, err := d.Audit(t.Context(), store.AuditQuery{Limit: 9}); err != nil || len(entries) != 1 {
		t.Errorf("the log is %+v, %v", entries, err)
	}
	want := `level=INFO msg=audit id=1 action=partner.added actor=operator name=ann request_id=r1 partner=` + string(p.ID) + ` reason="contract 7"`
	if got := lines.String(); !strings.Contains(got, want) || strings.Count(got, "msg=audit") != 1 {
		t.Errorf("the copy in the log of the process is %s, want %s", got, want)
	}
}

// A partner that has more young entries than its share is refused further ones, except when it takes access away. The
// service is not.
func TestChangesAreRefusedBeforeYoungEntriesAreDropped(t *testing.T) {
	d, err := Open(t.TempDir(), time.Now, quiet)
	testenv.Check(t, err)
	d.AuditLimits.Partners = 10
	p, err := d.AddPartner(t.Context(), "Acme")
	testenv.Check(t, err)
	key, _, err := d.IssueKey(t.Context(), p.ID, store.KeyOptions{})
	testenv.Check(t, err)
	toggle := func(ctx context.Context) error {
		_, err := d.UpdatePartner(ctx, p.ID, func(p store.Partner) store.Partner { p.Suspended = !p.Suspended; return p })
		return err
	}
	byKey := store.WithActor(t.Context(), store.Actor{Kind: store.ByKey, Name: string(key.ID)})
	for range 8 {
		testenv.Check(t, toggle(byKey))
	}
	for range 2 {
		if err := toggle(byKey); !errors.Is(err, store.ErrAuditFull) {
			t.Errorf("one more: %v", err)
		}
		if err := toggle(t.Context()); err != nil {
			t.Errorf("of the service: %v", err)
		}
	}
	if _, err := d.RevokeKey(byKey, key.ID, true); err != nil {
		t.Errorf("to revoke the key: %v", err)
	}
	if entries, err := d.Audit(t.Context(), store.AuditQuery{Limit: 100}); err != nil || len(entries) != 13 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	testenv.Check(t, d.Close())
}
