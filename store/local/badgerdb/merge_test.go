package badgerdb

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mtagd/store/local/codec"
)

// sized are parts of these sizes, in MB.
func sized(sizes ...int64) (parts []*part) {
	for _, size := range sizes {
		h := new(part)
		h.tables.Store(&tables{all: []*tableFile{{size: size << 20}}})
		parts = append(parts, h)
	}
	return parts
}

func TestWhichPartsAreMerged(t *testing.T) {
	for _, c := range []struct {
		sizes []int64
		from  int
	}{
		{[]int64{10}, 0},
		{[]int64{20, 10}, 0},                                  // all are small
		{[]int64{2000, 170}, 1},                               // the last one alone
		{[]int64{2000, 170, 170}, 2},                          // and again
		{[]int64{2000, 170, 170, 170, 170}, 1},                // three more of its size
		{[]int64{9000, 700, 700, 700, 170, 170, 170, 170}, 1}, // they become as large as three others
		{[]int64{9000, 700, 700, 700, 170, 170}, 5},
		{[]int64{9000, 700, 20, 170}, 2}, // a small one comes along
	} {
		if from := toMerge(sized(c.sizes...)); from != c.from {
			t.Errorf("of parts of %v MB those from %d on are merged, want %d", c.sizes, from, c.from)
		}
	}
}

// However large a database becomes, an entry is written again a few times, and there are few parts.
func TestMergesWriteAnEntryAFewTimes(t *testing.T) {
	parts, written, most := sized(0), int64(0), 0
	for range 1000 { // 170 GB
		parts[len(parts)-1] = sized(170)[0]
		from := toMerge(parts)
		merged := size(parts[from:])
		written += merged
		parts = append(slices.Clone(parts[:from]), sized(merged>>20, 0)...)
		most = max(most, len(parts))
	}
	if times := float64(written) / float64(size(parts)); times > 7 || most > 20 {
		t.Errorf("each byte is written %.1f times, in up to %d parts", times, most)
	}
}

// A kill at any step of a merge changes nothing of what is read, and leaves no part that does not count.
func TestAKillWhileMerging(t *testing.T) {
	dir := t.TempDir()
	m := newModel(t, dir)
	for range 3 {
		for range 8 {
			m.change(400_000)
		}
		check(t, m.mergeNewest())
	}
	m.change(100_000)
	check(t, m.Flush())
	steps := 0
	err := m.compact(ctx, func() {
		if steps++; steps%499 != 0 {
			return
		}
		d := open(t, copied(t, dir))
		if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
			t.Fatalf("step %d: %d keys instead of %d: %v", steps, len(found), len(m.live), err)
		}
		if left, _ := filepath.Glob(filepath.Join(d.dir, "[gs]*")); len(left) != 4 {
			t.Errorf("step %d: after a start there is %q", steps, left)
		}
		check(t, errors.Join(d.Close(), os.RemoveAll(d.dir)))
	}, func([]*part) int { return 1 })
	check(t, err)
	m.check()
	if len(m.parts) != 3 {
		t.Errorf("%d parts", len(m.parts))
	}
	check(t, m.Close())
}

// A sealed part that is missing, or has lost its tables, is damage, and nothing is removed because of it. What the list says of the parts
// is right when the list itself is damaged.
func TestPartsThatAreMissing(t *testing.T) {
	dir := t.TempDir()
	m := newModel(t, dir)
	for range 2 {
		m.change(300_000)
		check(t, m.mergeNewest())
	}
	m.change(1000)
	check(t, m.Close())

	for _, harm := range []func(work string) error{
		func(work string) error { return os.RemoveAll(filepath.Join(work, "s2")) },
		func(work string) error {
			return errors.Join(os.RemoveAll(filepath.Join(work, "s3")), os.Mkdir(filepath.Join(work, "s3"), 0o700))
		},
	} {
		work := copied(t, dir)
		check(t, harm(work))
		if _, err := Open(work, quiet); !errors.Is(err, codec.ErrCorrupt) {
			t.Errorf("Open: %v", err)
		}
		if left, _ := filepath.Glob(filepath.Join(work, "[gs]*", "*.sst")); len(left) < 2 {
			t.Errorf("only %q is left", left)
		}
	}

	work := copied(t, dir)
	list := filepath.Join(work, "g3", listName)
	b, err := os.ReadFile(list)
	check(t, err)
	check(t, os.WriteFile(list, bytes.ToUpper(b), 0o600))
	d := open(t, work)
	for range 2 {
		if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
			t.Errorf("%d keys instead of %d: %v", len(found), len(m.live), err)
		}
		check(t, d.Close())
		d = open(t, work)
	}
	check(t, d.Close())
}
