package control

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/rules"
	"mtagd/store/testenv"
)

// damageRecord changes a value in control.db, with an empty key the first one, and removes the copy.
func damageRecord(t *testing.T, dir, bucket, key string) {
	t.Helper()
	testenv.Check(t, os.RemoveAll(filepath.Join(dir, copyName)))
	if err := changeFile(filepath.Join(dir, fileName), func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		k, v := b.Cursor().Seek([]byte(key))
		v = slices.Clone(v)
		v[3] ^= 0x55
		v[9] ^= 0x33
		return b.Put(slices.Clone(k), v)
	}); err != nil {
		t.Fatal(err)
	}
}

// Nothing is served from a file of which it is not known what is missing.
func TestAFileWithMissingRecordsIsRefused(t *testing.T) {
	dir := t.TempDir()
	d := openHere(t, dir)
	filled(t, d, 10)
	older, err := os.ReadFile(filepath.Join(dir, fileName))
	testenv.Check(t, err)
	if _, err := d.AddPartner(t.Context(), "Last"); err != nil {
		t.Fatal(err)
	}
	testenv.Check(t, d.Close())
	content, err := os.ReadFile(filepath.Join(dir, fileName))
	testenv.Check(t, err)
	const page = 4096
	for name, damage := range map[string]func(b []byte, path string){
		"a page is overwritten": func(b []byte, _ string) {
			at := bytes.Index(b, []byte(`"merchantId"`)) / page * page
			for at = at + page; !bytes.Contains(b[at:at+page], []byte(`"ordinal"`)); at += page {
			}
			clear(b[at : at+page])
		},
		"both meta pages are lost": func(b []byte, _ string) { clear(b[:2*page]) },
		"all pages but the metas are older": func(b []byte, _ string) {
			copy(b[2*page:], older[2*page:])
		},
		// Thus are those older pages when they happen to be a whole state.
		"all records are two transactions older than the meta page": func(b []byte, path string) {
			db, err := bolt.Open(path, 0o600, nil)
			testenv.Check(t, err)
			nothing := func(*bolt.Tx) error { return nil }
			testenv.Check(t, errors.Join(db.Update(nothing), db.Update(nothing), db.Close()))
			changed, err := os.ReadFile(path)
			if err != nil || len(changed) != len(b) {
				t.Fatalf("%d bytes instead of %d; %v", len(changed), len(b), err)
			}
			copy(b, changed)
		},
		"a record is gone": func(b []byte, path string) {
			if err := changeFile(path, func(tx *bolt.Tx) error {
				b := tx.Bucket([]byte(rules.Tags))
				k, _ := b.Cursor().First()
				return b.Delete(slices.Clone(k))
			}); err != nil {
				t.Error(err)
			}
			changed, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
			}
			copy(b, changed)
		},
	} {
		path := filepath.Join(t.TempDir(), fileName)
		testenv.Check(t, os.WriteFile(path, content, 0o600))
		b := slices.Clone(content)
		damage(b, path)
		testenv.Check(t, os.WriteFile(path, b, 0o600))
		if _, err := Open(filepath.Dir(path), time.Now, quiet); err == nil || !strings.Contains(err.Error(), fileName) {
			t.Errorf("%s: Open gives %v; want an error that names %s", name, err, fileName)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, b) {
			t.Errorf("%s: the start has changed the file; %v", name, err)
		}
	}
}

// Zeros over a page of one file lose nothing. Zeros over the same page of both lose at most what was on it, and what follows
// from that.
func TestDrillZerosOverAPage(t *testing.T) {
	testenv.Drill(t)
	for _, partners := range []int{1, 4} { // 1: small buckets are inside of the root page
		dir := t.TempDir()
		d := openHere(t, dir)
		filled(t, d, partners)
		keys, err := d.Keys(t.Context(), firstPartner(t, d))
		testenv.Check(t, err)
		if _, err := d.RevokeKey(t.Context(), keys[0].ID, true); err != nil {
			t.Fatal(err)
		}
		want := everything(t, d)
		last, _ := d.Sum()
		r, err := d.readAgain(toRepair)
		testenv.Check(t, err)
		all := r.raw
		testenv.Check(t, d.Close())
		content, err := os.ReadFile(filepath.Join(dir, fileName))
		testenv.Check(t, err)
		second, err := os.ReadFile(filepath.Join(dir, copyName))
		testenv.Check(t, err)
		const page = 4096
		zeroed := func(b []byte, at int) []byte {
			b = slices.Clone(b)
			clear(b[min(at, len(b)):min(at+page, len(b))])
			return b
		}
		metas := 0
		for at := 0; at < len(content); at += page {
			if problem := tryFiles(t, files{zeroed(content, at), second}, want); problem != "" {
				t.Errorf("page %d of control.db: %s", at/page, problem)
			}
			if problem := tryFiles(t, files{content, zeroed(second, at)}, want); problem != "" {
				t.Errorf("page %d of the copy: %s", at/page, problem)
			}
			dir, to := t.TempDir(), t.TempDir()
			testenv.Check(t, os.WriteFile(filepath.Join(dir, fileName), zeroed(content, at), 0o600))
			d, err := OpenReadOnly(dir)
			testenv.Check(t, err)
			r, err := d.readAgain(toRepair)
			testenv.Check(t, err)
			has := map[[2]string][]byte{}
			for _, w := range r.raw {
				has[[2]string{w.Kind, w.Key}] = w.Value
			}
			for _, w := range all {
				value, ok := has[[2]string{w.Kind, w.Key}]
				if ok && !r.mayBeOlder && isSummed(w.Kind, w.Key) && !bytes.Equal(value, w.Value) {
					t.Errorf("page %d of both: %s %q has the value %q, want %q", at/page, w.Kind, w.Key, value, w.Value)
				}
				if !ok && len(has) > 0 && !r.mayBeOlder && !bytes.Contains(content[at:at+page], seal(w.Kind, w.Key, w.Value)) {
					t.Errorf("page %d of both: %s %q is lost, and was not on the page", at/page, w.Kind, w.Key)
				}
			}
			if len(has) < len(all) && len(r.wrong) == 0 {
				t.Errorf("page %d of both: records are lost in silence", at/page)
			}
			testenv.Check(t, errors.Join(d.Repair(to, func(string, string) {}, last), d.Close()))
			repaired := openHere(t, to)
			if _, err := repaired.Verify(t.Context(), func(where, problem string) { t.Errorf("page %d, after repair: %s %s", at/page, where, problem) }); err != nil {
				t.Error(err)
			}
			if at < 2*page { // the meta page that is left is the newest, or nothing is taken
				metas += len(everything(t, repaired)) / len(want)
			}
			if k, ok := repaired.Directory().Key(keys[0].ID); ok && k.RevokedAt == nil {
				t.Errorf("page %d: after repair the revoked key is valid", at/page)
			}
			testenv.Check(t, repaired.Close())
		}
		if metas != 1 {
			t.Errorf("%d of the two states are repaired", metas)
		}
	}
}

// A copy of another time is not taken: a key that was revoked since would be valid again. Beside a sound file, the next
// change makes it anew.
func TestAnOlderCopyIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	d := openHere(t, dir)
	filled(t, d, 1)
	older, err := os.ReadFile(filepath.Join(dir, copyName))
	testenv.Check(t, err)
	keys, err := d.Keys(t.Context(), firstPartner(t, d))
	testenv.Check(t, err)
	if _, err := d.RevokeKey(t.Context(), keys[0].ID, true); err != nil {
		t.Fatal(err)
	}
	testenv.Check(t, errors.Join(d.Close(), os.WriteFile(filepath.Join(dir, copyName), older, 0o600)))
	d = openHere(t, dir)
	if k, ok := d.Directory().Key(keys[0].ID); !ok || k.RevokedAt == nil {
		t.Errorf("the revoked key is %+v, %v", k, ok)
	}
	if _, err := d.AddPartner(t.Context(), "Another"); err != nil {
		t.Error(err)
	}
	want := everything(t, d)
	testenv.Check(t, errors.Join(d.Close(), os.Truncate(filepath.Join(dir, fileName), 10)))
	d = openHere(t, dir)
	if got := everything(t, d); !reflect.DeepEqual(got, want) {
		t.Errorf("the copy that was made anew has %v", got)
	}
	testenv.Check(t, d.Close())
	damageRecord(t, dir, rules.Replies, "")
	testenv.Check(t, os.WriteFile(filepath.Join(dir, copyName), older, 0o600))
	if _, err := Open(dir, time.Now, quiet); err == nil || !strings.Contains(err.Error(), rules.Replies) {
		t.Errorf("Open gives %v", err)
	}
}

// setFormat writes another format version into control.db.
func setFormat(t *testing.T, path, format string) {
	t.Helper()
	testenv.Check(t, changeFile(path, func(tx *bolt.Tx) error { return tx.Bucket([]byte(inMeta)).Put([]byte(keyFormat), []byte(format)) }))
}

// A file of the next version is refused, and its copy does not take its place. One of the former version, or with a wrong
// bit in either, is brought to this one, and nothing else changes.
func TestFormats(t *testing.T) {
	dir := t.TempDir()
	d := openHere(t, dir)
	filled(t, d, 1)
	want := everything(t, d)
	testenv.Check(t, d.Close())
	path := filepath.Join(dir, fileName)
	setFormat(t, path, "10")
	before, err := os.ReadFile(path)
	testenv.Check(t, err)
	if _, err := Open(dir, time.Now, quiet); !errors.Is(err, codec.UnknownFormat{Found: "10", Known: Format}) {
		t.Errorf("Open gives %v, want codec.UnknownFormat", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the start has changed the file; %v", err)
	}
	for _, format := range []byte{Format[0], formerFormat[0]} {
		for bit := range 9 {
			setFormat(t, path, string([]byte{format ^ byte(1<<bit)})) // the last one is right
			d := openHere(t, dir)
			d.KeepCopy()
			if got := everything(t, d); !reflect.DeepEqual(got, want) {
				t.Fatalf("format %q, bit %d: %v\nwant %v", format, bit, got, want)
			}
			testenv.Check(t, d.Close())
			r, err := OpenReadOnly(dir)
			testenv.Check(t, err)
			again, err := r.readAgain(toLoad)
			testenv.Check(t, err)
			if again.format != Format || len(again.wrong) > 0 {
				t.Errorf("format %q, bit %d: the next start finds %q, %v", format, bit, again.format, again.wrong)
			}
			testenv.Check(t, r.Close())
		}
	}
}

// After bbolt has panicked, nothing is written, but everything is served.
func TestAfterAPanicNothingIsWritten(t *testing.T) {
	d := open(t, t.TempDir())
	filled(t, d, 1)
	want := everything(t, d)[0]
	err := driver{d}.Update(t.Context(), func(rules.Turn) (c rules.Change, err error) {
		// This bucket does not exist in the file.
		c.Records = append(c.Records, rules.Record{Kind: "nowhere", Key: "x", Value: []byte("y")})
		return c, nil
	})
	if !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("the change gives %v", err)
	}
	if _, err := d.AddPartner(t.Context(), "Later"); !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("a later change gives %v", err)
	}
	if partners, err := d.Partners(t.Context()); err != nil || !slices.Equal(partners, want.([]store.Partner)) {
		t.Errorf("the partners are %v, %v", partners, err)
	}
}

// A move copies no file that has lost records since it was opened.
func TestNothingIsExportedOfAFileWithMissingRecords(t *testing.T) {
	d := openHere(t, t.TempDir())
	filled(t, d, 3)
	if records, err := d.Export(); err != nil || len(records) == 0 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	testenv.Check(t, d.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(rules.Merchants))
		key, _ := b.Cursor().First()
		return b.Delete(slices.Clone(key))
	}))
	if _, err := d.Export(); !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("%v, want an error: a merchant is missing", err)
	}
}
