package rank

import (
	"context"
	"errors"
	"slices"

	"mtagd/store"
)

// A removal takes events out of a merchant's stored trees:
//
//  1. If events that it concerns are still in memory, it has them merged first. So what is in memory never loses events.
//  2. One transaction writes the new root record. Long removals write nodes before, in further transactions.
//  3. The sweeper deletes what is in no tree any more.
//
// Listings see the events of either before or after step 2. They never wait. Events are applied all the time, but merges
// wait for step 2. A removal waits for a running merge.
//
// After an error or a kill, either all of the events are removed or none. The caller then asks again: to remove what is
// gone already does nothing. A removal that has returned nil is on disk, and a replay does not bring the events back, as it
// leaves out what the stored trees cover. Only when the whole index is rebuilt, the caller of Replay must leave them out.
//
// What a removal leaves in index.db: the names of the merchant's counted series stay in its root record (not after
// Drop), and bbolt overwrites freed pages only when it uses them again. They have names, times, positions and sizes of
// events, ids of merchants and tags, and nothing else. The file does not get smaller: new events use the freed pages.

// Remove removes the events of a merchant that have these keys, and returns how many it has removed, like RemoveBefore. The
// events must have been applied (Wait); it ignores keys that no event has. The cost depends on the number of keys. If it
// removes overflow events, it also reads all runs whose range includes one of the keys. Call it between Start and Close.
func (x *Index) Remove(ctx context.Context, m store.MerchantKey, keys []Key) (removed uint64, err error) {
	keys = slices.Clone(keys)
	slices.SortFunc(keys, Key.compare)
	keys = slices.Compact(keys)
	entries, last := make([]entry, len(keys)), uint64(0)
	for i, k := range keys {
		entries[i].Key, last = k, max(last, k.Seq)
	}
	concerns := func(_ *child, covered uint64) bool { return covered < last }
	removed, _, err = x.remove(ctx, m, concerns, func(t *treeEdit) error {
		removed, err := t.removeAll(&t.root, entries)
		switch {
		case err != nil:
			return err
		case removed.counts == nil:
			return errNoChange
		case !t.hasOverflow(removed):
			return nil
		}
		return t.removeNamed(func(r *run) bool {
			i, _ := slices.BinarySearchFunc(keys, r.from, Key.compare)
			return i < len(keys) && keys[i].compare(r.to) <= 0
		}, func(k Key) bool {
			_, gone := slices.BinarySearchFunc(keys, k, Key.compare)
			return gone
		})
	})
	return removed, err
}

// RemoveBefore removes a merchant's events before a time (µs since 1970) from the chunks up to upTo, which it returns. All that
// was applied before the call is among them, and perhaps some that is applied meanwhile. It costs a few nodes, however many
// events there are; the sweeper then deletes the nodes below. Of overflow events, it reads the runs in which the time is. Call
// it between Start and Close.
func (x *Index) RemoveBefore(ctx context.Context, m store.MerchantKey, time int64) (removed, upTo uint64, err error) {
	concerns := func(root *child, _ uint64) bool { return root.first.Time < time }
	return x.remove(ctx, m, concerns, func(t *treeEdit) error {
		if t.root.isEmpty() {
			return errNoChange
		}
		height, err := t.heightOf(&t.root)
		if err != nil {
			return err
		}
		removed, err := t.root.removeBefore(entry{Key: Key{Time: time}}, height, t.load, t.free)
		if err != nil {
			return err
		}
		t.root.cutTop()
		switch {
		case removed.counts == nil:
			return errNoChange
		case !t.hasOverflow(removed):
			return nil
		}
		for i := range t.runs {
			if r := &t.runs[i]; r.to.Time < time {
				if err := t.drop(&r.root); err != nil {
					return err
				}
			}
		}
		return t.removeNamed(func(r *run) bool { return r.from.Time < time }, func(k Key) bool { return k.Time < time })
	})
}

// Drop removes all events of a merchant that were applied before the call, and the names of their series. It costs a few
// nodes; the sweeper deletes the rest. A root record without events and names stays, so that a replay does not bring the
// events back. Call it between Start and Close.
func (x *Index) Drop(ctx context.Context, m store.MerchantKey) error {
	_, _, err := x.remove(ctx, m, func(*child, uint64) bool { return true }, func(t *treeEdit) error {
		t.series = []string{""} // a tree in memory has its own list of series, which the next merge stores
		err := t.drop(&t.root)
		for i := range t.runs {
			err = errors.Join(err, t.drop(&t.runs[i].root))
		}
		t.runs = nil
		return err
	})
	return err
}

// remove has change remove events from a stored tree, if there is one; it may return errNoChange. If events in memory
// concern it, all are merged first: concerns gets the root of their tree, and the last chunk that is stored. The change
// was made to the events of all chunks up to upTo.
func (x *Index) remove(
	ctx context.Context, m store.MerchantKey, concerns func(root *child, covered uint64) bool, change func(t *treeEdit) error,
) (removed, upTo uint64, err error) {
	x.removing.Lock()
	defer x.removing.Unlock()
	if err := x.Failure(); err != nil {
		return 0, 0, err
	}
	if x.inMemory(m, concerns) {
		if err := x.Merge(ctx); err != nil {
			return 0, 0, err
		}
	}
	return x.edit(ctx, m, change)
}

// inMemory reports whether events of a merchant in memory concern a removal.
func (x *Index) inMemory(m store.MerchantKey, concerns func(root *child, covered uint64) bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.recent[m]
	return r != nil && slices.ContainsFunc([]*child{&r.active.root, &r.frozen.root}, func(root *child) bool {
		return !root.isEmpty() && concerns(root, r.covered)
	})
}

// edit has change edit a merchant's stored tree, if it has one. It returns how many events it has removed, and upTo as remove.
func (x *Index) edit(ctx context.Context, m store.MerchantKey, change func(t *treeEdit) error) (removed, upTo uint64, err error) {
	x.storing.Lock()
	defer x.storing.Unlock()
	w := merger{x: x, ctx: ctx, budget: x.txBudget, commit: x.commit}
	if upTo, err = x.StoredUpTo(); err != nil {
		return 0, 0, err
	}
	err = w.run(func() error {
		if w.tx.Bucket(bucketRoots).Get(m[:]) == nil {
			return errNoChange
		}
		t, err := w.editTree(m)
		if err != nil {
			return err
		}
		upTo = max(upTo, t.covered) // a merge that was cut off has stored this tree already
		before := t.root.counts.of(nil)
		if err := change(t); err != nil {
			return err
		}
		removed = before - t.root.counts.of(nil)
		return t.store()
	})
	if err == errNoChange {
		return 0, upTo, nil
	}
	if err != nil {
		return 0, 0, err
	}
	x.events.Add(-removed)
	x.sweepSoon()
	return removed, upTo, nil
}

// errNoChange rolls back a transaction that has nothing to commit.
var errNoChange = errors.New("nothing to change")

// hasOverflow reports whether some events were of overflow series.
func (t *treeEdit) hasOverflow(events tally) bool {
	return slices.ContainsFunc(events.counts, func(c seriesCount) bool { return isOverflow(t.series[c.series]) })
}

// removalBatch is how many events are removed before the budget of the transaction is checked: each may load a leaf.
const removalBatch = 1000

// removeAll removes sorted events from a tree, if it has them.
func (t *treeEdit) removeAll(root *child, events []entry) (removed tally, err error) {
	for batch := range slices.Chunk(events, removalBatch) {
		if root.isEmpty() {
			break
		}
		some, err := root.removeKeys(batch, t.load)
		if err != nil {
			return tally{}, err
		}
		removed.add(some)
		root.cutTop()
		if err := t.spend(len(batch)); err != nil {
			return tally{}, err
		}
	}
	return removed, nil
}

// drop removes all events from a tree that was not changed yet.
func (t *treeEdit) drop(root *child) error {
	if root.isEmpty() {
		return nil
	}
	height, err := t.heightOf(root)
	if err == nil {
		t.free(root.id, height)
		*root = child{}
	}
	return err
}
