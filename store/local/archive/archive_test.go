package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mtagd/store/local/codec"
)

var (
	ctx   = context.Background()
	quiet = slog.New(slog.DiscardHandler)
)

func openArchive(t *testing.T, dir string) *Archive {
	t.Helper()
	a, err := Open(dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func closeArchive(t *testing.T, a *Archive) {
	t.Helper()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}

// model is what the archive must have.
type model map[codec.MerchantKey][]modelEvent

type modelEvent struct {
	codec.Position
	body string
}

func merchant(n int) (m codec.MerchantKey) {
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
		at := codec.Position{Seq: seq, Index: uint16(i % 7)}
		body := fmt.Sprintf(`{"event":"Purchase","user":%d,"pad":"%s"}`, r.IntN(1e6), bytes.Repeat([]byte("x"), r.IntN(400)))
		run.Append(of, at, []byte(body))
		m[of] = append(m[of], modelEvent{at, body})
	}
	if err := a.Add(&run, seq, func() {}); err != nil {
		t.Fatal(err)
	}
	return seq
}

// check compares the archive with the model.
func (m model) check(t *testing.T, a *Archive) {
	t.Helper()
	merchants, err := a.Merchants()
	if err != nil || len(merchants) != len(m) {
		t.Fatalf("%d merchants, %v; want %d", len(merchants), err, len(m))
	}
	for of, want := range m {
		var got []modelEvent
		if err := a.Since(ctx, of, codec.Position{}, func(events []Event) error {
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
		u, err := a.Usage(of)
		if err != nil || u.Events != uint64(len(want)) {
			t.Errorf("usage of merchant %x is %+v, %v; want %d events", of, u, err, len(want))
		}
	}
	if _, err := a.Verify(ctx, Check{
		Wrong: func(err error) { t.Error(err) }, Damaged: func(d Damage) { t.Error(d.Err) },
		Events: func(codec.MerchantKey, []Event) {}, Read: func(_, _ uint64) {},
	}); err != nil {
		t.Error(err)
	}
}

// Events of many merchants in many runs are read as they were added, also after a restart.
func TestEventsAreReadAsTheyWereAdded(t *testing.T) {
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
		var wanted []codec.Position
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
func TestSmallMerchantsGetFewBlocks(t *testing.T) {
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
	blocks, err := a.Verify(ctx, Check{Wrong: func(err error) { t.Error(err) }, Events: func(codec.MerchantKey, []Event) {}, Read: func(_, _ uint64) {}})
	if full := uint64(added/blockBytes + len(m)); err != nil || blocks > full+5*uint64(len(m)) {
		t.Errorf("%d blocks of %d merchants, where %d would do: %v", blocks, len(m), full, err)
	}
	m.check(t, a)
	if written := a.metrics.stored.Load(); written > int64(added) {
		t.Errorf("%d bytes were written for %d bytes of events", written, added)
	}
}

// A kill before the directory has a run leaves nothing of it. The run can be added again.
func TestAKillLeavesNothingOfARun(t *testing.T) {
	dir, r, m := t.TempDir(), rand.New(rand.NewPCG(5, 6)), model{}
	a := openArchive(t, dir)
	seq := m.add(t, a, r, 500, 10, 1_700_000_000_000_000)
	closeArchive(t, a)
	first := filepath.Join(dir, "000001.pack")
	before, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	for path, b := range map[string][]byte{first: append(bytes.Clone(before), before...), filepath.Join(dir, "000002.pack"): before} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a = openArchive(t, dir)
	defer closeArchive(t, a)
	if after, err := os.ReadFile(first); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the file has %d bytes, %v; want %d", len(after), err, len(before))
	}
	if files, err := a.files.list(); err != nil || !slices.Equal(files, []uint32{1}) {
		t.Errorf("files %v, %v; want only the first", files, err)
	}
	m.add(t, a, r, 500, 10, seq)
	m.check(t, a)
}

// A wrong byte costs the events of its block. Neighbouring blocks are read, and later runs are added.
func TestADamagedBlockCostsItsOwnEvents(t *testing.T) {
	dir, r, m := t.TempDir(), rand.New(rand.NewPCG(7, 8)), model{}
	a := openArchive(t, dir)
	seq := m.add(t, a, r, 2000, 1, 1_700_000_000_000_000)
	closeArchive(t, a)
	path := filepath.Join(dir, "000001.pack")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	a = openArchive(t, dir)
	defer closeArchive(t, a)
	of := merchant(0)
	var all []codec.Position
	for _, e := range m[of] {
		all = append(all, e.Position)
	}
	read := 0
	err = a.Read(ctx, of, all, func(i int, e Event) {
		if read++; string(e.Body) != m[of][i].body {
			t.Errorf("event %d is wrong", i)
		}
	})
	damaged, ok := errors.AsType[Damaged](err)
	lost := 0
	for _, at := range all {
		if ok && damaged[0].Has(at) {
			lost++
		}
	}
	if !ok || len(damaged) != 1 || read+lost != len(all) || lost == 0 || lost > 200 {
		t.Fatalf("%d of %d events are read, %d are damaged, %v", read, len(all), lost, err)
	}
	m.add(t, a, r, 300, 1, seq)
}

// A removal takes just the events that are not wanted. After a purge no file has anything of them. The log says the same as
// the directory.
func TestRemovedEventsAreGone(t *testing.T) {
	dir, r, m := t.TempDir(), rand.New(rand.NewPCG(9, 10)), model{}
	a := openArchive(t, dir)
	seq := uint64(1_700_000_000_000_000)
	for range 10 {
		seq = m.add(t, a, r, 400, 8, seq)
		var run Run
		seq++
		for i := range 8 {
			at := codec.Position{Seq: seq}
			body := fmt.Sprintf("secret-%d", r.Uint64())
			run.Append(merchant(i), at, []byte(body))
			m[merchant(i)] = append(m[merchant(i)], modelEvent{at, body})
		}
		if err := a.Add(&run, seq, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	of, all := merchant(0), codec.Position{Seq: seq + 1}
	isSecret := func(body []byte) bool { return bytes.HasPrefix(body, []byte("secret")) }
	removed, err := a.Rewrite(ctx, of, codec.Position{}, all, func(e Event) bool { return !isSecret(e.Body) }, func(d Damage) { t.Error(d.Err) }, func() {})
	if err != nil || removed.Events != 10 {
		t.Fatalf("%d events were removed, %v; want 10", removed.Events, err)
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
	if removed, err := a.DropMerchant(ctx, merchant(1)); err != nil || removed.Events != uint64(len(m[merchant(1)])) {
		t.Fatalf("%d events were removed, %v", removed.Events, err)
	}
	delete(m, merchant(1))
	m.check(t, a)
	m.checkLog(t, a)

	s, err := a.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Purge(func() {}); !IsBusy(err) {
		t.Errorf("a purge while the log is being copied: %v", err)
	}
	s.Close()
	if err := a.Purge(func() {}); err != nil {
		t.Fatal(err)
	}
	m.check(t, a)
	m.checkLog(t, a)
	if all, dead := a.Sizes(); dead != 0 {
		t.Errorf("%d of %d bytes are dead after a purge", dead, all)
	}
	closeArchive(t, a)
	files := newPackFiles(dir)
	ids, err := files.list()
	if err != nil {
		t.Fatal(err)
	}
	coder, err := newCoder()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids { // blocks are compressed, so all are unpacked, those too that nothing refers to
		b, err := os.ReadFile(files.path(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := eachStored(io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b))), 0, func(_ int64, stored []byte) error {
			b, err := coder.unpack(nil, stored)
			if err != nil {
				return err
			}
			return b.each(func(e Event) bool {
				if secrets[string(e.Body)] && (b.merchant == merchant(1) || isSecret(e.Body) && b.merchant == of) {
					t.Errorf("%s has a removed event", files.path(id))
				}
				return true
			})
		}, func(_, n int64) { t.Errorf("%d bytes of %s are no block", n, files.path(id)) }); err != nil {
			t.Fatal(err)
		}
	}
	a = openArchive(t, dir)
	defer closeArchive(t, a)
	m.check(t, a)
}

// checkLog makes an archive of the log, and compares it with the model.
func (m model) checkLog(t *testing.T, a *Archive) {
	t.Helper()
	s, err := a.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dir := t.TempDir()
	w, err := Create(dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Log(ctx, 0, func(_ LogPosition, stored []byte) error { return w.Put(stored) }, func(err error) { t.Error(err) }); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(s.Boundary); err != nil {
		t.Fatal(err)
	}
	copied := openArchive(t, dir)
	defer closeArchive(t, copied)
	m.check(t, copied)
}
