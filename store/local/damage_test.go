package local

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"
	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
)

func TestADirectoryOfAnotherFormatIsRefused(t *testing.T) {
	inBadger := func(path string) error {
		db, err := badger.OpenManaged(badger.DefaultOptions(path).WithLogger(nil))
		if err != nil {
			return err
		}
		txn := db.NewTransactionAt(math.MaxUint64, true)
		defer txn.Discard()
		return errors.Join(txn.Set([]byte("F"), []byte("99")), txn.CommitAt(db.MaxVersion()+1, nil), db.Close())
	}
	inBolt := func(path string) error {
		return changeBolt(path, func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("99"))
		})
	}
	for name, change := range map[string]func(path string) error{
		"events":     inBadger,
		"index.db":   inBolt,
		"control.db": inBolt,
	} {
		dir := t.TempDir()
		closeEngine(t, open(t, dir))
		if err := change(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, Options{Log: quiet})
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), `format "99"`) {
			t.Errorf("with %s of format 99, Open gives %v; want an error that names both", name, err)
		}
	}
}

// changeBolt changes a bbolt file in one transaction.
func changeBolt(path string, change func(tx *bolt.Tx) error) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	return errors.Join(db.Update(change), db.Close())
}

// damage rewrites a file with what change returns.
func damage(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestACorruptTableIsFatal(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	record(t, e, store.NewMerchantID(), 500)
	closeEngine(t, e)
	tables, err := filepath.Glob(filepath.Join(dir, "events", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables: %v", err)
	}
	damage(t, tables[0], func(b []byte) []byte {
		b[len(b)-30] ^= 0xff // in the index at the end of the table
		return b
	})
	if e, err := Open(dir, Options{Log: quiet}); err == nil {
		closeEngine(t, e.(*engine))
		t.Error("a data directory with a corrupt table was opened")
	}
}

// A damaged node or root record fails the queries of its merchant. Those of other merchants go on.
func TestADamagedIndexValueIsAnError(t *testing.T) {
	for _, bucket := range []string{"nodes", "roots"} {
		dir := t.TempDir()
		e := open(t, dir)
		m, other := store.NewMerchantID(), store.NewMerchantID()
		record(t, e, m, 100)
		record(t, e, other, 100)
		closeEngine(t, e) // merges
		key, err := codec.NewMerchantKey(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := changeBolt(filepath.Join(dir, "index.db"), func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			k, v := b.Cursor().Seek(key[:]) // 100 events are one node
			v = slices.Clone(v)
			v[len(v)/2] ^= 0x01
			return b.Put(k, v)
		}); err != nil {
			t.Fatal(err)
		}
		e = open(t, dir)
		if page, err := e.Events(ctx, store.Query{Merchant: m, Limit: 100}); !errors.Is(err, codec.ErrCorrupt) || !strings.Contains(err.Error(), "index.db") {
			t.Errorf("damaged %s: %d events, %v; want codec.ErrCorrupt in index.db", bucket, len(page.Events), err)
		}
		if page, err := e.Events(ctx, store.Query{Merchant: other, Limit: 100}); err != nil || len(page.Events) != 100 {
			t.Errorf("damaged %s: %d events of another merchant, %v; want 100", bucket, len(page.Events), err)
		}
		closeEngine(t, e)
	}
}

// bbolt panics on a damaged page, and reading past the end of a file that was cut short is a memory fault. Either must
// become an error, and no listing may be wrong.
func TestADamagedIndexFileIsAnError(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 5000)
	closeEngine(t, e) // merges
	const page = 4096
	size := 0
	for name, change := range map[string]func([]byte) []byte{
		"empty":             func(b []byte) []byte { return b[:0] },
		"one page":          func(b []byte) []byte { return b[:page] },
		"two pages":         func(b []byte) []byte { return b[:2*page] },
		"four pages":        func(b []byte) []byte { return b[:4*page] },
		"eight pages":       func(b []byte) []byte { return b[:8*page] },
		"no metas":          func(b []byte) []byte { clear(b[:2*page]); return b },
		"nothing but metas": func(b []byte) []byte { clear(b[2*page:]); return b },
		"every third page": func(b []byte) []byte {
			for at := 4 * page; at < len(b); at += 3 * page {
				clear(b[at : at+page])
			}
			return b
		},
	} {
		base := copied(t, dir)
		damage(t, filepath.Join(base, "index.db"), func(b []byte) []byte {
			size = len(b)
			return change(b)
		})
		opened, err := Open(base, Options{Log: quiet})
		if err == nil {
			e := opened.(*engine)
			if page, err := listed(e, m); err == nil && page.Total != 5000 {
				t.Errorf("%s: %d events without an error, want 5000", name, page.Total)
			}
			record(t, e, m, 1)
			if err = e.Close(); err == nil {
				e := open(t, base)
				if page, err := listed(e, m); err != nil || page.Total != 5001 {
					t.Errorf("%s: %d events after a merge, %v; want 5001", name, page.Total, err)
				}
				closeEngine(t, e)
			}
		}
		if err != nil && !strings.Contains(err.Error(), "index.db") {
			t.Errorf("%s: the error %v does not name index.db", name, err)
		}
	}
	if size < 16*page {
		t.Errorf("index.db has %d bytes: too few pages for the damages above", size)
	}
}

// listed lists a merchant's events. It turns a panic into an error, as the server does.
func listed(e *engine, m store.MerchantID) (page store.Page, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return e.Events(ctx, store.Query{Merchant: m, Limit: 1})
}

// A page with events of a damaged chunk is an error. Other pages are listed.
func TestADamagedChunkIsNotListed(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m, other := store.NewMerchantID(), store.NewMerchantID()
	record(t, e, m, 100)
	record(t, e, other, 100)
	closeEngine(t, e)
	logs, err := filepath.Glob(filepath.Join(dir, "events", "*.vlog"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no value logs: %v", err)
	}
	damage(t, logs[0], func(b []byte) []byte {
		at := bytes.Index(b, []byte(`{"n":`))
		if at < 0 {
			t.Fatal("no event in the value log")
		}
		b[at+1] ^= 0x01
		return b
	})
	e = open(t, dir)
	defer closeEngine(t, e)
	if page, err := e.Events(ctx, store.Query{Merchant: m, Limit: 100}); err == nil {
		t.Errorf("%d events of a damaged chunk were listed", len(page.Events))
	}
	if page, err := e.Events(ctx, store.Query{Merchant: other, Limit: 100}); err != nil || len(page.Events) != 100 {
		t.Errorf("%d events of undamaged chunks were listed, %v; want 100", len(page.Events), err)
	}
}

// A new control.db beside events would be without the merchants whose events they are.
func TestAMissingControlFileStopsTheStart(t *testing.T) {
	dir := t.TempDir()
	closeEngine(t, open(t, dir))
	path := filepath.Join(dir, "control.db")
	for name, damage := range map[string]func() error{
		"missing": func() error { return os.Remove(path) },
		"empty":   func() error { return os.WriteFile(path, nil, 0o600) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		before := sizes(t, dir)
		for _, opens := range []func() error{
			func() error { _, err := Open(dir, Options{Log: quiet}); return err },
			func() error { _, err := OpenControl(dir, Options{Log: quiet}); return err },
		} {
			if err := opens(); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: the start gives %v; want an error that names %s", name, err, path)
			}
		}
		if after := sizes(t, dir); !maps.Equal(before, after) {
			t.Errorf("%s: the start has changed files: %v, before %v", name, after, before)
		}
	}
}

// A kill may leave an empty log: one that was just created, or was about to be removed.
func TestADirectoryWithEmptyLogsIsOpened(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 10)
	closeEngine(t, e)
	for _, name := range []string{"000077.vlog", "00077.mem"} {
		if err := os.WriteFile(filepath.Join(dir, "events", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e = open(t, dir)
	defer closeEngine(t, e)
	if got := everything(t, e, m)[0].Total; got != 10 {
		t.Errorf("%d events, want 10", got)
	}
}

func TestAnOpenDirectoryIsInUse(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer closeEngine(t, e)
	if _, err := Open(dir, Options{Log: quiet}); !errors.Is(err, store.ErrInUse) {
		t.Errorf("opening it again gives %v, want store.ErrInUse", err)
	}
}

// When the index cannot apply an event, the event is on disk, but the engine accepts no more and is not ready.
func TestAnEngineWhoseIndexFailedIsNotReady(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 100)
	closeEngine(t, e) // which merges
	key, err := codec.NewMerchantKey(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := changeBolt(filepath.Join(dir, "index.db"), func(tx *bolt.Tx) error {
		roots := tx.Bucket([]byte("roots"))
		v := slices.Clone(roots.Get(key[:]))
		v[len(v)/2] ^= 0x01
		return roots.Put(key[:], v)
	}); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir)
	if err := e.Ready(); err != nil {
		t.Errorf("before: %v", err)
	}
	record(t, e, m, 1)
	if err := e.index.Wait(ctx, e.journal.Committed()); err == nil {
		t.Error("the index applied an event of a damaged tree")
	}
	if e.Ready() == nil {
		t.Error("the engine is ready")
	}
	if err := e.Record(ctx, []store.Mark{newMark(m, "PageView", 0, []byte("{}"))}); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("Record gives %v, want KindUnavailable", err)
	}
	if e.Close() == nil {
		t.Error("Close hides the failure")
	}
}
