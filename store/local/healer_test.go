package local

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/testenv"
)

// damageTableOf changes two bits of the table that has this text, beside the text. A database has the file open.
func damageTableOf(t *testing.T, dir string, text []byte) {
	t.Helper()
	tables, err := filepath.Glob(filepath.Join(dir, "*", "*.sst"))
	testenv.Check(t, err)
	damaged := false
	for _, path := range tables {
		b, err := os.ReadFile(path)
		testenv.Check(t, err)
		at := strings.Index(string(b), string(text))
		if at < 0 {
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		testenv.Check(t, err)
		_, err = f.WriteAt([]byte{b[at+len(text)] ^ 5}, int64(at+len(text)))
		testenv.Check(t, errors.Join(err, f.Close()))
		damaged = true
	}
	if !damaged {
		t.Fatal("no table has the text")
	}
}

// until waits until a condition is true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("waited too long until " + what)
		}
	}
}

// Damage of a table of the archive costs the events in it, and no restart: others are answered all the time, and answers that need the
// damaged part name the merchant until it is rebuilt. Then everything is answered without the lost events, which are noted.
func TestDamageOfTheArchiveNeedsNoRestart(t *testing.T) {
	dir, shops := t.TempDir(), newShops(2)
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	for _, m := range shops { // in many blocks
		for range 20 {
			var marks []store.Mark
			for n := range 100 {
				marks = append(marks, newMark(m, "Name", n, fmt.Appendf(nil, `{"noise":"%x%x%x%x"}`, rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64())))
			}
			testenv.Check(t, e.Record(ctx, marks))
		}
		archiveAll(t, e)
	}
	until(t, "tables are merged", func() bool { return !e.archiver.reclaiming.Load() }) // a merge could replace the damaged table
	key, other := keyOf(t, shops[0]), shops[1]
	want := everything(t, e, other)[0].Total
	release := e.archiver.PauseMoves() // nothing is rebuilt yet
	damageTableOf(t, filepath.Join(dir, "archive"), append([]byte{'B'}, key[:]...))
	_, err := feedOf(e, shops[0])
	if store.KindOf(err) != store.KindUnavailable || !strings.Contains(fmt.Sprint(err), string(shops[0])) {
		t.Errorf("the feed that needs the damaged block: %v", err)
	}
	if _, err := e.PersonalData(ctx, shops[0], store.Identity{MUID: "u-1"}, true, func(*store.PersonalRecord) error { return nil }); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("personal data: %v", err)
	}
	if events, err := feedOf(e, other); err != nil || len(events) != want {
		t.Errorf("the feed of another merchant has %d events, %v", len(events), err)
	}
	if err := e.Impaired(); err == nil || !strings.Contains(err.Error(), ".sst") || e.Ready() != nil {
		t.Errorf("impaired: %v, ready: %v", err, e.Ready())
	}
	release()
	until(t, "the damage is rebuilt", func() bool { return e.Impaired() == nil && lostEvents(e.damage) > 0 })
	for _, m := range shops {
		until(t, "the index is rebuilt", func() bool { // without the lost events
			events, err := feedOf(e, m)
			testenv.Check(t, err)
			return everything(t, e, m)[0].Total == len(events)
		})
	}
	left := everything(t, e, shops[0])[0].Total
	if lost := lostEvents(e.damage); left+lost != 2000 || lost == 0 {
		t.Errorf("%d events are left, and %d noted as lost", left, lost)
	}
	if n := everything(t, e, other)[0].Total; n != want {
		t.Errorf("another merchant has %d events of %d", n, want)
	}
	findNothing(t, e)
	record(t, e, shops[0], 10)
	archiveAll(t, e)
	findNothing(t, e)
	closeEngine(t, e)
	e = open(t, dir)
	findNothing(t, e)
	if total := everything(t, e, shops[0])[0].Total; total != left+10 {
		t.Errorf("after a restart there are %d events, want %d", total, left+10)
	}
}

// One wrong bit costs nothing at all.
func TestAWrongBitInTheArchiveCostsNothing(t *testing.T) {
	dir, m := t.TempDir(), store.NewMerchantID()
	e := open(t, dir)
	defer closeEngine(t, e)
	record(t, e, m, 2000)
	archiveAll(t, e)
	tables, err := filepath.Glob(filepath.Join(dir, "archive", "g*", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	for _, path := range tables {
		b, err := os.ReadFile(path)
		testenv.Check(t, err)
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		testenv.Check(t, err)
		_, err = f.WriteAt([]byte{b[200] ^ 4}, 200)
		testenv.Check(t, errors.Join(err, f.Close()))
	}
	if _, err := feedOf(e, m); err == nil {
		t.Error("the feed does not meet the wrong bit")
	}
	until(t, "it is rebuilt", func() bool {
		events, err := feedOf(e, m)
		return err == nil && len(events) == 2000
	})
	until(t, "everything is verified", func() bool { return e.Impaired() == nil })
	findNothing(t, e)
	if len(e.damage.notes) > 0 {
		t.Errorf("damage was noted: %v", e.damage.notes)
	}
}

// Damage of the links and event_ids needs no restart either. While it is rebuilt, requests that need the damaged part may come again.
func TestDrillDamageOfLinksNeedsNoRestart(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	e := open(t, dir)
	defer closeEngine(t, e)
	m := store.NewMerchantID()
	const links = 4000
	var marks []store.Mark
	for n := range links {
		mark := newMark(m, "Login", n, fmt.Appendf(nil, `{"email":%q}`, emailOf(n)))
		mark.Identity = store.Identity{MUID: muidOf(n), Source: store.BySecret}
		mark.Identity.Add(store.Email, emailOf(n))
		mark.DedupeID = fmt.Sprint(n)
		marks = append(marks, mark)
	}
	for part := range slices.Chunk(marks, 500) {
		testenv.Check(t, e.Record(ctx, part))
	}
	key := keyOf(t, m)
	if _, err := e.journal.LinksOf(ctx, key, store.IdentityKey{}); err != nil { // they are in the database now
		t.Fatal(err)
	}
	damageTableOf(t, filepath.Join(dir, "events", "keys"), append([]byte{'L'}, key[:]...))
	lost, failed := 0, 0
	for n := range links {
		until(t, "a link is answered", func() bool {
			muid, err := e.Resolve(ctx, m, byEmail(n))
			switch {
			case store.KindOf(err) == store.KindUnavailable:
				failed++
				return false
			case err != nil:
				t.Fatal(err)
			case muid == "":
				lost++
			case muid != muidOf(n):
				t.Fatalf("link %d leads to %s", n, muid)
			}
			return true
		})
	}
	if failed == 0 || lost > 0 {
		t.Errorf("%d answers failed; %d of %d links are lost", failed, lost, links)
	}
	until(t, "it is rebuilt", func() bool { return e.Impaired() == nil && !durable.Exists(filepath.Join(dir, relinkFile)) })
	claimed := 0
	for n := range links {
		id := byEmail(n)
		of, err := e.journal.LinksOf(ctx, key, id.Keys()[0])
		if err != nil || len(of) != 1 || of[0].MUID != muidOf(n) {
			t.Fatalf("link %d: %v, %v", n, of, err)
		}
		if of[0].Source == store.ByAnyone { // it was lost
			claimed++
		}
	}
	if claimed == 0 || claimed > links/10 {
		t.Errorf("%d links of %d are claimed now", claimed, links)
	}
	findNothing(t, e)
}

func keyOf(t *testing.T, id store.MerchantID) store.MerchantKey {
	t.Helper()
	m, err := store.NewMerchantKey(id)
	testenv.Check(t, err)
	return m
}

// What an erasure or a deletion has removed may be back after a repair of the archive, until its bytes are purged. So a repair waits for
// those that run, and none that it interrupts is done before it has removed everything again.
func TestARepairOfTheArchiveRepeatsRemovals(t *testing.T) {
	x := newErasing(t)
	defer func() { closeEngine(t, x.engine) }()
	gone := x.newShop()
	x.visit(x.shop, 20, 3)
	x.visit(gone, 20, 3)
	archiveAll(t, x.engine)
	var err error
	begun, replaced := false, make(chan struct{})
	x.remover.busy.Lock()
	x.remover.broken = func(m store.MerchantID) error {
		if m != "" || begun {
			return nil
		}
		begun = true
		go func() {
			err = x.healer.replaceArchive()
			close(replaced)
		}()
		select {
		case <-replaced:
			t.Error("the archive was replaced while an erasure ran")
		case <-time.After(200 * time.Millisecond):
		}
		return errors.New("the files cannot be purged") // for longer than this test takes
	}
	era := x.erase(byMUID(3), false)
	if _, err := x.DeleteMerchant(ctx, gone); err != nil {
		t.Fatal(err)
	}
	x.remover.busy.Unlock()
	<-replaced
	testenv.Check(t, err)
	if era, err = x.Erasure(ctx, era.ID); err != nil || era.State != store.ErasureRemoving {
		t.Errorf("the erasure is %s, %v", era.State, err)
	}
	if all, err := x.Removals(ctx); err != nil || len(all) != 1 || all[0].State != store.ErasureRemoving {
		t.Errorf("deletions: %+v, %v", all, err)
	}
}

// Damage is rebuilt at once, but not while the disk returns errors, unless that lasts: what it does not read would be lost.
func TestAnErrorOfTheDiskPutsOffARebuild(t *testing.T) {
	h := &healer{}
	disk, both := error(syscall.EIO), errors.Join(syscall.EIO, codec.ErrCorrupt)
	for _, c := range []struct {
		since time.Duration // the disk fails
		err   error
		may   bool
	}{
		{0, nil, false},
		{0, codec.ErrCorrupt, true},
		{0, disk, false},
		{0, both, false},
		{2 * diskFailsLong, disk, false},
		{2 * diskFailsLong, both, true},
		{2 * diskFailsLong, codec.ErrCorrupt, true},
	} {
		if h.diskFails = (time.Time{}); c.since > 0 {
			h.diskFails = time.Now().Add(-c.since)
		}
		if may := h.mayRebuild(c.err); may != c.may || errors.Is(c.err, syscall.EIO) == h.diskFails.IsZero() {
			t.Errorf("since %v, %v: %v, since %v", c.since, c.err, may, h.diskFails)
		}
	}
}
