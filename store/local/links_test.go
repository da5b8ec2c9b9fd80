package local

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"mtagd/store"
	"mtagd/store/local/durable"
	"mtagd/store/testenv"
)

// No link and no event_id vanishes without a word: whatever happens to the tables, and although they are compacted afterwards, each is
// found, or gives an error, or the log names the table in which it was lost. The events have them all, so they are written again; but not
// those of a person who was erased meanwhile.
func TestDrillNoLinkVanishesWithoutAWord(t *testing.T) {
	testenv.Drill(t)
	x := newErasing(t)
	const links = 4000
	for visitor := range links / 500 {
		var marks []store.Mark
		for n := range 500 {
			marks = append(marks, newVisit(x.shop, visitor*500+n, 0))
		}
		testenv.Check(t, x.Record(ctx, marks))
		if visitor%2 == 0 { // several tables
			if _, err := x.journal.LinksOf(ctx, keyOf(t, x.shop), store.IdentityKey{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	live, shop := x.dir, x.shop
	closeEngine(t, x.engine)
	inBlocks := func(b []byte) []byte { // the length of the checksum of the first block: Badger takes it for the end of the table
		at := bytes.Index(b, []byte{0, 0, 0, 6}) + 3
		b[at] ^= 3
		return b
	}
	for name, c := range map[string]struct {
		damage func(tables []string) error
		open   bool // it happens while the engine runs
	}{
		"a trailer, at rest": {eachTable(inBlocks), false},
		"a trailer, running": {eachTable(inBlocks), true},
		"a table is cut short": {func(tables []string) error {
			return os.Truncate(tables[0], 5000)
		}, false},
		"a table is missing": {func(tables []string) error { return os.Remove(tables[0]) }, false},
		"tables are exchanged": {func(tables []string) error {
			b, err := os.ReadFile(tables[1])
			if err != nil {
				return err
			}
			return os.WriteFile(tables[0], b, 0o600)
		}, false},
		"an index": {eachTable(func(b []byte) []byte { b[len(b)-40] ^= 9; return b }), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := copied(t, live)
			tables, err := filepath.Glob(filepath.Join(dir, "events", "keys", "g*", "*.sst"))
			if err != nil || len(tables) < 2 {
				t.Fatal(tables, err)
			}
			var logged lockedBuffer
			opt := Options{Log: slog.New(slog.NewTextHandler(&logged, nil)), eager: true}
			if !c.open {
				testenv.Check(t, c.damage(tables))
			}
			opened, err := Open(dir, opt)
			if err != nil {
				t.Log(err)
				return // not without a word
			}
			e := opened.(*engine)
			defer closeEngine(t, e)
			if c.open {
				testenv.Check(t, c.damage(tables))
			}
			other := &erasing{t: t, engine: e, dir: dir, shop: shop}
			era := other.erase(byMUID(links-1), false) // compacts
			if c.open {
				until(t, "the damage is rebuilt", func() bool { return strings.Contains(logged.String(), ".sst") && e.Impaired() == nil })
			} else {
				other.await(era.ID)
			}
			until(t, "what is lost is written again", func() bool { return !durable.Exists(filepath.Join(dir, relinkFile)) })
			if muid, err := e.Resolve(ctx, shop, byEmail(links-1)); muid != "" && c.open || err != nil {
				t.Errorf("an erased person is linked to %q, %v", muid, err)
			}
			lost, forgotten := 0, 0
			for n := range links - 1 {
				muid, err := e.Resolve(ctx, shop, byEmail(n))
				testenv.Check(t, err)
				if muid == "" {
					lost++
				} else if muid != muidOf(n) {
					t.Fatalf("an email leads to %s", muid)
				}
			}
			var marks []store.Mark
			for n := range links - 1 {
				marks = append(marks, newVisit(shop, n, 0))
			}
			for some := range slices.Chunk(marks, 500) {
				testenv.Check(t, e.Record(ctx, some))
			}
			for _, m := range marks {
				if m.Outcome != store.Duplicate {
					forgotten++
				}
			}
			said := strings.Contains(logged.String(), "a part of the links and event_ids cannot be read") && strings.Contains(logged.String(), ".sst")
			again := strings.Contains(logged.String(), "written again") && !strings.Contains(logged.String(), "written=0")
			if lost+forgotten > 0 || again && !said {
				t.Errorf("%d links and %d event_ids are lost; the log says:\n%s", lost, forgotten, logged.String())
			}
		})
	}
}

// eachTable changes all tables in place, so that who has them open sees it.
func eachTable(change func(b []byte) []byte) func(tables []string) error {
	return func(tables []string) error {
		for _, path := range tables {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			if _, err := f.WriteAt(change(b), 0); err != nil {
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
		}
		return nil
	}
}

// lockedBuffer is a buffer that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.b.String())
}
