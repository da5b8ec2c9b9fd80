package local

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
)

func TestADirectoryOfAnotherFormatIsRefused(t *testing.T) {
	inBadger := func(e *Engine) error {
		txn := e.db.NewTransactionAt(math.MaxUint64, true)
		defer txn.Discard()
		if err := txn.Set([]byte{prefixFormat}, []byte("99")); err != nil {
			return err
		}
		return txn.CommitAt(e.committer.clock.next(), nil)
	}
	inBolt := func(db *bolt.DB) error {
		return db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, []byte("99")) })
	}
	for name, change := range map[string]func(*Engine) error{
		"events":     inBadger,
		"index.db":   func(e *Engine) error { return inBolt(e.index.db) },
		"control.db": func(e *Engine) error { return inBolt(e.Control.db) },
	} {
		dir := t.TempDir()
		e := open(t, dir)
		if err := change(e); err != nil {
			t.Fatal(err)
		}
		closeEngine(t, e)
		if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), `format "99"`) {
			t.Errorf("opening %s gives %v", name, err)
		}
	}
}

// damage rewrites a file.
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
		b[len(b)-30] ^= 0xff // in the table's own index
		return b
	})
	if e, err := Open(dir, Options{Log: quiet}); err == nil {
		closeEngine(t, e.(*Engine))
		t.Error("a data directory with a corrupt table was opened")
	}
}

// What the disk has damaged of the index is an error, not a wrong page.
func TestADamagedIndexIsNotRead(t *testing.T) {
	for _, bucket := range [][]byte{bucketNodes, bucketRoots} {
		dir := t.TempDir()
		e := open(t, dir)
		m, key := newMerchant(t)
		other := store.NewMerchantID()
		record(t, e, m, 100)
		record(t, e, other, 100)
		closeEngine(t, e) // which merges
		e = open(t, dir)
		if err := e.index.db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket(bucket)
			k, v := b.Cursor().Seek(key[:]) // 100 events are one node
			v = slices.Clone(v)
			v[len(v)/2] ^= 0x01
			return b.Put(k, v)
		}); err != nil {
			t.Fatal(err)
		}
		if page, err := e.Events(ctx, store.Query{Merchant: m, Limit: 100}); !errors.Is(err, errCorrupt) || !strings.Contains(err.Error(), "index.db") {
			t.Errorf("damaged %s: %d events, %v", bucket, len(page.Events), err)
		}
		if page, err := e.Events(ctx, store.Query{Merchant: other, Limit: 100}); err != nil || len(page.Events) != 100 {
			t.Errorf("damaged %s: %d events of another merchant, %v", bucket, len(page.Events), err)
		}
		closeEngine(t, e)
	}
}

// bbolt panics on a page that is damaged, and reading behind a file's end is a memory fault.
func TestADamagedIndexFileIsAnError(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 5000)
	closeEngine(t, e) // which merges
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
		engine, err := Open(base, Options{Log: quiet})
		if err == nil {
			e := engine.(*Engine)
			if page, err := listed(e, m); err == nil && page.Total != 5000 {
				t.Errorf("%s: %d events", name, page.Total)
			}
			record(t, e, m, 1)
			if err = e.Close(); err == nil {
				e := open(t, base)
				if page, err := listed(e, m); err != nil || page.Total != 5001 {
					t.Errorf("%s: %d events once merged, %v", name, page.Total, err)
				}
				closeEngine(t, e)
			}
		}
		if err != nil && !strings.Contains(err.Error(), "index.db") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if size < 16*page {
		t.Errorf("an index of %d bytes is too small to be damaged", size)
	}
}

// listed lists a merchant's events; a panic, which the server answers with 500, is an error.
func listed(e *Engine, m store.MerchantID) (page store.Page, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return e.Events(ctx, store.Query{Merchant: m, Limit: 1})
}

// A page with a chunk that the disk has damaged is an error; its events are not.
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
		t.Errorf("%d events of the chunks behind it were listed, %v", len(page.Events), err)
	}
}

// A kill may leave a log that was created, or is about to be removed, with nothing in it.
func TestAnEmptyLogIsNoObstacle(t *testing.T) {
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

// The messages that stop the engine are Badger's own words.
func TestBadgerStillSaysSo(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/dgraph-io/badger/v4").Output()
	if err != nil {
		t.Fatal(err)
	}
	for message := range ignoredErrors {
		said := false
		for _, file := range []string{"levels.go", "value.go"} {
			source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), file))
			if err != nil {
				t.Fatal(err)
			}
			said = said || bytes.Contains(source, []byte(`Errorf("`+message))
		}
		if !said {
			t.Errorf("Badger logs no error that begins with %q", message)
		}
	}
}

// Badger goes on after it could not sync the value log. Nothing may be acknowledged then.
func TestAValueLogThatCannotBeSyncedStopsTheEngine(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	m := store.NewMerchantID()
	record(t, e, m, 1)
	e.committer.log.Errorf("Error while curlf sync: %v\n", errors.New("input/output error"))
	mark := []store.Mark{{Merchant: m, Name: "PageView", Identity: store.Identity{MUID: "u-1"}, Raw: []byte("{}")}}
	if err := e.Record(ctx, mark); err == nil {
		t.Error("an event was acknowledged that is not on disk")
	}
	if err := e.Ready(); err == nil {
		t.Error("the engine is ready")
	}
}

func TestADirectoryIsOpenedOnce(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer closeEngine(t, e)
	if _, err := Open(dir, Options{Log: quiet}); !errors.Is(err, store.ErrInUse) {
		t.Errorf("opening it again gives %v, want store.ErrInUse", err)
	}
}
