package journal

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mtagd/store/local/codec"
)

// setAsideFiles returns the names of the files that were set aside beside dir.
func setAsideFiles(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "set-aside", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	return names
}

// change rewrites a file of a directory.
func change(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestADamagedManifestLosesNothing(t *testing.T) {
	killed, o := killedJournal(t)
	for name, damage := range map[string]func([]byte) []byte{
		"empty":        func(b []byte) []byte { return nil },
		"only header":  func(b []byte) []byte { return b[:8] },
		"cut in half":  func(b []byte) []byte { return b[:len(b)/2] },
		"last byte":    func(b []byte) []byte { return b[:len(b)-1] },
		"zeros":        func(b []byte) []byte { return make([]byte, len(b)) },
		"other header": func(b []byte) []byte { b[3]++; return b },
		"random middle": func(b []byte) []byte {
			for i := len(b) / 3; i < len(b)/2; i++ {
				b[i] = byte(rand.Uint32())
			}
			return b
		},
		"missing": nil,
	} {
		dir := smallCopy(t, killed)
		path := filepath.Join(dir, "MANIFEST")
		if damage == nil {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		} else {
			change(t, path, damage)
		}
		if wrong, err := o.check(dir); wrong != "" || err != nil {
			t.Errorf("%s: %s, %v", name, wrong, err)
		}
	}
}

// A record of MANIFEST is in one piece, so a file that was cut short may look complete.
func TestAManifestWithoutItsLastRecordsLosesNothing(t *testing.T) {
	killed, o := killedJournal(t)
	b, err := os.ReadFile(filepath.Join(killed, "MANIFEST"))
	if err != nil {
		t.Fatal(err)
	}
	for rest := b[8:]; len(rest) > 0; {
		dir := smallCopy(t, killed)
		change(t, filepath.Join(dir, "MANIFEST"), func(b []byte) []byte { return b[:len(b)-len(rest)] })
		if wrong, err := o.check(dir); wrong != "" || err != nil {
			t.Errorf("with %d bytes of %d: %s, %v", len(b)-len(rest), len(b), wrong, err)
		}
		var ok bool
		if _, rest, ok = cutManifestRecord(rest); !ok {
			t.Fatal("MANIFEST ends within a record")
		}
	}
}

// What is lost is refused with the file's name, and nothing is changed.
func TestAMissingOrDamagedTableIsRefused(t *testing.T) {
	killed, o := killedJournal(t)
	for _, damage := range []func(path string) error{
		os.Remove,
		func(path string) error { return os.Truncate(path, 100) },
	} {
		dir := smallCopy(t, killed)
		tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
		if err != nil || len(tables) == 0 {
			t.Fatalf("%d tables: %v", len(tables), err)
		}
		if err := damage(tables[0]); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err = o.check(dir)
			if !errors.Is(err, codec.ErrCorrupt) || !strings.Contains(err.Error(), tables[0]) {
				t.Errorf("the start gives %v; want an error that names %s", err, tables[0])
			}
		}
	}
}

// Damage in the middle of a memtable's log costs only what is damaged. A copy of the log is kept.
func TestRecordsBehindDamageAreKept(t *testing.T) {
	killed, o := killedJournal(t)
	dir := smallCopy(t, killed)
	logs, err := filepath.Glob(filepath.Join(dir, "*.mem"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no logs: %v", err)
	}
	var before []byte
	change(t, logs[0], func(b []byte) []byte {
		for i := range 30 {
			b[len(b)/3+i] ^= 0x55
		}
		before = bytes.Clone(b)
		return b
	})
	j, err := Open(dir, Options{Log: quiet, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	var events int
	if err := j.Since(0, func(chunk []codec.Event, _ uint64) error { events += len(chunk); return nil }); err != nil {
		t.Fatal(err)
	}
	if events < len(o.events)-5 { // a chunk has five
		t.Errorf("%d events of %d are left", events, len(o.events))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	copies, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "set-aside", "*", filepath.Base(logs[0])))
	if err != nil || len(copies) != 1 {
		t.Fatalf("%d copies of the log, set aside are %q", len(copies), setAsideFiles(t, dir))
	}
	if kept, err := os.ReadFile(copies[0]); err != nil || !bytes.Equal(kept, before) {
		t.Errorf("the copy is not what the log was, %v", err)
	}
}

// The end of the last transaction is missing, as after a power cut: some sectors of it were written, in any order.
func TestATornEndIsNotDamage(t *testing.T) {
	b := killedMemLog(t)
	l := readMemLog(b)
	last := l.lastTransaction()
	size := 0
	for _, r := range last {
		size += len(r.bytes)
	}
	want, _ := l.survivors(b)
	want = want[:len(want)-size]
	start, end := logHeader+len(want), logHeader+len(want)+size
	for _, cut := range []int{start, start + 1, start + size/2, end - 1} {
		torn := append(bytes.Clone(b[:cut]), make([]byte, 1000)...)
		if got, lost := readMemLog(torn).survivors(torn); !bytes.Equal(got, want) || lost != 0 {
			t.Errorf("cut at %d of %d: %d bytes, %d lost; want %d", cut-start, size, len(got), lost, len(want))
		}
	}
	torn := bytes.Clone(b)
	sector := (start/sectorSize + 1) * sectorSize
	if sector+sectorSize >= end {
		t.Skip("the last transaction is too small")
	}
	clear(torn[sector:][:sectorSize])
	if got, lost := readMemLog(torn).survivors(torn); !bytes.Equal(got, want) || lost != 0 {
		t.Errorf("without a sector: %d bytes, %d lost; want %d", len(got), lost, len(want))
	}
}
