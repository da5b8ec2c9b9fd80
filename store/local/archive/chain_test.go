package archive

import (
	"context"
	"math/rand/v2"
	"testing"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// A block that is missing is found.
func TestDrillAGap(t *testing.T) {
	testenv.Drill(t)
	dir, m := t.TempDir(), merchant(1)
	a := openArchive(t, dir)
	for seq := uint64(1); seq <= 40; seq++ {
		var run Run
		body := make([]byte, 5000)
		for i := range body {
			body[i] = byte(rand.Uint32())
		}
		run.Append(m, store.Position{Seq: seq}, body)
		if err := a.Add(&run, seq, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	blocks, err := a.nextBlocks(m, store.Position{}, newestPosition, 100, func(d Damage) { t.Error(d) })
	if err != nil || len(blocks) < 5 {
		t.Fatal(len(blocks), err)
	}
	if err := a.commit(codec.Entry{Key: blocks[2].append(nil), Deleted: true}); err != nil {
		t.Fatal(err)
	}
	closeArchive(t, a)
	a = openArchive(t, dir)
	var found []Damage
	if err := a.Since(context.Background(), m, store.Position{}, func([]Event) error { return nil }, func(d Damage) { found = append(found, d) }); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].After != blocks[1].last || found[0].Last != blocks[2].last {
		t.Errorf("found %v", found)
	}
	closeArchive(t, a)
}
