package archive

import (
	"fmt"

	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// The blocks of a merchant follow each other without a gap: each begins where the one before ends, and the last one ends where the
// merchant's counts say. A removal keeps that. So a reader sees that it has read all of them, whatever Badger returns.

var errGap = fmt.Errorf("%w: a block is missing", codec.ErrCorrupt)

// chain finds gaps between the blocks of a merchant that a reader passes.
type chain struct {
	a    *Archive
	m    codec.MerchantKey
	end  codec.Position // all up to here was read
	upTo codec.Position // later gaps do not matter
}

func (a *Archive) newChain(m codec.MerchantKey, after, upTo codec.Position) chain {
	if last := codec.EndOf(a.Boundary()); upTo.Compare(last) > 0 {
		upTo = last
	}
	return chain{a, m, after, upTo}
}

// next notes the next block, and returns the gap before it.
func (c *chain) next(first, last codec.Position) (gap Damage, found bool) {
	from := c.end
	c.end = last
	if first.Seq <= c.a.gaps.Load() || next(from).Compare(first) >= 0 || from.Compare(c.upTo) >= 0 {
		return Damage{}, false
	}
	return Damage{c.m, from, before(first), errGap}, true
}

// atEnd returns the gap behind the last block.
func (c *chain) atEnd(txn *badgerdb.Txn) (gap Damage, found bool, err error) {
	u, err := loadUsage(txn, c.m)
	if err != nil || u.Last.Compare(c.end) <= 0 {
		return Damage{}, false, err
	}
	gap, found = c.next(next(u.Last), u.Last)
	return gap, found, nil
}
