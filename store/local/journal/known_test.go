package journal

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"mtagd/store"
	"mtagd/store/local/faultfs"
	"mtagd/store/testenv"
)

// A link that the committer knows to be on disk is written again after it has changed.
func TestAKnownLinkChanges(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	shop := store.NewMerchantID()
	for range 3 {
		for _, muid := range []store.MUID{"u-1", "u-2"} {
			for range 3 { // it is written, becomes known, is known
				if err := j.Record(ctx, []store.Mark{linking(shop, muid)}); err != nil {
					t.Fatal(err)
				}
			}
			if found, err := j.Resolve(ctx, shop, ann()); err != nil || found != muid {
				t.Fatalf("the email leads to %q instead of %s, %v", found, muid, err)
			}
		}
	}
}

// A start drops each link that the log has. That makes no table, which takes 4 MB.
func TestNoTableOfKnownLinksBeforeTheFirst(t *testing.T) {
	var known knownLinks
	known.drop([]byte("key"))
	if known.buckets != nil {
		t.Error("there is a table before a link is known")
	}
	known.add([]byte("key"), "u-1", true)
	known.drop([]byte("key"))
	if known.has([]byte("key"), "u-1", true) {
		t.Error("a link is known after it was dropped")
	}
}

// A link of a commit that has failed is not known, although other events of the commit have repeated it.
func TestALinkOfAFailedCommitIsNotKnown(t *testing.T) {
	disk := faultfs.New(t)
	j := open(t, filepath.Join(disk.Dir, "events"))
	defer closeJournal(t, j)
	shop := store.NewMerchantID()
	disk.Fail(faultfs.Rule{Op: faultfs.Sync, Files: "*.log", Errno: syscall.EIO})
	if err := j.Record(ctx, []store.Mark{linking(shop, "u-1"), linking(shop, "u-1")}); err == nil {
		t.Fatal("events are recorded without a sync")
	}
	disk.Fail()
	for j.Record(ctx, []store.Mark{linking(shop, "u-1")}) != nil { // until there is another file
	}
	if found, err := j.Resolve(ctx, shop, ann()); err != nil || found != "u-1" {
		t.Fatalf("the email leads to %q, %v", found, err)
	}
}

// A link that is known is written again after it was removed, as an erasure does, also when it was removed before a flush.
func TestAKnownLinkIsRemoved(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	shop := store.NewMerchantID()
	m, err := store.NewMerchantKey(shop)
	testenv.Check(t, err)
	for round := range 4 {
		for range 3 {
			testenv.Check(t, j.Record(ctx, []store.Mark{linking(shop, "u-1")}))
		}
		if round%2 == 1 {
			testenv.Check(t, j.flush())
		}
		if found, err := j.Resolve(ctx, shop, ann()); err != nil || found != "u-1" {
			t.Fatalf("after %d removals the email leads to %q, %v", round, found, err)
		}
		id := ann()
		testenv.Check(t, j.Remove(m, []store.Link{{Identifier: id.Keys()[0], MUID: "u-1"}}, nil))
		if found, err := j.Resolve(ctx, shop, ann()); err != nil || found != "" {
			t.Fatalf("after it was removed, the email leads to %q, %v", found, err)
		}
		if counts, err := j.Verify(ctx, Check{Events: func(uint64, []Event) {}, Read: func(uint64, uint64) {}}); err != nil || counts.Links != 0 {
			t.Fatalf("after it was removed, a verification counts %d links, %v", counts.Links, err)
		}
	}
}

// A bucket forgets only the links of the key that is dropped, and the oldest one when it is full.
func TestDrillBucketsOfKnownLinks(t *testing.T) {
	testenv.Drill(t)
	var k knownLinks
	keys := [][]byte{}
	for i := 0; len(keys) < knownInBucket+1; i++ { // of the same bucket
		key := fmt.Appendf(nil, "key %d", i)
		if bucket, _ := k.place(key); bucket == &k.buckets[0] {
			keys = append(keys, key)
			k.add(key, "u-1", false)
		}
	}
	k.drop(keys[3])
	for i, key := range keys {
		if want := i != 0 && i != 3; k.has(key, "u-1", false) != want || k.has(key, "u-1", true) || k.has(key, "u-2", false) {
			t.Errorf("the link %d is known: %v, want %v; or another one is", i, !want, want)
		}
	}
}

func ann() (id store.Identity) {
	id.Add(store.Email, "ann@example.com")
	return id
}

func linking(shop store.MerchantID, muid store.MUID) store.Mark {
	id := ann()
	id.MUID = muid
	return store.Mark{Merchant: shop, Name: "View", Identity: id, Raw: []byte("{}")}
}
