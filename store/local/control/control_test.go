package control

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/testenv"
)

var quiet = slog.New(slog.DiscardHandler)

// openHere opens the control data in a directory. The test closes it.
func openHere(t *testing.T, dir string) *Data {
	t.Helper()
	d, err := Open(dir, time.Now, quiet)
	testenv.Check(t, err)
	return d
}

// open is openHere for data that is closed at the end of the test.
func open(t *testing.T, dir string) *Data {
	t.Helper()
	d := openHere(t, dir)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestAChangeOnAFullDiskIsUnavailable(t *testing.T) {
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT} {
		d := open(t, t.TempDir())
		d.Changing = func(uint64) error { return full }
		_, err := d.AddPartner(t.Context(), "Acme")
		if store.KindOf(err) != store.KindUnavailable {
			t.Errorf("when the disk reports %q, a change gives %v; want KindUnavailable", full, err)
		}
		if partners, err := d.Partners(t.Context()); err != nil || len(partners) > 0 {
			t.Errorf("the partners are %v, %v", partners, err)
		}
	}
}

// filled makes control data of every kind: more than a page of each.
func filled(t *testing.T, d *Data, partners int) {
	t.Helper()
	ctx := t.Context()
	for i := range partners {
		p, err := d.AddPartner(ctx, fmt.Sprintf("Agency %d", i))
		testenv.Check(t, err)
		if _, _, err := d.IssueKey(ctx, p.ID, store.KeyOptions{Name: "backend"}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.EnablePreverified(ctx, p.ID, fmt.Sprintf("t.agency%d.com", i)); err != nil {
			t.Fatal(err)
		}
		for j := range 5 {
			m, err := d.AddMerchant(ctx, p.ID, store.NewMerchant{Name: fmt.Sprintf("Shop %d", j), Domain: "shop.com", Once: fmt.Sprint(j)})
			testenv.Check(t, err)
			for _, kind := range []store.TagType{store.ClientSide, store.ServerSide, store.Preverified} {
				if _, _, err := d.GenerateTag(ctx, m.ID, kind, fmt.Sprintf("shop%d-%d.com", i, j)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// everything is all that control data can answer.
func everything(t *testing.T, d *Data) (all []any) {
	t.Helper()
	ctx := t.Context()
	add := func(v any, err error) {
		testenv.Check(t, err)
		all = append(all, v)
	}
	partners, err := d.Partners(ctx)
	add(partners, err)
	add(d.Claims(ctx, ""))
	add(d.Audit(ctx, store.AuditQuery{Limit: 1e6}))
	for _, p := range partners {
		add(d.Keys(ctx, p.ID))
		merchants, _, err := d.Merchants(ctx, store.MerchantQuery{Partner: p.ID, Limit: 1e6})
		add(merchants, err)
	}
	return all
}

// inBucket returns how many records of a kind are on the disk.
func inBucket(t *testing.T, d *Data, kind string) (n int) {
	t.Helper()
	if err := d.db.View(func(tx *bolt.Tx) error {
		n = tx.Bucket([]byte(kind)).Stats().KeyN
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// changeFile changes a bbolt file behind the back of the package.
func changeFile(path string, change func(tx *bolt.Tx) error) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	return errors.Join(db.Update(func(tx *bolt.Tx) error {
		if err := change(tx); err != nil {
			return err
		}
		// The sums stay, but are of this transaction.
		meta := tx.Bucket([]byte(inMeta))
		value, _, ok := unseal(inMeta, keySums, meta.Get([]byte(keySums)))
		if !ok {
			return nil
		}
		s, _, err := parseSums(value)
		if err != nil {
			return err
		}
		return putAll(tx, s, nil)
	}), db.Close())
}
