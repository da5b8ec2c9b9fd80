package control

import (
	"fmt"
	"testing"
	"time"

	"mtagd/store"
)

// The audit log keeps the newest entries only. With a smaller bound it gets shorter little by little.
func TestTheAuditLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	open := func(maxAudit uint64) *Data {
		d, err := Open(dir, time.Now, quiet)
		if err != nil {
			t.Fatal(err)
		}
		d.maxAudit = maxAudit
		return d
	}
	add := func(d *Data, n int) {
		for i := range n {
			if _, err := d.AddPartner(t.Context(), fmt.Sprint(i)); err != nil {
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
	add(d, 10)
	want(d, 10, 10)
	add(d, 15)
	want(d, 10, 25)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	d = open(4)
	add(d, 1)
	want(d, 9, 26)
	add(d, 10)
	want(d, 4, 36)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// A change whose entry cannot be written is not made.
func TestNoChangeWithoutItsEntry(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	d, err := Open(t.TempDir(), func() time.Time { return now }, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p, err := d.AddPartner(t.Context(), "Acme")
	if err != nil {
		t.Fatal(err)
	}
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
}
