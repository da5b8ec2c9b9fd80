package rank

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Trees with several levels of inner nodes, stored and in memory, have the counts that counting gives: whether there are
// many bounds in a node or one, and wherever it is.
func TestSummariesOfHighTrees(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var j journal
	x, m, events := j.open(t, t.TempDir()), newMerchant(t), model{}
	defer closeIndex(t, x)
	for seq := range uint64(120) {
		var batch []codec.Event
		for i := range 1000 {
			tag := []store.TagID{"cs_a", "ss_b"}[rng.IntN(2)]
			batch = append(batch, codec.Event{
				Merchant: m, Position: codec.Position{Seq: seq + 1, Index: uint16(i)}, Time: rng.Int64N(1_000_000), Size: 100,
				Series: codec.AppendSeries(nil, tag, fmt.Sprintf("Name%d", rng.IntN(10*rng.IntN(10)+1)), rng.IntN(5) == 0),
			})
		}
		if err := x.Replay(batch, seq+1); err != nil {
			t.Fatal(err)
		}
		events.add(batch)
		if seq == 90 {
			if err := x.merge(x.freeze()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 60 {
		checkCounts(t, rng, x, m, events[m], "high trees")
	}
}
