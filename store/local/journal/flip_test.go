package journal

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
)

var (
	flips    = flag.Int("flips", 16, "how many wrong bits TestAWrongBitIsNeverServed tries")
	flipSeed = flag.Uint64("flipseed", 0, "0: another one each time")
)

// oracle is what a journal must answer.
type oracle struct {
	events  []codec.Event
	raws    [][]byte
	links   map[string]store.MUID // by email
	deduped []string              // names of events that are remembered
}

var flipMerchant = store.MerchantID("018f0000-0000-7000-8000-000000000001")

// shared is what killJournal has made for all tests.
var shared struct {
	sync.Once
	files map[string][]byte
	oracle
}

// killedJournal returns a copy of the directory that killJournal makes, without the zeros at the end of logs.
func killedJournal(t *testing.T) (dir string, o oracle) {
	t.Helper()
	shared.Do(func() {
		dir, o := killJournal(t)
		files := map[string][]byte{}
		for _, name := range names(t, dir) {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			files[name] = b
		}
		shared.files, shared.oracle = files, o
	})
	if shared.files == nil {
		t.Fatal("the journal could not be made")
	}
	dir = filepath.Join(t.TempDir(), "events")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, b := range shared.files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, shared.oracle
}

// killJournal writes a directory with tables, value logs, and the log of a memtable, as a kill leaves it.
func killJournal(t *testing.T) (dir string, o oracle) {
	t.Helper()
	dir = t.TempDir()
	o.links = map[string]store.MUID{}
	m := flipMerchant
	n := 0
	for start := range 8 {
		j := open(t, dir)
		for range 12 {
			marks := make([]store.Mark, 5)
			for i := range marks {
				n++
				marks[i] = newMark(m, "PageView", n, noisyBody(n))
				marks[i].DedupeID = fmt.Sprintf("event-%d", n)
				email := fmt.Sprintf("u%d@example.com", n)
				marks[i].Identity = store.Identity{MUID: store.MUID(fmt.Sprintf("muid-%d", n))}
				marks[i].Identity.Add(store.Email, email)
				o.links[email] = marks[i].Identity.MUID
				o.deduped = append(o.deduped, marks[i].DedupeID)
			}
			if err := j.Record(ctx, marks); err != nil {
				t.Fatal(err)
			}
		}
		if start < 7 {
			closeJournal(t, j)
			continue
		}
		o.events = since(t, j, 0)
		o.raws = rawsOf(t, j.Journal, o.events)
		dir = smallCopy(t, dir)
		closeJournal(t, j)
	}
	return dir, o
}

func rawsOf(t *testing.T, j *Journal, events []codec.Event) [][]byte {
	t.Helper()
	raws, err := readRaws(j, events)
	if err != nil {
		t.Fatal(err)
	}
	return raws
}

func readRaws(j *Journal, events []codec.Event) ([][]byte, error) {
	wanted := make([]Wanted, len(events))
	for i, e := range events {
		wanted[i] = Wanted{Position: e.Position, N: i}
	}
	raws := make([][]byte, len(events))
	err := j.Read(ctx, wanted, func(n int, e Event) { raws[n] = bytes.Clone(e.Raw) })
	return raws, err
}

// smallCopy copies a directory without the zeros at the end of logs, and without the spare file. When Badger creates or
// removes a file meanwhile, it begins again.
func smallCopy(t testing.TB, dir string) string {
	t.Helper()
	for {
		before := names(t, dir)
		to := filepath.Join(t.TempDir(), "events")
		if err := os.Mkdir(to, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range before {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if ext := filepath.Ext(name); ext == ".mem" || ext == ".vlog" {
				b = append(bytes.TrimRight(b, "\x00"), make([]byte, 100)...)
			}
			if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if slices.Equal(before, names(t, dir)) {
			return to
		}
	}
}

// names returns the names of the files in a directory, except of the spare file.
func names(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != spareName {
			names = append(names, e.Name())
		}
	}
	return names
}

// check returns how a damaged journal differs from the oracle; "" when it has everything, or refuses what it does not have.
func (o *oracle) check(dir string) (wrong string, refused error) {
	j, err := Open(dir, Options{Log: quiet, Now: time.Now})
	if err != nil {
		return "", err
	}
	defer func() {
		if err := j.Close(); err != nil {
			refused = errors.Join(refused, err)
		}
	}()
	var events []codec.Event
	var damaged error
	if err := j.Since(0, func(chunk []codec.Event, _ uint64) error {
		events = append(events, cloned(chunk)...)
		return nil
	}, func(d DamagedChunk) { damaged = d.Err }); err != nil || damaged != nil {
		refused = errors.Join(err, damaged)
	} else if !reflect.DeepEqual(events, o.events) {
		return fmt.Sprintf("%d events, want %d", len(events), len(o.events)), nil
	}
	if raws, err := readRaws(j, o.events); err != nil {
		refused = err
	} else if !reflect.DeepEqual(raws, o.raws) {
		return "other bodies", nil
	}
	for email, want := range o.links {
		id := store.Identity{}
		id.Add(store.Email, email)
		if got, err := j.Resolve(ctx, flipMerchant, id); err != nil {
			refused = err
		} else if got != want {
			return fmt.Sprintf("%s is linked to %q, want %q", email, got, want), nil
		}
	}
	m, err := codec.NewMerchantKey(flipMerchant)
	if err != nil {
		return err.Error(), nil
	}
	txn := j.db.NewTransactionAt(1<<63, false)
	defer txn.Discard()
	for _, id := range o.deduped {
		found, err := lookup(txn, appendDedupeKey(nil, m, "PageView", id), func([]byte) error { return nil })
		if err != nil {
			refused = err
		} else if !found {
			return id + " is not remembered", nil
		}
	}
	return "", refused
}

// A wrong bit anywhere in the directory is corrected, has no effect, or is refused with the file's name. Only value logs are
// not checked at the start: there, a read of the damaged chunk fails.
func TestAWrongBitIsNeverServed(t *testing.T) {
	killed, o := killedJournal(t)
	if wrong, err := o.check(smallCopy(t, killed)); wrong != "" || err != nil {
		t.Fatalf("without damage: %s, %v", wrong, err)
	}
	files := names(t, killed)
	seed := *flipSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	random := rand.New(rand.NewPCG(seed, 0))
	results := map[string][2]int{}
	for i := range *flips {
		name := files[i%len(files)]
		dir := smallCopy(t, killed)
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) == 0 {
			continue
		}
		at, bit := random.IntN(len(b)), random.IntN(8)
		b[at] ^= 1 << bit
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		wrong, refused := o.check(dir)
		if wrong != "" {
			t.Errorf("seed %d: bit %d of byte %d of %s: %s", seed, bit, at, name, wrong)
		}
		kind := filepath.Ext(name) + " " + strings.TrimRight(strings.TrimSuffix(name, filepath.Ext(name)), "0123456789")
		r := results[kind]
		if refused == nil {
			r[0]++
		} else {
			r[1]++
			if filepath.Ext(name) != ".vlog" {
				t.Errorf("seed %d: bit %d of byte %d of %s is refused: %v", seed, bit, at, name, refused)
			}
		}
		results[kind] = r
		if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
			t.Fatal(err)
		}
	}
	for kind, r := range results {
		t.Logf("%-12s %d with everything, %d refused", kind, r[0], r[1])
	}
}

// noisyBody returns a body that compresses badly, so that most chunks are in value logs.
func noisyBody(n int) []byte {
	b := fmt.Appendf(nil, `{"n":%d`, n)
	for range n % 12 {
		b = fmt.Appendf(b, `,"r":%d`, rand.Uint64())
	}
	return append(b, '}')
}
