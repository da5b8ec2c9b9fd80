package control

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/rules"
	"mtagd/store/testenv"
)

// The file of an earlier version has no bucket for sessions.
func TestAFileWithoutSessionsGetsThem(t *testing.T) {
	dir := t.TempDir()
	d := openHere(t, dir)
	p, err := d.AddPartner(t.Context(), "Acme")
	testenv.Check(t, errors.Join(err, d.Close()))
	if err := changeFile(filepath.Join(dir, fileName), func(tx *bolt.Tx) error {
		return tx.DeleteBucket([]byte(rules.Sessions))
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d = openHere(t, dir)
		if _, _, err := d.AddLink(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Verify(t.Context(), func(where, problem string) { t.Errorf("%s: %s", where, problem) }); err != nil {
			t.Fatal(err)
		}
		testenv.Check(t, d.Close())
	}
}

func TestTidyingDeletesSessionsWhoseTimeIsOver(t *testing.T) {
	dir := t.TempDir()
	d := openHere(t, dir)
	p, err := d.AddPartner(t.Context(), "Acme")
	testenv.Check(t, err)
	k, _, err := d.IssueKey(t.Context(), p.ID, store.KeyOptions{})
	testenv.Check(t, err)
	s, _, err := d.BeginSession(t.Context(), k.ID)
	testenv.Check(t, err)
	if _, _, err := d.AddLink(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at   time.Time
		left int
	}{{s.CreatedAt, 2}, {s.CreatedAt.Add(store.LinkLife + time.Second), 1}, {s.ExpiresAt, 0}} {
		d.now = func() time.Time { return c.at }
		testenv.Check(t, d.Tidy(t.Context()))
		if got := inBucket(t, d, rules.Sessions); got != c.left {
			t.Errorf("after %v: %d are left, want %d", c.at.Sub(s.CreatedAt), got, c.left)
		}
	}
	testenv.Check(t, d.Close())
	d = openHere(t, dir)
	defer d.Close()
	if inBucket(t, d, rules.Sessions) != 0 {
		t.Errorf("%d are on the disk", inBucket(t, d, rules.Sessions))
	}
}

func TestARestoredDirectoryHasNoSessions(t *testing.T) {
	d := open(t, t.TempDir())
	p, err := d.AddPartner(t.Context(), "Acme")
	testenv.Check(t, err)
	_, link, err := d.AddLink(t.Context(), p.ID)
	testenv.Check(t, err)
	_, session, err := d.UseLink(t.Context(), link)
	testenv.Check(t, err)
	if _, err := d.ID(); err != nil { // a backup of it goes on
		t.Fatal(err)
	}
	if _, _, ok := d.Directory().AuthenticateSession(session, time.Now()); !ok {
		t.Error("the session has ended too early")
	}
	if _, err := d.ReplaceID(); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := d.Directory().AuthenticateSession(session, time.Now()); ok || inBucket(t, d, rules.Sessions) > 0 {
		t.Error("the session goes on")
	}
}
