package journal

import (
	"path/filepath"
	"syscall"
	"testing"

	"mtagd/store"
	"mtagd/store/local/faultfs"
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

func ann() (id store.Identity) {
	id.Add(store.Email, "ann@example.com")
	return id
}

func linking(shop store.MerchantID, muid store.MUID) store.Mark {
	id := ann()
	id.MUID = muid
	return store.Mark{Merchant: shop, Name: "View", Identity: id, Raw: []byte("{}")}
}
