package log

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mtagd/store/testenv"
)

// image is a directory as a crash leaves it: the log as it was before an append, and the bytes that the append wrote.
type image struct {
	files  map[string][]byte
	sound  []record // acknowledged before
	last   record   // the one that was being written
	name   string   // its file
	offset int64
	size   int64
}

// makeImage makes a log of two files, and appends one more record of some size: to the second file, or as the first of a
// third.
func makeImage(t testing.TB, size int, toNewFile bool) image {
	t.Helper()
	l := open(t, t.TempDir())
	i := image{}
	for n := range 14 {
		i.sound = append(i.sound, add(t, l, payload(n, 100+4000*(n%3))))
	}
	for toNewFile {
		f := (*l.files.Load())[len(*l.files.Load())-1]
		if l.offset+recordSize(size) >= f.size {
			break
		}
		i.sound = append(i.sound, add(t, l, payload(99, 10)))
	}
	full := newest(l)
	before := snapshot(t, l.dir)[full]
	i.last = add(t, l, payload(100, size))
	f := (*l.files.Load())[len(*l.files.Load())-1]
	i.name, i.offset, i.size = filepath.Base(f.Name()), f.offset(i.last.at), recordSize(size)
	if toNewFile {
		if i.offset != block {
			t.Fatal("the record is not in a new file")
		}
		i.offset, i.size = 0, i.size+block
	}
	testenv.Check(t, l.Close())
	i.files = snapshot(t, l.dir)
	if toNewFile {
		i.files[full] = before // it is cut off when the append has succeeded
	}
	return i
}

func snapshot(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, name := range files(t, dir) {
		b, err := os.ReadFile(name)
		testenv.Check(t, err)
		all[filepath.Base(name)] = b
	}
	return all
}

// on opens the log with the last record's file replaced.
func (i image) on(t testing.TB, dir string, name string, content []byte) (*Log, error) {
	t.Helper()
	for _, old := range files(t, dir) {
		testenv.Check(t, os.Remove(old))
	}
	for n, b := range i.files {
		if n == name {
			b = content
		}
		testenv.Check(t, os.WriteFile(filepath.Join(dir, n), b, 0o600))
	}
	return openWith(dir, slog.New(slog.DiscardHandler), testFile)
}

// written returns the file of the last record, with only those bytes of the append that keep tells.
func (i image) written(keep func(n int64) bool) []byte {
	b := slices.Clone(i.files[i.name])
	for n := range i.size {
		if !keep(n) {
			b[i.offset+n] = 0
		}
	}
	return b
}

// mustBeTorn opens the log, and fails unless it has the sound records and perhaps the last one, no damage, and works.
func (i image) mustBeTorn(t testing.TB, dir string, content []byte) {
	t.Helper()
	l, err := i.on(t, dir, i.name, content)
	testenv.Check(t, err)
	want := slices.Clone(i.sound)
	if l.End() > i.last.at {
		want = append(want, i.last)
	}
	mustHold(t, l, 0, want)
	want = append(want, add(t, l, payload(101, 50)))
	testenv.Check(t, l.Close())
	l = open(t, dir)
	mustHold(t, l, 0, want)
	testenv.Check(t, l.Close())
}

func eachImage(t *testing.T, sizes []int, do func(t *testing.T, i image)) {
	for _, size := range sizes {
		for _, toNewFile := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d bytes, in a new file %v", size, toNewFile), func(t *testing.T) {
				do(t, makeImage(t, size, toNewFile))
			})
		}
	}
}

func TestDrillAKillAtAnyByteOfAnAppendLosesAtMostThatRecord(t *testing.T) {
	testenv.Drill(t)
	eachImage(t, []int{20, 300, 5000}, func(t *testing.T, i image) {
		dir := t.TempDir()
		marks := []int64{0, headerSize, block, block + headSize, i.size - block, int64(len(i.last.payload)) + headSize, int64(len(i.last.payload)) + headSize + block}
		for n := int64(0); n <= i.size; n++ {
			near := slices.ContainsFunc(marks, func(m int64) bool { return n > m-8 && n < m+8 })
			if near || n%229 == 0 {
				i.mustBeTorn(t, dir, i.written(func(at int64) bool { return at < n }))
			}
		}
	})
}

func TestDrillAPowerCutThatKeepsAnySectorsOfAnAppendLosesAtMostThatRecord(t *testing.T) {
	testenv.Drill(t)
	eachImage(t, []int{900, 3000, 9000}, func(t *testing.T, i image) {
		dir := t.TempDir()
		r := testenv.Random(t)
		for n := range testenv.Rounds(20) {
			keep := make([]bool, i.size/sector)
			for s := range keep {
				keep[s] = r.IntN(8) < 1+n%7
			}
			i.mustBeTorn(t, dir, i.written(func(at int64) bool { return keep[at/sector] }))
		}
	})
}

// One wrong bit is corrected, or changes nothing.
func TestDrillEachFlippedBitIsHarmless(t *testing.T) {
	testenv.Drill(t)
	if harmless, reported, refused := flipEach(t, 1); reported+refused > 0 || harmless == 0 {
		t.Errorf("%d flips were harmless, %d reported, %d refused", harmless, reported, refused)
	}
}

// Two wrong bits must not change what the log says without being reported: each record is there as it was written, or lies in
// damage that Replay reports, or Open refuses the file.
func TestDrillEachTwoFlippedBitsAreHarmlessOrReported(t *testing.T) {
	testenv.Drill(t)
	if harmless, reported, refused := flipEach(t, 5); reported == 0 || harmless == 0 {
		t.Errorf("%d flips were harmless, %d reported, %d refused", harmless, reported, refused)
	}
}

// flipEach tries 400 of some thousands of bits.
func flipEach(t *testing.T, mask byte) (harmless, reported, refused int) {
	i := makeImage(t, 300, false)
	all := append(slices.Clone(i.sound), i.last)
	dir := t.TempDir()
	type place struct {
		name    string
		at, bit int
	}
	var places []place
	for name, content := range i.files {
		for at := range content {
			// Bits of all bytes that mean something; of payloads and of free space, of some.
			in := at % block
			if near := in < 64 || in > 330 && in < 350; !near && at%331 > 0 || isZero(content[at-in:at-in+block]) && at%631 > 0 {
				continue
			}
			for bit := range 8 {
				if bit != at%8 && (in >= 64 || at/block%8 > 0) {
					continue
				}
				places = append(places, place{name, at, bit})
			}
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(cmp.Compare(a.name, b.name), a.at-b.at, a.bit-b.bit) })
	testenv.Random(t).Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	for _, p := range places[:min(len(places), testenv.Rounds(400))] {
		name, at, bit := p.name, p.at, p.bit
		flipped := slices.Clone(i.files[name])
		flipped[at] ^= bits.RotateLeft8(mask, bit)
		l, err := i.on(t, dir, name, flipped)
		if errors.Is(err, ErrDamaged) {
			refused++
			continue
		}
		testenv.Check(t, err)
		got, damage := replay(t, l, 0)
		switch {
		case same(got, all) == nil:
			harmless++
		case len(damage) == 0:
			t.Fatalf("bit %d of byte %d of %s: %d records instead of %d, no damage", bit, at, name, len(got), len(all))
		case !inOrder(got, all):
			t.Fatalf("bit %d of byte %d of %s: other records", bit, at, name)
		default:
			reported++
		}
		if l.End() < i.last.at {
			t.Fatalf("bit %d of byte %d of %s: the log ends at %d", bit, at, name, l.End())
		}
		add(t, l, payload(7, 7))
		testenv.Check(t, l.Close())
	}
	return harmless, reported, refused
}

// inOrder tells whether some records are among others, in their order.
func inOrder(some, all []record) bool {
	for _, r := range some {
		i := slices.IndexFunc(all, func(a record) bool { return a.at == r.at })
		if i < 0 || !bytes.Equal(all[i].payload, r.payload) {
			return false
		}
		all = all[i+1:]
	}
	return true
}

// Zeros over a page, or over a whole record, are damage: the last record excepted, of which a sector may be missing.
func TestABlockOfZerosIsReported(t *testing.T) {
	i := makeImage(t, 300, false)
	all := append(slices.Clone(i.sound), i.last)
	dir := t.TempDir()
	for name, content := range i.files {
		for at := 0; at < len(content); at += block {
			if isZero(content[at:at+block]) || name == i.name && int64(at) == i.offset {
				continue
			}
			zeroed := slices.Clone(content)
			clear(zeroed[at : at+block])
			l, err := i.on(t, dir, name, zeroed)
			testenv.Check(t, err)
			got, damage := replay(t, l, 0)
			if at > 0 && (len(damage) != 1 || !inOrder(got, all) || len(got) != len(all)-1 || damage[0].Lost != 1) {
				t.Errorf("zeros at %d of %s: %d of %d records, %v", at, name, len(got), len(all), damage)
			}
			if at == 0 && same(got, all) != nil {
				t.Errorf("zeros over the header of %s: %d of %d records, %v", name, len(got), len(all), damage)
			}
			testenv.Check(t, l.Close())
		}
	}
}

// A file without its header and first record has the others.
func TestAHeaderIsRestoredFromAnyRecord(t *testing.T) {
	i := makeImage(t, 300, false)
	all := append(slices.Clone(i.sound), i.last)
	dir := t.TempDir()
	for name, content := range i.files {
		if isZero(content) {
			continue
		}
		junk := append(bytes.Repeat([]byte{0xaa}, 2*block), content[2*block:]...)
		l, err := i.on(t, dir, name, junk)
		testenv.Check(t, err)
		got, damage := replay(t, l, 0)
		if len(got) != len(all)-1 || !inOrder(got, all) || len(damage) == 0 {
			t.Errorf("%s: %d of %d records, %v", name, len(got), len(all), damage)
		}
		testenv.Check(t, l.Close())
	}
}

// Whatever is wrong with the header of a file that was never used, nothing is lost.
func TestWrongBytesInAnUnusedFile(t *testing.T) {
	i := makeImage(t, 300, false)
	all := append(slices.Clone(i.sound), i.last)
	dir := t.TempDir()
	i.files[fileName(99, i.id(t))] = make([]byte, testFile)
	for _, wrong := range [][]byte{{1}, {0xa5}, bytes.Repeat([]byte{0xff}, headerSize)} {
		content := make([]byte, testFile)
		copy(content[headerSize-len(wrong):], wrong)
		l, err := i.on(t, dir, fileName(99, i.id(t)), content)
		testenv.Check(t, err)
		mustHold(t, l, 0, all)
		testenv.Check(t, l.Close())
	}
}

// A file without any sound header or record costs its own records, also when it is the first one or the last. The loss is
// reported by each start, and no position is used twice.
func TestAFileInWhichNothingIsSound(t *testing.T) {
	i := makeImage(t, 300, false)
	all := append(slices.Clone(i.sound), i.last)
	dir := t.TempDir()
	for name, content := range i.files {
		if isZero(content) {
			continue
		}
		junk := bytes.Repeat([]byte{0xaa}, len(bytes.TrimRight(content, "\x00")))
		l, err := i.on(t, dir, name, append(junk, content[len(junk):]...))
		testenv.Check(t, err)
		if l.End() < i.last.at {
			t.Errorf("without %s the log ends at %d", name, l.End())
		}
		added := add(t, l, payload(101, 50))
		for range 2 {
			got, damage := replay(t, l, 0)
			if len(got) < 2 || !inOrder(got, append(slices.Clone(all), added)) || len(damage) != 1 || filepath.Base(damage[0].File) != name {
				t.Errorf("without %s: %d of %d records, %v", name, len(got), len(all), damage)
			}
			l = reopen(t, l)
		}
		testenv.Check(t, l.Close())
	}
}

// Of a log with one file nothing is left. The caller knows whether it went further (package journal).
func TestTheOnlyFileHasNothingSound(t *testing.T) {
	l := open(t, t.TempDir())
	add(t, l, payload(0, 10))
	testenv.Check(t, errors.Join(l.Close(), os.WriteFile(filepath.Join(l.dir, newest(l)), bytes.Repeat([]byte{0xaa}, 3*block), 0o600)))
	l = open(t, l.dir)
	added := add(t, l, payload(1, 10))
	for range 2 {
		got, damage := replay(t, l, 0)
		if same(got, []record{added}) != nil || len(damage) != 1 || added.at < block {
			t.Errorf("%d records, damage %v", len(got), damage)
		}
		l = reopen(t, l)
	}
}

// id returns the id of the log.
func (i image) id(t testing.TB) (id uint64) {
	t.Helper()
	var count uint64
	_, err := fmt.Sscanf(i.name, "%x-%x"+suffix, &count, &id)
	testenv.Check(t, err)
	return id
}

func TestDamageStaysUntilItIsTrimmed(t *testing.T) {
	i := makeImage(t, 300, false)
	dir := t.TempDir()
	content := slices.Clone(i.files[i.name])
	content[i.offset+100] ^= 5 // of the last record: nothing behind it tells that it was acknowledged
	l, err := i.on(t, dir, i.name, content)
	testenv.Check(t, err)
	after := []record{add(t, l, payload(1, 10)), add(t, l, payload(2, 10))}
	for range 3 {
		got, damage := replay(t, l, 0)
		testenv.Check(t, same(got, append(slices.Clone(i.sound), after...)))
		if len(damage) != 1 || damage[0].Position != i.last.at || damage[0].Next != after[0].at || damage[0].Lost != 1 ||
			damage[0].Offset != i.offset || filepath.Base(damage[0].File) != i.name {
			t.Fatalf("damage: %+v", damage)
		}
		testenv.Check(t, l.Close())
		l = open(t, dir)
	}
	testenv.Check(t, l.Trim(after[1].at))
	mustHold(t, l, after[1].at, after[1:])
}

func TestAFileThatWasCutOffIsReported(t *testing.T) {
	i := makeImage(t, 300, false)
	all := append(slices.Clone(i.sound), i.last)
	dir := t.TempDir()
	for name, content := range i.files {
		used := len(bytes.TrimRight(content, "\x00"))
		for _, size := range []int{used / 2, used / 2 &^ (block - 1), block, 2 * block} {
			if used <= 2*block {
				continue // not in use
			}
			l, err := i.on(t, dir, name, content[:size])
			testenv.Check(t, err)
			if got, damage := replay(t, l, 0); len(damage) != 1 || !inOrder(got, all) {
				t.Errorf("%s has %d bytes: %d of %d records, damage: %v", name, size, len(got), len(all), damage)
			}
			testenv.Check(t, l.Close())
		}
	}
}

func TestARecordOfAnotherPlaceIsReported(t *testing.T) {
	i := makeImage(t, 300, false)
	dir := t.TempDir()
	for name, content := range i.files {
		if isZero(content) {
			continue
		}
		copied := slices.Clone(content)
		copy(copied[block:2*block], copied[4*block:]) // sound in itself: both are records of one block
		l, err := i.on(t, dir, name, copied)
		testenv.Check(t, err)
		if _, damage := replay(t, l, 0); len(damage) != 1 {
			t.Errorf("damage: %v", damage)
		}
		testenv.Check(t, l.Close())
	}
}

// An older copy of a file has other records at the same positions: the chain tells.
func TestAnExchangedFileIsReported(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	add(t, l, payload(0, 10))
	l = reopen(t, l)
	testenv.Check(t, l.Close())
	before := snapshot(t, dir)
	var versions [2]map[string][]byte
	for v := range versions {
		i := image{files: before}
		l, err := i.on(t, dir, "", nil)
		testenv.Check(t, err)
		for n := range 40 {
			add(t, l, payload(v*1000+n, 5000))
		}
		testenv.Check(t, l.Close())
		versions[v] = snapshot(t, dir)
	}
	for name, content := range versions[0] {
		if _, both := versions[1][name]; !both || isZero(content) {
			continue
		}
		i := image{files: versions[1]}
		l, err := i.on(t, dir, name, content)
		testenv.Check(t, err)
		if _, damage := replay(t, l, 0); len(damage) == 0 && !bytes.Equal(content, versions[1][name]) {
			t.Errorf("the exchanged file %s is not noticed", name)
		}
		testenv.Check(t, l.Close())
	}
}

// Of two versions of a record, each sound at its place, only one continues what is before it.
func TestAnExchangedRecordIsReported(t *testing.T) {
	i := makeImage(t, 300, false)
	dir := t.TempDir()
	content := slices.Clone(i.files[i.name])
	before, after := i.sound[len(i.sound)-2], i.sound[len(i.sound)-1] // in the file of the last one
	at := i.offset - int64(i.last.at-before.at)
	h, valid := decodeHead(content[at:], idOf(t, i.name), before.at)
	if !valid {
		t.Fatal("the record is not where it should be")
	}
	content[at+headSize]++
	h.payload = crc32.Checksum(content[at+headSize:at+headSize+int64(h.length)], castagnoli)
	h.encode(content[at:], idOf(t, i.name))
	l, err := i.on(t, dir, i.name, content)
	testenv.Check(t, err)
	defer l.Close()
	_, damage := replay(t, l, 0)
	if len(damage) != 1 || !errors.Is(damage[0], errChain) || damage[0].Next != after.at || damage[0].Lost != 0 {
		t.Errorf("damage: %v", damage)
	}
}

func idOf(t *testing.T, name string) uint64 {
	t.Helper()
	var count, id uint64
	if _, err := fmt.Sscanf(name, "%x-%x", &count, &id); err != nil {
		t.Fatal(err)
	}
	return id
}

// Whatever is written over a file: what Replay gives without reporting damage is what was appended.
func FuzzOpen(f *testing.F) {
	i := makeImage(f, 300, false)
	whole := i.files[i.name]
	f.Add(uint16(0), []byte(magic))
	f.Add(uint16(block), whole[block:block+headSize])
	f.Add(uint16(i.offset), whole[block:2*block])
	all := append(slices.Clone(i.sound), i.last)
	f.Fuzz(func(t *testing.T, at uint16, edit []byte) {
		content := slices.Clone(whole)
		copy(content[at:], edit)
		l, err := i.on(t, t.TempDir(), i.name, content)
		if errors.Is(err, ErrDamaged) {
			return
		}
		testenv.Check(t, err)
		defer l.Close()
		got, damage := replay(t, l, 0)
		if !inOrder(got, all) {
			t.Errorf("other records; damage: %v", damage)
		}
		add(t, l, payload(1, 10))
	})
}
