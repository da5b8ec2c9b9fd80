package log

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"mtagd/store/local/faultfs"
	"mtagd/store/testenv"
)

func TestMain(m *testing.M) {
	faultfs.Main()
	os.Exit(m.Run())
}

const testFile = 64 << 10 // bytes of a file: small, so that a few records need several

func open(t testing.TB, dir string) *Log {
	t.Helper()
	l, err := openWith(dir, slog.New(slog.DiscardHandler), testFile)
	testenv.Check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func reopen(t testing.TB, l *Log) *Log {
	t.Helper()
	testenv.Check(t, l.Close())
	return open(t, l.dir)
}

// payload is the n-th one of a test. It has no zero bytes.
func payload(n, size int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), 0))
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(1 + r.IntN(255))
	}
	return b
}

type record struct {
	at      Position
	payload []byte
}

func add(t testing.TB, l *Log, payload []byte) record {
	t.Helper()
	at, err := l.Append(payload)
	testenv.Check(t, err)
	return record{at, payload}
}

// replay returns all records from a position on, and the damage between them.
func replay(t testing.TB, l *Log, from Position) (all []record, damage []*Damage) {
	t.Helper()
	for {
		err := l.Replay(from, func(at Position, p []byte) error {
			all = append(all, record{at, bytes.Clone(p)})
			return nil
		})
		var d *Damage
		if !errors.As(err, &d) {
			testenv.Check(t, err)
			return all, damage
		}
		if d.Next < from || d.Next == from && len(damage) > 0 && damage[len(damage)-1].Next == from {
			t.Fatalf("after %v, replay would go on at %d again", d, d.Next)
		}
		damage = append(damage, d)
		from = d.Next
	}
}

// mustHold fails unless the log has exactly these records, sound.
func mustHold(t testing.TB, l *Log, from Position, want []record) {
	t.Helper()
	got, damage := replay(t, l, from)
	if len(damage) > 0 {
		t.Fatalf("damage: %v", damage)
	}
	testenv.Check(t, same(got, want))
	var b []byte
	for _, r := range want {
		var err error
		if b, err = l.Read(r.at, b); err != nil || !bytes.Equal(b, r.payload) {
			t.Fatalf("Read(%d) gives %d bytes, %v", r.at, len(b), err)
		}
	}
}

func same(got, want []record) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d records, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i].at != want[i].at || !bytes.Equal(got[i].payload, want[i].payload) {
			return fmt.Errorf("record %d is another one: at %d, want %d", i, got[i].at, want[i].at)
		}
	}
	return nil
}

func files(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	testenv.Check(t, err)
	return names
}

func TestRecordsComeBackInOrder(t *testing.T) {
	l := open(t, t.TempDir())
	var want []record
	for i := range 60 {
		want = append(want, add(t, l, payload(i, []int{1, 100, 4055, 4056, 20000}[i%5])))
		if i%25 == 24 {
			l = reopen(t, l)
		}
	}
	if n := len(files(t, l.dir)); n < 5 {
		t.Errorf("there are %d files: the test is for several", n)
	}
	mustHold(t, l, 0, want)
	mustHold(t, l, want[30].at, want[30:])
	mustHold(t, l, l.End(), nil)
	l = reopen(t, l)
	mustHold(t, l, 0, want)
}

func TestPartsOfARecordFollowEachOther(t *testing.T) {
	l := open(t, t.TempDir())
	at, err := l.Append([]byte("one, two"))
	testenv.Check(t, err)
	mustHold(t, l, 0, []record{{at, []byte("one, two")}})
}

func TestDrillALargeRecordGetsALargeFile(t *testing.T) {
	testenv.Drill(t)
	l := open(t, t.TempDir())
	want := []record{add(t, l, payload(1, 10)), add(t, l, payload(2, MaxRecord)), add(t, l, payload(3, 10))}
	mustHold(t, l, 0, want)
	mustHold(t, reopen(t, l), 0, want)
}

// Open waits until the zeros of a file are on disk, so that one is small.
func TestOpenBeginsASmallFile(t *testing.T) {
	dir := t.TempDir()
	var want []record
	for range 2 {
		l, err := Open(dir, slog.New(slog.DiscardHandler))
		testenv.Check(t, err)
		last := func() int64 { files := *l.files.Load(); return files[len(files)-1].size }
		if got := last(); got != firstSize {
			t.Errorf("Open begins a file of %d bytes, want %d", got, firstSize)
		}
		for i := range 4 {
			want = append(want, add(t, l, payload(i, 200<<10)))
		}
		if got := last(); got != DefaultFileSize {
			t.Errorf("the next file has %d bytes, want %d", got, DefaultFileSize)
		}
		mustHold(t, l, 0, want)
		testenv.Check(t, l.Close())
	}
}

func TestWrongSizesAreRefused(t *testing.T) {
	l := open(t, t.TempDir())
	for _, n := range []int{0, MaxRecord + 1} {
		if _, err := l.Append(make([]byte, n)); err == nil {
			t.Errorf("a payload of %d bytes is accepted", n)
		}
	}
	if l.End() != 0 {
		t.Errorf("the log ends at %d", l.End())
	}
}

func TestTrim(t *testing.T) {
	l := open(t, t.TempDir())
	var want []record
	for i := range 50 {
		want = append(want, add(t, l, payload(i, 5000)))
	}
	before := len(files(t, l.dir))
	testenv.Check(t, l.Trim(want[25].at))
	if after := len(files(t, l.dir)); after >= before || l.First() > want[25].at || l.First() == 0 {
		t.Errorf("%d files before, %d after; the log begins at %d", before, after, l.First())
	}
	if _, err := l.Read(0, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("Read of a trimmed record gives %v", err)
	}
	mustHold(t, l, want[25].at, want[25:])
	l = reopen(t, l)
	mustHold(t, l, want[25].at, want[25:])
	var d *Damage
	if err := l.Replay(0, nil); !errors.As(err, &d) || d.Next != l.First() {
		t.Errorf("Replay of what was trimmed gives %v", err)
	}
}

func TestATrimmedLogHasNoByteOfItsRecords(t *testing.T) {
	l := open(t, t.TempDir())
	for i := range 30 {
		add(t, l, append(payload(i, 5000), "secret"...))
	}
	end := l.End()
	testenv.Check(t, errors.Join(l.Roll(), l.Trim(end)))
	for _, name := range files(t, l.dir) {
		if b, err := os.ReadFile(name); err != nil || bytes.Contains(b, []byte("secret")) {
			t.Errorf("%s still has a record, or %v", name, err)
		}
	}
	l = reopen(t, l)
	if l.First() != end || l.End() != end {
		t.Errorf("the log goes from %d to %d, want %d: a position would be used twice", l.First(), l.End(), end)
	}
	want := []record{add(t, l, payload(99, 10))}
	mustHold(t, reopen(t, l), end, want)
}

func TestMissingFilesAreDamage(t *testing.T) {
	var want []record
	build := func(t *testing.T) *Log {
		l := open(t, t.TempDir())
		want = nil
		for i := range 50 {
			want = append(want, add(t, l, payload(i, 5000)))
		}
		l = reopen(t, l)
		testenv.Check(t, l.Close())
		return l
	}
	for i := range 3 {
		l := build(t)
		name := (*l.files.Load())[i].Name()
		testenv.Check(t, os.Remove(name))
		got, damage := replay(t, open(t, l.dir), 0)
		if len(damage) != 1 || len(got) == 0 || len(got) == len(want) {
			t.Errorf("without file %d: %d of %d records, damage: %v", i, len(got), len(want), damage)
		}
		if i == 1 && int(damage[0].Lost) != len(want)-len(got) {
			t.Errorf("%d records are said to be lost, want %d", damage[0].Lost, len(want)-len(got))
		}
	}
	l := build(t)
	for _, name := range files(t, l.dir) {
		testenv.Check(t, os.Remove(name))
	}
	if err := open(t, l.dir).Replay(want[49].at, nil); !errors.Is(err, ErrDamaged) {
		t.Errorf("Replay behind the end gives %v", err)
	}
}

// The file that was written to is missing. Records that fill their files to the end, or nearly, make no difference.
func TestAMissingLastFileIsDamage(t *testing.T) {
	for _, size := range []int{10, 5000, 2 * testFile} {
		l := open(t, t.TempDir())
		var want []record
		for i := 0; len(*l.files.Load()) < 3; i++ {
			want = append(want, add(t, l, payload(i, size)))
		}
		testenv.Check(t, errors.Join(l.Close(), os.Remove(filepath.Join(l.dir, newest(l)))))
		readOnly, err := OpenReadOnly(l.dir)
		testenv.Check(t, err)
		_, seen := replay(t, readOnly, 0)
		testenv.Check(t, readOnly.Close())
		got, damage := replay(t, reopen(t, open(t, l.dir)), 0)
		testenv.Check(t, same(got, want[:len(want)-1]))
		if len(seen) != 1 || len(damage) != 1 {
			t.Errorf("records of %d bytes: damage %v before the start, %v after it", size, seen, damage)
		}
	}
}

func TestAFileOfAnotherLogIsDamage(t *testing.T) {
	one, two := open(t, t.TempDir()), open(t, t.TempDir())
	add(t, one, payload(1, 10))
	for i := range 40 {
		add(t, two, payload(i, 5000))
	}
	testenv.Check(t, errors.Join(one.Close(), two.Close()))
	other := (*two.files.Load())[1].Name()
	testenv.Check(t, os.Rename(other, filepath.Join(one.dir, filepath.Base(other))))
	if _, err := Open(one.dir, slog.Default()); !errors.Is(err, ErrDamaged) {
		t.Errorf("Open gives %v", err)
	}
}

func TestReadersRunBesideAppendsAndTrims(t *testing.T) {
	l := open(t, t.TempDir())
	first := add(t, l, payload(0, 3000))
	latest := make(chan record, 1)
	latest <- first
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			var b []byte
			for {
				select {
				case <-done:
					return
				case r := <-latest:
					latest <- r
					var err error
					if b, err = l.Read(r.at, b); err == nil && !bytes.Equal(b, r.payload) {
						t.Error("another payload")
					} else if err != nil && !errors.Is(err, ErrNotFound) {
						t.Error(err)
					}
				}
			}
		})
	}
	for i := range 200 {
		r := add(t, l, payload(i, 3000))
		<-latest
		latest <- r
		if i%20 == 0 {
			if err := l.Trim(r.at); err != nil {
				t.Error(err)
			}
		}
	}
	close(done)
	readers.Wait()
}

func TestAppendDoesNotAllocate(t *testing.T) {
	l, err := Open(t.TempDir(), slog.Default())
	testenv.Check(t, err)
	defer l.Close()
	group := payload(1, 2400)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := l.Append(group); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
