package local

import (
	"bytes"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

func TestADirectoryOfAnotherFormatIsRefused(t *testing.T) {
	for name, db := range map[string]func(*Engine) *badger.DB{
		"events": func(e *Engine) *badger.DB { return e.db },
		"index":  func(e *Engine) *badger.DB { return e.index.db },
	} {
		dir := t.TempDir()
		e := open(t, dir)
		txn := db(e).NewTransactionAt(math.MaxUint64, true)
		if err := txn.Set([]byte{prefixFormat}, []byte("99")); err != nil {
			t.Fatal(err)
		}
		if err := txn.CommitAt(e.index.clock.next(), nil); err != nil {
			t.Fatal(err)
		}
		closeEngine(t, e)
		if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), `format "99"`) {
			t.Errorf("opening %s gives %v", name, err)
		}
	}
}

func TestACorruptTableIsFatal(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	record(t, e, store.NewMerchantID(), 500)
	closeEngine(t, e)
	for _, name := range []string{"events", "index"} {
		tables, err := filepath.Glob(filepath.Join(dir, name, "*.sst"))
		if err != nil || len(tables) == 0 {
			t.Fatalf("no tables: %v", err)
		}
		sound, err := os.ReadFile(tables[0])
		if err != nil {
			t.Fatal(err)
		}
		corrupt := slices.Clone(sound)
		corrupt[len(corrupt)-30] ^= 0xff // in the table's own index
		if err := os.WriteFile(tables[0], corrupt, 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err := Open(dir, Options{Log: quiet}); err == nil {
			closeEngine(t, e.(*Engine))
			t.Errorf("a data directory with a corrupt table in %s was opened", name)
		}
		if err := os.WriteFile(tables[0], sound, 0o600); err != nil {
			t.Fatal(err)
		}
	}
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
	b, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte(`{"n":`))
	if at < 0 {
		t.Fatal("no event in the value log")
	}
	b[at+1] ^= 0x01
	if err := os.WriteFile(logs[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
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
	for _, name := range []string{"events/000077.vlog", "events/00077.mem", "index/00077.mem"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
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
	if err := e.Record(mark); err == nil {
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
	if _, err := Open(dir, Options{Log: quiet}); !errors.Is(err, ErrInUse) {
		t.Errorf("opening it again gives %v, want ErrInUse", err)
	}
}
