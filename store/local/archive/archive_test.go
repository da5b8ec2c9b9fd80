package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

var (
	ctx   = context.Background()
	quiet = slog.New(slog.DiscardHandler)
)

func openArchive(t *testing.T, dir string) *Archive {
	t.Helper()
	a, err := Open(dir, quiet)
	testenv.Check(t, err)
	return a
}

func closeArchive(t *testing.T, a *Archive) {
	t.Helper()
	testenv.Check(t, a.Close())
}

// model is what the archive must have.
type model map[store.MerchantKey][]modelEvent

type modelEvent struct {
	store.Position
	body string
}

func merchant(n int) (m store.MerchantKey) {
	m[0], m[15] = byte(n>>8), byte(n)
	return m
}

// add adds a run with this many events, which begins at a chunk, and returns its last chunk.
func (m model) add(t *testing.T, a *Archive, r *rand.Rand, events, merchants int, seq uint64) uint64 {
	t.Helper()
	var run Run
	for i := range events {
		if i%7 == 0 {
			seq += 1 + r.Uint64N(1000)
		}
		of := merchant(int(float64(merchants) * r.Float64() * r.Float64()))
		at := store.Position{Seq: seq, Index: uint16(i % 7)}
		body := fmt.Sprintf(`{"event":"Purchase","user":%d,"pad":"%s"}`, r.IntN(1e6), bytes.Repeat([]byte("x"), r.IntN(400)))
		run.Append(of, at, []byte(body))
		m[of] = append(m[of], modelEvent{at, body})
	}
	testenv.Check(t, a.Add(&run, seq, func() {}))
	return seq
}

// check compares the archive with the model.
func (m model) check(t *testing.T, a *Archive) {
	t.Helper()
	merchants, err := a.Merchants()
	if err != nil || len(merchants) != len(m) {
		t.Fatalf("%d merchants, %v; want %d", len(merchants), err, len(m))
	}
	m.checkEvents(t, a)
	for of, want := range m {
		u, err := a.Usage(of)
		if err != nil || u.Events != uint64(len(want)) {
			t.Errorf("usage of merchant %x is %+v, %v; want %d events", of, u, err, len(want))
		}
	}
	if err := a.Verify(ctx, Check{
		Wrong: func(err error) { t.Error(err) }, Damaged: func(d Damage) { t.Error(d.Err) },
		Events: func(store.MerchantKey, []Event) {}, Read: func(_, _ uint64) {},
	}); err != nil {
		t.Error(err)
	}
}

// checkEvents compares the events with those of the model.
func (m model) checkEvents(t *testing.T, a *Archive) {
	t.Helper()
	for of, want := range m {
		var got []modelEvent
		if err := a.Since(ctx, of, store.Position{}, func(events []Event) error {
			for _, e := range events {
				got = append(got, modelEvent{e.Position, string(e.Body)})
			}
			return nil
		}, func(d Damage) { t.Error(d.Err) }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("merchant %x: %d events, want %d", of, len(got), len(want))
		}
	}
}

// Events of many merchants in many runs are read as they were added, also after a restart.
func TestDrillEventsAreReadAsTheyWereAdded(t *testing.T) {
	testenv.Drill(t)
	dir, r, m := t.TempDir(), rand.New(rand.NewPCG(1, 2)), model{}
	a := openArchive(t, dir)
	seq := uint64(1_700_000_000_000_000)
	for run := range 30 {
		seq = m.add(t, a, r, 1+r.IntN(400), 1+r.IntN(60), seq)
		if a.Boundary() != seq {
			t.Fatalf("boundary %d, want %d", a.Boundary(), seq)
		}
		if run%10 == 5 {
			closeArchive(t, a)
			a = openArchive(t, dir)
		}
	}
	m.check(t, a)
	for of, events := range m { // any of a merchant's events, and from any position on
		var wanted []store.Position
		var want []string
		for _, e := range events {
			if r.IntN(3) == 0 {
				wanted, want = append(wanted, e.Position), append(want, e.body)
			}
		}
		got := make([]string, len(want))
		if err := a.Read(ctx, of, wanted, func(i int, e Event) { got[i] = string(e.Body) }); err != nil || !slices.Equal(got, want) {
			t.Errorf("some events of merchant %x: %v", of, err)
		}
		from, n := r.IntN(len(events)), 0
		if err := a.Since(ctx, of, events[from].Position, func(events []Event) error { n += len(events); return nil }, nil); err != nil || n != len(events)-from-1 {
			t.Errorf("%d events since event %d of %d, %v", n, from, len(events), err)
		}
	}
	closeArchive(t, a)
}

// Merchants that send one event at a time get few blocks, and their events are written again only a few times.
func TestDrillSmallMerchantsGetFewBlocks(t *testing.T) {
	testenv.Drill(t)
	dir, r, m := t.TempDir(), rand.New(rand.NewPCG(3, 4)), model{}
	a := openArchive(t, dir)
	defer closeArchive(t, a)
	seq, added := uint64(1_700_000_000_000_000), 0
	for range 120 {
		seq = m.add(t, a, r, 20, 20, seq)
	}
	for _, events := range m {
		for _, e := range events {
			added += len(e.body)
		}
	}
	testenv.Check(t, a.Verify(ctx, Check{Wrong: func(err error) { t.Error(err) }, Events: func(store.MerchantKey, []Event) {}, Read: func(_, _ uint64) {}}))
	blocks := uint64(0)
	err := a.db.View(func(txn *badgerdb.Txn) error {
		return txn.Each(ctx, badgerdb.IteratorOptions{Prefix: []byte{prefixBlock}}, func(*codec.Entry) error { blocks++; return nil })
	})
	if full := uint64(added/blockBytes + len(m)); err != nil || blocks > full+5*uint64(len(m)) {
		t.Errorf("%d blocks of %d merchants, where %d would do: %v", blocks, len(m), full, err)
	}
	m.check(t, a)
	if written := a.all.bytes.Load(); written > int64(added) {
		t.Errorf("%d bytes were written for %d bytes of events", written, added)
	}
}

// A kill between two commits of a run leaves a part of it behind the boundary, which reads leave out. The run can be added
// again, also with further events.
func TestARunThatWasCutOffIsAddedAgain(t *testing.T) {
	dir, r, m := t.TempDir(), rand.New(rand.NewPCG(5, 6)), model{}
	a := openArchive(t, dir)
	seq := m.add(t, a, r, 3000, 10, 1_700_000_000_000_000)
	before := model{}
	for of, events := range m {
		before[of] = slices.Clone(events)
	}
	var run, again Run
	for i := range 4000 {
		at, of := store.Position{Seq: seq + 1 + uint64(i/7), Index: uint16(i % 7)}, merchant(i%12)
		body := make([]byte, 300)
		for i := range body {
			body[i] = byte(r.Uint64())
		}
		run.Append(of, at, body)
		again.Append(of, at, body)
		m[of] = append(m[of], modelEvent{at, string(body)})
	}
	boundary, blocks := a.Boundary(), 0
	func() {
		defer func() { _ = recover() }()
		_ = a.Add(&run, seq+4000, func() {
			if blocks++; blocks == 30 {
				panic("killed")
			}
		})
	}()
	if a.last < 3 {
		t.Fatalf("%d commits, want a part of the run", a.last)
	}
	closeArchive(t, a)
	a = openArchive(t, dir)
	if a.Boundary() != boundary {
		t.Errorf("the boundary has moved to %d", a.Boundary())
	}
	before.checkEvents(t, a)
	last := store.Position{Seq: seq + 4000}
	again.Append(merchant(3), last, []byte("further"))
	m[merchant(3)] = append(m[merchant(3)], modelEvent{last, "further"})
	testenv.Check(t, a.Add(&again, seq+4000, func() {}))
	m.check(t, a)
	closeArchive(t, a)
}

// A removal removes exactly the events for which keep returns false. After a purge, no file has their blocks. A copy has the
// same events.
func TestDrillRemovedEventsAreGone(t *testing.T) {
	testenv.Drill(t)
	dir, r, m := t.TempDir(), rand.New(rand.NewPCG(9, 10)), model{}
	a := openArchive(t, dir)
	seq := uint64(1_700_000_000_000_000)
	for range 10 {
		seq = m.add(t, a, r, 400, 8, seq)
		var run Run
		seq++
		for i := range 8 {
			at := store.Position{Seq: seq}
			body := fmt.Sprintf("secret-%d", r.Uint64())
			run.Append(merchant(i), at, []byte(body))
			m[merchant(i)] = append(m[merchant(i)], modelEvent{at, body})
		}
		testenv.Check(t, a.Add(&run, seq, func() {}))
	}
	of, all := merchant(0), store.Position{Seq: seq + 1}
	purged := slices.Concat(storedBlocks(t, a, of), storedBlocks(t, a, merchant(1)))
	isSecret := func(body []byte) bool { return bytes.HasPrefix(body, []byte("secret")) }
	removed, err := removeBetween(a, of, store.Position{}, all, func(e Event) bool { return !isSecret(e.Body) }, func(d Damage) { t.Error(d.Err) })
	if err != nil || removed != 10 {
		t.Fatalf("%d events were removed, %v; want 10", removed, err)
	}
	secrets := map[string]bool{}
	for _, e := range m[of] {
		if isSecret([]byte(e.body)) {
			secrets[e.body] = true
		}
	}
	m[of] = slices.DeleteFunc(m[of], func(e modelEvent) bool { return secrets[e.body] })
	for _, e := range m[merchant(1)] {
		secrets[e.body] = true // some may equal one of another merchant
	}
	if removed, err := a.DropMerchant(ctx, merchant(1)); err != nil || removed != uint64(len(m[merchant(1)])) {
		t.Fatalf("%d events were removed, %v", removed, err)
	}
	delete(m, merchant(1))
	m.check(t, a)
	m.checkCopy(t, a)

	s, err := a.Snapshot()
	testenv.Check(t, err)
	if err := a.Purge(ctx, func() {}); !errors.Is(err, badgerdb.ErrCopied) {
		t.Errorf("a purge while the log is being copied: %v", err)
	}
	s.Close()
	testenv.Check(t, a.Purge(ctx, func() {}))
	m.check(t, a)
	m.checkCopy(t, a)
	stays := storedBlocks(t, a, of)
	purged = slices.DeleteFunc(purged, func(b []byte) bool {
		return slices.ContainsFunc(stays, func(s []byte) bool { return bytes.Equal(b, s) })
	})
	if len(purged) < 10 {
		t.Errorf("only %d blocks were replaced", len(purged))
	}
	closeArchive(t, a)
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		testenv.Check(t, err)
		for _, stored := range purged {
			if bytes.Contains(b, stored) {
				t.Errorf("%s has a block that was purged", filepath.Base(path))
			}
		}
	}
	a = openArchive(t, dir)
	defer closeArchive(t, a)
	m.check(t, a)
	m.checkCopy(t, a)
}

// storedBlocks returns the blocks of a merchant as they are stored.
func storedBlocks(t *testing.T, a *Archive, m store.MerchantKey) (all [][]byte) {
	t.Helper()
	for after := (store.Position{}); ; {
		blocks, err := a.nextBlocks(m, after, newestPosition, 10, func(d Damage) { t.Error(d) })
		testenv.Check(t, err)
		if len(blocks) == 0 {
			return all
		}
		for _, b := range blocks {
			all, after = append(all, b.value), b.last
		}
	}
}

// checkCopy copies the archive as a backup does, and compares the copy with the model.
func (m model) checkCopy(t *testing.T, a *Archive) {
	t.Helper()
	s, err := a.Snapshot()
	testenv.Check(t, err)
	defer s.Close()
	dir := t.TempDir()
	w, err := Create(dir, quiet)
	testenv.Check(t, err)
	testenv.Check(t, s.Blocks(ctx, 0, 0, func(e codec.Entry, _ int) error { return w.Put(e) }, func(err error) { t.Error(err) }))
	testenv.Check(t, w.Close(s.Boundary))
	copied := openArchive(t, dir)
	defer closeArchive(t, copied)
	m.check(t, copied)
}

// A copy of all blocks that were ever written, in pieces as a chain of backups has them, is a copy of the newest state.
func TestDrillAChainOfCopiesIsTheNewestState(t *testing.T) {
	testenv.Drill(t)
	r, m := rand.New(rand.NewPCG(11, 12)), model{}
	a := openArchive(t, t.TempDir())
	defer closeArchive(t, a)
	dir := t.TempDir()
	w, err := Create(dir, quiet)
	testenv.Check(t, err)
	seq, since := uint64(1_700_000_000_000_000), uint64(0)
	var boundary uint64
	put := 0 // events
	for step := range 40 {
		seq = m.add(t, a, r, 1+r.IntN(200), 6, seq)
		of := merchant(r.IntN(6))
		switch events := m[of]; {
		case step%5 == 3 && len(events) > 0:
			from, to := events[r.IntN(len(events))].Position, events[r.IntN(len(events))].Position
			removed := func(e modelEvent) bool { return e.Compare(from) >= 0 && e.Compare(to) <= 0 }
			if _, err := removeBetween(a, of, from, to, func(Event) bool { return false }, func(d Damage) { t.Error(d.Err) }); err != nil {
				t.Fatal(err)
			}
			if m[of] = slices.DeleteFunc(events, removed); len(m[of]) == 0 {
				delete(m, of)
			}
		case step == 17 && len(events) > 0:
			if _, err := a.DropMerchant(ctx, of); err != nil {
				t.Fatal(err)
			}
			delete(m, of)
		}
		m.check(t, a)
		if step%3 != 0 && step != 39 {
			continue
		}
		s, err := a.Snapshot()
		testenv.Check(t, err)
		if err := s.Blocks(ctx, since, boundary, func(e codec.Entry, events int) error {
			n, err := CheckBlock(e)
			if n != events {
				t.Errorf("a block has %d events, but %d are passed", n, events)
			}
			put += n
			return errors.Join(err, w.Put(e))
		}, func(err error) { t.Error(err) }); err != nil {
			t.Fatal(err)
		}
		s.Close()
		since, boundary = s.Version, s.Boundary
	}
	testenv.Check(t, w.Close(boundary))
	copied := openArchive(t, dir)
	defer closeArchive(t, copied)
	m.check(t, copied)
	if put <= copied.Events() || copied.Events() != a.Events() {
		t.Errorf("the copies have %d events, and the copy %d of %d", put, copied.Events(), a.Events())
	}
}

// While a table is open, no wrong bit in its index makes events look missing: the index is checked before that is said.
func TestDrillAWrongIndexHidesNothing(t *testing.T) {
	testenv.Drill(t)
	dir, of, seq := t.TempDir(), merchant(1), uint64(1_700_000_000_000_000)
	a := openArchive(t, dir)
	defer func() { _ = a.Close() }() // with damage
	m := model{}
	r := testenv.Random(t)
	for range 5 {
		seq = m.add(t, a, r, 400, 2, seq)
	}
	var positions []store.Position
	for _, e := range m[of] {
		positions = append(positions, e.Position)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "g*", "*.sst"))
	if err != nil || len(tables) == 0 || len(positions) == 0 {
		t.Fatal(tables, len(positions), err)
	}
	wrong, refused := 0, 0
	for _, path := range tables {
		b, err := os.ReadFile(path)
		testenv.Check(t, err)
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		testenv.Check(t, err)
		defer f.Close()
		for range testenv.Rounds(30) {
			at := len(b) - 1 - r.IntN(min(len(b), 1500))
			if _, err := f.WriteAt([]byte{b[at] ^ 1<<r.IntN(8)}, int64(at)); err != nil {
				t.Fatal(err)
			}
			read := 0
			err := func() (err error) {
				defer func() {
					if p := recover(); p != nil {
						err = fmt.Errorf("panic: %v", p)
						wrong++
						t.Errorf("byte %d of %d: %v", at, len(b), p)
					}
				}()
				return a.Read(t.Context(), of, positions, func(int, Event) { read++ })
			}()
			if err == nil && read != len(positions) {
				t.Fatalf("%d events of %d were read", read, len(positions))
			}
			if damaged, ok := errors.AsType[Damaged](err); ok && IsMissing(damaged[0]) {
				wrong++
				t.Errorf("byte %d of %d: %v", at, len(b), err)
			} else if err != nil {
				refused++
			}
			if wrong > 3 {
				t.FailNow()
			}
			if _, err := f.WriteAt(b[at:at+1], int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d reads of %d tables were refused", refused, len(tables))
}

// Repairing sound files gives the whole archive.
func TestSoundFilesAreRepaired(t *testing.T) {
	dir, r, m := t.TempDir(), rand.New(rand.NewPCG(13, 14)), model{}
	a := openArchive(t, dir)
	seq := uint64(1_700_000_000_000_000)
	for range 10 {
		seq = m.add(t, a, r, 300, 6, seq)
	}
	if _, err := a.DropMerchant(ctx, merchant(1)); err != nil {
		t.Fatal(err)
	}
	delete(m, merchant(1))
	to := t.TempDir()
	wrong := func(path string, err error) { t.Error(path, err) }
	if err := Repair(ctx, dir, to, 0, quiet, wrong); err != nil { // as after a kill
		t.Fatal(err)
	}
	closeArchive(t, a)
	for range 2 { // with logs, and with tables
		repaired := openArchive(t, to)
		m.check(t, repaired)
		if boundary := repaired.Boundary(); boundary != seq {
			t.Errorf("boundary %d; want %d", boundary, seq)
		}
		closeArchive(t, repaired)
		to = t.TempDir()
		testenv.Check(t, Repair(ctx, dir, to, 0, quiet, wrong))
	}
}

// A block whose last events were removed, and that was then replaced, does not come back in a chain of copies.
func TestAChainOfCopiesForgetsTheEndOfABlock(t *testing.T) {
	a, of := openArchive(t, t.TempDir()), merchant(1)
	defer closeArchive(t, a)
	m := model{}
	add := func(seq uint64, bodies ...int) {
		t.Helper()
		var run Run
		for i, size := range bodies {
			at, body := store.Position{Seq: seq, Index: uint16(i)}, bytes.Repeat([]byte{'x'}, size)
			run.Append(of, at, body)
			m[of] = append(m[of], modelEvent{at, string(body)})
		}
		testenv.Check(t, a.Add(&run, seq, func() {}))
	}
	w, err := Create(t.TempDir(), quiet)
	testenv.Check(t, err)
	since := uint64(0)
	snapshot := func() {
		t.Helper()
		s, err := a.Snapshot()
		testenv.Check(t, err)
		defer s.Close()
		testenv.Check(t, s.Blocks(ctx, since, 0, func(e codec.Entry, _ int) error { return w.Put(e) }, func(err error) { t.Error(err) }))
		since = s.Version
	}
	add(10, 15_000)
	add(20, 5_000, 100)
	snapshot()
	end := store.Position{Seq: 20, Index: 1}
	if _, err := a.Remove(ctx, of, []store.Position{end}, func(d Damage) { t.Error(d.Err) }, func() {}); err != nil {
		t.Fatal(err)
	}
	m[of] = m[of][:2]
	add(30, 10_000) // the first block is full with the last event before the end
	snapshot()
	m.check(t, a)
	dir := w.a.Dir()
	testenv.Check(t, w.Close(30))
	copied := openArchive(t, dir)
	defer closeArchive(t, copied)
	m.check(t, copied)
}

// Remove removes exactly the events that it is told to, wherever they are, and reads no block without one of them.
func TestDrillRemovedPositionsAreGone(t *testing.T) {
	testenv.Drill(t)
	r, of, m := testenv.Random(t), merchant(1), model{}
	a := openArchive(t, t.TempDir())
	defer closeArchive(t, a)
	seq := uint64(1)
	for range 10 {
		var run Run
		for range 200 {
			seq += 1 + r.Uint64N(3)
			body := make([]byte, r.IntN(6000))
			for i := range body {
				body[i] = byte(r.Uint32())
			}
			run.Append(of, store.Position{Seq: seq}, body)
			m[of] = append(m[of], modelEvent{store.Position{Seq: seq}, string(body)})
		}
		testenv.Check(t, a.Add(&run, seq, func() {}))
	}
	for round := range testenv.Rounds(20) {
		events := m[of]
		goes := map[store.Position]bool{}
		for i := 0; round == 0 && i < len(events); i += 5 { // in more blocks than are read at once
			goes[events[i].Position] = true
		}
		for range 1 + r.IntN(4) { // neighbours, which often fill blocks, and single ones
			first := r.IntN(len(events))
			for _, e := range events[first:min(len(events), first+1<<r.IntN(6))] {
				goes[e.Position] = true
			}
		}
		at := slices.SortedFunc(maps.Keys(goes), store.Position.Compare)
		want := len(at)
		for range r.IntN(3) { // no events
			p := store.Position{Seq: r.Uint64N(seq), Index: 1}
			i, _ := slices.BinarySearchFunc(at, p, store.Position.Compare)
			at = slices.Insert(at, i, p)
		}
		removed, err := a.Remove(ctx, of, at, func(d Damage) { t.Error(d.Err) }, func() {})
		if err != nil || int(removed) != want {
			t.Fatalf("%d events were removed, %v; want %d", removed, err, want)
		}
		m[of] = slices.DeleteFunc(events, func(e modelEvent) bool { return goes[e.Position] })
		m.check(t, a)
	}
	m.checkCopy(t, a)

	sound := []store.Position{m[of][0].Position, m[of][len(m[of])-1].Position}
	damagedBlock := blockKey{of, before(m[of][len(m[of])/2].Position), 9}
	testenv.Check(t, a.commit(codec.Entry{Key: damagedBlock.append(nil), Value: []byte("no block")}))
	if removed, err := a.Remove(ctx, of, sound, func(d Damage) { t.Error("a block is read that has none of them") }, func() {}); err != nil || removed != 2 {
		t.Error(removed, err)
	}
}

// removeBetween calls RewriteSome until it is done.
func removeBetween(a *Archive, m store.MerchantKey, from, to store.Position, keep func(Event) bool, damaged func(Damage)) (removed uint64, err error) {
	for more := true; more && err == nil; {
		var some uint64
		some, from, more, err = a.RewriteSome(ctx, m, from, to, nil, keep, damaged)
		removed += some
	}
	return removed, err
}

// A removal skips any number of blocks that cannot be read.
func TestRewritePassesDamagedBlocks(t *testing.T) {
	a := openArchive(t, t.TempDir())
	m := merchant(0)
	const blocks = 3 * blocksAtOnce
	var entries []codec.Entry
	for i := range blocks {
		entries = append(entries, codec.Entry{Key: blockKey{m, store.Position{Seq: uint64(i + 1)}, 0}.append(nil), Value: []byte("no block")})
	}
	testenv.Check(t, a.commit(entries...))
	damaged := 0
	if _, err := removeBetween(a, m, store.Position{}, store.Position{Seq: blocks + 1}, func(Event) bool { return true }, func(Damage) {
		if damaged++; damaged > blocks {
			t.Fatal("it does not end")
		}
	}); err != nil || damaged != blocks {
		t.Errorf("%d blocks are damaged, %v; want %d", damaged, err, blocks)
	}
	closeArchive(t, a)
}

// Damage is not taken for the end of a merchant's blocks: those before it stay when more are added and a rebuild follows.
func TestDamageIsNoEndOfAMerchant(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "archive")
	a, m := openArchive(t, dir), merchant(5)
	r := rand.New(rand.NewPCG(1, 2))
	add := func(from, n int) error {
		var run Run
		for i := range n {
			b := make([]byte, 1000)
			for j := range b {
				b[j] = byte(r.Uint32())
			}
			run.Append(m, store.Position{Seq: uint64(from + i)}, b)
		}
		return a.Add(&run, uint64(from+n-1), func() {})
	}
	testenv.Check(t, add(1000, 3000))
	closeArchive(t, a)
	tables, err := filepath.Glob(filepath.Join(dir, "g*", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	b, err := os.ReadFile(tables[0])
	testenv.Check(t, err)
	at := bytes.Index(b, appendMerchantKey(nil, prefixMerchant, m)) - 40_000 // in one of the blocks before
	b[at], b[at+1] = ^b[at], ^b[at+1]
	testenv.Check(t, os.WriteFile(tables[0], b, 0o600))
	a = openArchive(t, dir)
	defer closeArchive(t, a)
	if err := add(10_000, 1500); err == nil {
		t.Fatal("events are added behind damage")
	}
	testenv.Check(t, a.Rebuild(ctx, func(string, error) {}, func() error { return nil }))
	left := 0
	testenv.Check(t, a.Since(ctx, m, store.Position{}, func(e []Event) error { left += len(e); return nil }, func(Damage) {}))
	if left < 2900 {
		t.Errorf("%d of 3000 events are left", left)
	}
}

// Portions of any size have every event of the merchants once, in the order of receipt.
func TestNextMissesNothing(t *testing.T) {
	a, r, m := openArchive(t, t.TempDir()), rand.New(rand.NewPCG(17, 18)), model{}
	defer closeArchive(t, a)
	seq := uint64(1_700_000_000_000_000)
	for range 3 {
		seq = m.add(t, a, r, 200, 3, seq)
	}
	var merchants []store.MerchantKey
	want := 0
	for of, events := range m {
		merchants, want = append(merchants, of), want+len(events)
	}
	for _, of := range [][]store.MerchantKey{merchants, merchants[:1]} {
		if len(of) == 1 {
			want = len(m[of[0]])
		}
		found, at, end := 0, store.Position{}, store.EndOf(a.Boundary())
		for at.Compare(end) < 0 {
			next, err := a.Next(ctx, of, at, end, 7)
			testenv.Check(t, err)
			for _, e := range next.Events {
				if e.Compare(at) <= 0 {
					t.Fatalf("event %v comes after %v", e.Position, at)
				}
				at = e.Position
				found++
			}
			at = next.UpTo
		}
		if found != want {
			t.Errorf("%d events of %d merchants are found, want %d", found, len(of), want)
		}
	}
}

// The full blocks of 1.0.0 are half as large. Add leaves all but the last ones of a merchant as they are.
func TestBlocksOfTheFirstReleaseStay(t *testing.T) {
	a, m := openArchive(t, t.TempDir()), model{}
	defer closeArchive(t, a)
	of, body, seq := merchant(1), strings.Repeat("x", 1000), uint64(1000)
	old := map[store.Position]bool{}
	c, err := a.begin()
	testenv.Check(t, err)
	testenv.Check(t, a.db.View(func(txn *badgerdb.Txn) error {
		var b block
		for range 50 {
			b = block{merchant: of, first: next(b.last)}
			for len(b.content) < blockBytes/2 {
				seq++
				b.add(store.Position{Seq: seq}, []byte(body))
				m[of] = append(m[of], modelEvent{store.Position{Seq: seq}, body})
			}
			old[b.last] = true
			if err := c.add(txn, &b, 0); err != nil {
				return err
			}
		}
		return nil
	}))
	c.boundary = seq
	testenv.Check(t, errors.Join(c.commit(), a.flush()))
	for range 3 {
		var run Run
		for range 20 {
			seq++
			run.Append(of, store.Position{Seq: seq}, []byte(body))
			m[of] = append(m[of], modelEvent{store.Position{Seq: seq}, body})
		}
		testenv.Check(t, a.Add(&run, seq, func() {}))
	}
	m.check(t, a)
	left := 0
	testenv.Check(t, a.db.View(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, of)})
		for it.Rewind(); it.Valid(); it.Next() {
			k, err := parseBlockKey(it.Entry().Key)
			if err != nil {
				return err
			}
			if old[k.last] {
				left++
			}
		}
		return it.Err()
	}))
	if left < 46 {
		t.Errorf("%d of 50 blocks are left", left)
	}
}

// Every open directory has a run, and few have much to move.
func TestARunTakesTheMemoryThatItNeeds(t *testing.T) {
	var run Run
	run.Reset(16 << 20)
	body := make([]byte, 1000)
	run.Append(merchant(1), store.Position{}, body)
	if got := cap(run.bodies); got > smallRun {
		t.Errorf("one event takes %d bytes", got)
	}
	for run.Bytes() < 2*smallRun {
		run.Append(merchant(1), store.Position{}, body)
	}
	large := cap(run.bodies)
	for run.Bytes() < 16<<20 {
		run.Append(merchant(1), store.Position{}, body)
	}
	if cap(run.bodies) != large {
		t.Errorf("a run of %d bytes has moved to %d bytes", large, cap(run.bodies))
	}
}
