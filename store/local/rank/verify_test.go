package rank

import (
	"errors"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// A node whose seal is right, but which does not fit its parent or its order, is found by verify and by each scan.
func TestANodeThatDoesNotFit(t *testing.T) {
	for problem, spoil := range map[string]func(n *node){
		"other events than its parent says": func(n *node) { n.entries = n.entries[1:] },
		"wrong order":                       func(n *node) { n.entries[1], n.entries[2] = n.entries[2], n.entries[1] },
	} {
		var j journal
		x := j.open(t, t.TempDir())
		x.Start()
		m := newMerchant(t)
		j.push(t, x, m, 3*leafEntries)
		if err := x.Merge(t.Context()); err != nil {
			t.Fatal(err)
		}
		verify := func() (wrong []string) {
			if err := x.Verify(t.Context(), Check{
				Wrong: func(_ store.MerchantKey, err error) { wrong = append(wrong, err.Error()) },
				Event: func(store.MerchantKey, Key, string) {}, Tags: func(store.MerchantKey, []string) {}, Read: func(uint64, uint64) {},
			}); err != nil {
				t.Fatal(err)
			}
			return wrong
		}
		if wrong := verify(); wrong != nil {
			t.Fatal(wrong)
		}
		if err := x.db.Update(func(tx *bolt.Tx) error {
			tree, err := loadTree(tx, m)
			if err != nil {
				return err
			}
			nodes := tx.Bucket(bucketNodes)
			root, err := loadNode(nodes, m, tree.root.id, &nodeArena{})
			if err != nil {
				return err
			}
			leaf, err := loadNode(nodes, m, root.children[1].id, &nodeArena{})
			if err != nil {
				return err
			}
			spoil(leaf)
			return storeNode(nodes, m, root.children[1].id, leaf)
		}); err != nil {
			t.Fatal(err)
		}
		if wrong := verify(); !slices.ContainsFunc(wrong, func(s string) bool { return strings.Contains(s, problem) }) {
			t.Errorf("%s: verify finds %q", problem, wrong)
		}
		if err := x.ScanEvents(t.Context(), m, func(Key, string) {}); err == nil {
			t.Errorf("%s: a scan finds nothing", problem)
		}
		closeIndex(t, x)
	}
}

// Runs that do not have the overflow events of the tree of times are found by verify, and not written.
func TestNamesThatDoNotFit(t *testing.T) {
	j := journal{names: 100, maxSeries: 3}
	x, m := j.open(t, t.TempDir()), newMerchant(t)
	defer closeIndex(t, x)
	if err := x.Replay(j.commit(m, 500, func(i int) int64 { return int64(i) }), 1); err != nil {
		t.Fatal(err)
	}
	if err := x.merge(x.freeze()); err != nil {
		t.Fatal(err)
	}
	verify := func() (wrong []string) {
		t.Helper()
		if err := x.Verify(t.Context(), Check{
			Wrong: func(_ store.MerchantKey, err error) { wrong = append(wrong, err.Error()) },
			Event: func(store.MerchantKey, Key, string) {}, Tags: func(store.MerchantKey, []string) {}, Read: func(uint64, uint64) {},
		}); err != nil {
			t.Fatal(err)
		}
		return wrong
	}
	if wrong := verify(); wrong != nil {
		t.Fatal(wrong)
	}
	if err := x.db.Update(func(tx *bolt.Tx) error {
		stored, err := loadTree(tx, m)
		if err != nil {
			return err
		}
		stored.runs = nil
		return storeTree(tx, m, stored)
	}); err != nil {
		t.Fatal(err)
	}
	if wrong := verify(); len(wrong) != 1 || !strings.Contains(wrong[0], "numbers of overflow events") {
		t.Errorf("verify finds %q", wrong)
	}
	if _, _, err := x.edit(t.Context(), m, func(*treeEdit) error { return nil }); !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("a change gives %v", err)
	}
}
