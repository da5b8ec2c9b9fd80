package control

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
)

// toFormat1 replaces the control.db in a directory by one of format "1" with the same content. edit may change the JSON of
// a tag.
func toFormat1(t *testing.T, dir string, edit func(id string, fields map[string]any)) {
	t.Helper()
	d, err := OpenReadOnly(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.readAgain()
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	path := filepath.Join(dir, fileName)
	db, err := bolt.Open(path+".1", 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bolt.Tx) error { return writeFormat1(tx, d.state, r, edit) }); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Close(), d.Close(), os.Rename(path+".1", path)); err != nil {
		t.Fatal(err)
	}
}

func writeFormat1(tx *bolt.Tx, s *state, r *reading, edit func(id string, fields map[string]any)) (err error) {
	add := func(bucket, key string, value []byte) {
		b, bErr := tx.CreateBucketIfNotExists([]byte(bucket))
		err = errors.Join(err, bErr, b.Put([]byte(key), value))
	}
	addJSON := func(bucket, key string, v any) {
		value, jErr := json.Marshal(v)
		err = errors.Join(err, jErr)
		add(bucket, key, value)
	}
	for _, name := range []string{"meta", "partners", "keys", "merchants", "partner_merchants", "tags", "merchant_tags", "domains", "labels", "tracking_domains", "audit"} {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	add("meta", "format", []byte("1"))
	if s.id != "" {
		add("meta", "id", []byte(s.id))
	}
	for id, p := range s.partners {
		addJSON("partners", string(id), p)
		if p.TrackingDomain != "" {
			add("tracking_domains", p.TrackingDomain, []byte(id))
		}
	}
	for id, k := range s.keys {
		addJSON("keys", string(id), k)
	}
	for partner, list := range s.merchantsOf {
		b, bErr := tx.Bucket([]byte("partner_merchants")).CreateBucket([]byte(partner))
		err = errors.Join(err, bErr)
		for i, id := range list {
			addJSON("merchants", string(id), s.merchants[id].Merchant)
			err = errors.Join(err, b.SetSequence(uint64(i)+1), b.Put(binary.BigEndian.AppendUint64(nil, uint64(i)+1), []byte(id)))
		}
	}
	for id, tag := range s.tags {
		text, jErr := json.Marshal(tag)
		var fields map[string]any
		err = errors.Join(err, jErr, json.Unmarshal(text, &fields))
		edit(string(id), fields)
		addJSON("tags", string(id), fields)
		add("merchant_tags", string(tag.Merchant)+"/"+string(tag.Type), []byte(id))
		if tag.Label != "" {
			add("labels", tag.Label, []byte(id))
		}
	}
	for domain, id := range s.domains {
		add("domains", domain, []byte(id))
	}
	return errors.Join(r.eachEntry(func(w write) error { add("audit", w.key, w.value); return nil }), err, tx.Bucket([]byte("audit")).SetSequence(uint64(s.lastEntry)))
}

// filled makes control data of every kind: more than a page of each.
func filled(t *testing.T, d *Data, partners int) {
	t.Helper()
	ctx := t.Context()
	for i := range partners {
		p, err := d.AddPartner(ctx, fmt.Sprintf("Agency %d", i))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.IssueKey(ctx, p.ID, store.KeyOptions{Name: "backend"}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.EnablePreverified(ctx, p.ID, fmt.Sprintf("t.agency%d.com", i)); err != nil {
			t.Fatal(err)
		}
		for j := range 5 {
			m, err := d.AddMerchant(ctx, p.ID, store.NewMerchant{Name: fmt.Sprintf("Shop %d", j), Domain: "shop.com", Once: fmt.Sprint(j)})
			if err != nil {
				t.Fatal(err)
			}
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
		if err != nil {
			t.Fatal(err)
		}
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

// A file of format "1" has the same content after its migration, also when a kill has cut off a first migration.
func TestMigration(t *testing.T) {
	dir := t.TempDir()
	d := openHere(t, dir)
	filled(t, d, 8)
	id, err := d.ID()
	if err != nil {
		t.Fatal(err)
	}
	want := everything(t, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	toFormat1(t, dir, func(string, map[string]any) {})
	if err := changeFile(filepath.Join(dir, fileName), func(tx *bolt.Tx) error { // as a kill leaves it
		b, err := tx.CreateBucket([]byte(inLog))
		return errors.Join(err, b.Put([]byte("0123456789abcdef"), []byte("half")))
	}); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"after the migration", "after another start"} {
		d := openHere(t, dir)
		if got := everything(t, d); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\nwant %v", when, got, want)
		}
		if again, err := d.ID(); err != nil || again != id {
			t.Errorf("%s: the id is %q, %v; want %q", when, again, err, id)
		}
		if records, err := d.Verify(t.Context(), func(where, problem string) { t.Errorf("%s: %s: %s", when, where, problem) }); records == 0 || err != nil {
			t.Errorf("%s: %d records, %v", when, records, err)
		}
		if err := d.db.View(func(tx *bolt.Tx) error {
			var names []string
			err := tx.ForEach(func(name []byte, _ *bolt.Bucket) error { names = append(names, string(name)); return nil })
			if !slices.Equal(names, slices.Sorted(slices.Values(buckets))) {
				t.Errorf("%s: the buckets are %q", when, names)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
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
		return write{inMeta, keySums, s.bytes(uint64(tx.ID()))}.store(tx, s)
	}), db.Close())
}
