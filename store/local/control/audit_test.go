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
		d, err := Open(dir, time.Now)
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
