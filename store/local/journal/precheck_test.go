package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
		for start := range 3 {
			if start == 1 { // a kill leaves such a table, which is no sign of a damaged MANIFEST
				if err := os.WriteFile(filepath.Join(dir, "000099.sst"), make([]byte, 5000), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err = o.check(dir)
			if !errors.Is(err, codec.ErrCorrupt) || !strings.Contains(err.Error(), tables[0]) {
				t.Errorf("the start gives %v; want an error that names %s", err, tables[0])
			}
		}
	}
}

// Damage in the middle of a memtable's log costs only what is damaged. A copy of the log is kept. The zeros
// at its end take no space.
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
		before = append(b, make([]byte, 1<<20)...)
		return before
	})
	j, err := Open(dir, Options{Log: quiet, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	var events int
	if err := j.Since(0, func(chunk []codec.Event, _ uint64) error { events += len(chunk); return nil }, func(DamagedChunk) {}); err != nil {
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
	if n := allocated(t, copies[0]); n >= 1<<20 {
		t.Errorf("the copy takes %d bytes; its end, which is zeros, should take none", n)
	}
}

// appendTxn appends a transaction of ten records of about 200 bytes.
func appendTxn(b []byte, commit uint64) []byte {
	for i := range 10 {
		start := len(b)
		value := bytes.Repeat([]byte{byte(i + 1)}, 180)
		b = append(b, metaTxn, 0)
		b = binary.AppendUvarint(b, 3+8)
		b = binary.AppendUvarint(b, uint64(len(value)))
		b = binary.AppendUvarint(b, 0)
		b = append(b, "key"...)
		b = binary.BigEndian.AppendUint64(b, math.MaxUint64-commit)
		b = append(b, value...)
		b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
	}
	return appendFinish(b, commit)
}

// tearLog adds the beginning of a transaction to the newest log of a memtable, as a kill in the middle of a commit leaves it.
func tearLog(t *testing.T, dir string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "*.mem"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no logs: %v", err)
	}
	change(t, logs[len(logs)-1], func(b []byte) []byte {
		records, _ := readMemLog(b).survivors(b)
		torn := appendTxn(nil, 1<<60)
		return slices.Concat(b[:logHeader], records, torn[:len(torn)/2], make([]byte, 1<<20))
	})
}

// A kill tears the end of a log. That is no damage, so nothing is set aside, however often it happens.
func TestATornEndIsNotSetAside(t *testing.T) {
	killed, o := killedJournal(t)
	dir := smallCopy(t, killed)
	tearLog(t, dir)
	if wrong, err := o.check(dir); wrong != "" || err != nil {
		t.Errorf("%s, %v", wrong, err)
	}
	if files := setAsideFiles(t, dir); len(files) > 0 {
		t.Errorf("set aside are %q, want none", files)
	}
}

// A full disk and a torn log do not keep the journal from opening.
func TestATornLogOnAFullDiskOpens(t *testing.T) {
	killed, o := killedJournal(t)
	data := smallDisk(t, "24m")
	dir := filepath.Join(data, "events")
	small := smallCopy(t, killed)
	tearLog(t, small)
	if err := os.CopyFS(dir, os.DirFS(small)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, spareName), 6<<20)
	fillDisk(t, data)
	if wrong, err := o.check(dir); wrong != "" || err != nil {
		t.Errorf("%s, %v", wrong, err)
	}
	if hasSetAside(data) {
		t.Error("a torn end was set aside")
	}
}

// events/ may be a file system of its own, or a link to another one.
func TestFilesAreSetAsideOnAnotherFileSystem(t *testing.T) {
	killed, o := killedJournal(t)
	data := t.TempDir()
	other := elsewhere(t, data)
	dir := filepath.Join(data, "events")
	if err := errors.Join(os.CopyFS(other, os.DirFS(smallCopy(t, killed))), os.Symlink(other, dir)); err != nil {
		t.Fatal(err)
	}
	want := write(t, filepath.Join(dir, "000099.sst"), 5000)
	if wrong, err := o.check(dir); wrong != "" || err != nil {
		t.Fatalf("%s, %v", wrong, err)
	}
	copies, err := filepath.Glob(filepath.Join(data, "set-aside", "*", "000099.sst"))
	if err != nil || len(copies) != 1 {
		t.Fatalf("%d copies: %v", len(copies), err)
	}
	if got, err := os.ReadFile(copies[0]); err != nil || !bytes.Equal(got, want) {
		t.Error("the copy is not what the file was: ", err)
	}
}

// elsewhere makes a directory on another file system than dir is on. Tests may run in memory or on a disk.
func elsewhere(t *testing.T, dir string) string {
	t.Helper()
	for _, parent := range []string{"/dev/shm", "/var/tmp"} {
		var a, b unix.Stat_t
		if err := errors.Join(unix.Stat(dir, &a), unix.Stat(parent, &b)); err != nil || a.Dev == b.Dev {
			continue
		}
		other, err := os.MkdirTemp(parent, "events")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(other) })
		return other
	}
	t.Skip("SKIPPED: there is no second file system")
	return ""
}

// Of the last transaction some sectors are missing, as after a power cut. That is no damage: it was not acknowledged. But what
// is damaged in it otherwise, and in earlier transactions, was acknowledged.
func TestATornEndIsNotDamage(t *testing.T) {
	first := appendTxn(make([]byte, logHeader), 7)
	both := appendTxn(bytes.Clone(first), 8)
	torn := func(b []byte, from, to int) []byte {
		b = bytes.Clone(b)
		clear(b[from:to])
		return append(b, make([]byte, 1000)...)
	}
	sector := (len(first)/sectorSize + 1) * sectorSize
	flipped := append(bytes.Clone(both), 0)
	for i := range 20 {
		flipped[len(first)+300+i] ^= 0x55
	}
	for name, c := range map[string]struct {
		log  []byte
		want int // bytes of records
		lost bool
	}{
		"whole":                    {torn(both, 0, 8), len(both) - logHeader, false},
		"without the first byte":   {torn(both, len(first), len(both)), len(first) - logHeader, false},
		"cut in a record":          {torn(both, len(first)+100, len(both)), len(first) - logHeader, false},
		"without the last byte":    {torn(both, len(both)-5, len(both)), len(first) - logHeader, false},
		"without a sector":         {torn(both, sector, sector+sectorSize), len(first) - logHeader, false},
		"damaged, all was written": {flipped, len(both) - logHeader - 201, true},
		"the first is damaged":     {torn(both, 50, 90), len(both) - logHeader - 201, true},
	} {
		records, lost := readMemLog(c.log).survivors(c.log)
		if len(records) != c.want || lost > 0 != c.lost {
			t.Errorf("%s: %d bytes survive and %d are lost, want %d, %v", name, len(records), lost, c.want, c.lost)
		}
	}
}
