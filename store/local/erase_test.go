package local

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
	"mtagd/store/removal"
	"mtagd/store/testenv"
)

// erasing is an engine with a merchant, and visitors who have a muid, an email and events with a word of their own.
type erasing struct {
	*engine
	t       *testing.T
	dir     string
	partner store.PartnerID
	shop    store.MerchantID
}

func newErasing(t *testing.T) *erasing {
	x := &erasing{t: t, dir: t.TempDir()}
	x.engine = open(t, x.dir)
	p, err := x.AddPartner(ctx, "Acme")
	testenv.Check(t, err)
	x.partner = p.ID
	x.shop = x.newShop()
	return x
}

func (x *erasing) newShop() store.MerchantID {
	x.t.Helper()
	m, err := x.AddMerchant(ctx, x.partner, store.NewMerchant{Name: "Shop"})
	testenv.Check(x.t, err)
	return m.ID
}

func muidOf(n int) store.MUID { return store.MUID(fmt.Sprintf("muid-%06d-of-visitor", n)) }
func emailOf(n int) string    { return fmt.Sprintf("visitor%06d@example.com", n) }
func wordOf(n int) string     { return fmt.Sprintf("word%06dword", n) }

// newVisit returns a mark of a visitor; i tells events of the same visitor apart.
func newVisit(m store.MerchantID, visitor, i int) store.Mark {
	id := store.Identity{MUID: muidOf(visitor), Source: store.BySecret}
	id.Add(store.Email, emailOf(visitor))
	if i%3 == 2 {
		id.MUID = "" // resolved by the email
	}
	return store.Mark{Merchant: m, Tag: "cs_a", Identity: id, Name: "Visit", Time: time.UnixMicro(int64(1e15 + i*1e6)),
		DedupeID: fmt.Sprintf("%d-%d", visitor, i),
		Raw:      fmt.Appendf(nil, `{"event":"Visit","event_id":"%d-%d","email":%q,"text":%q}`, visitor, i, emailOf(visitor), wordOf(visitor))}
}

func (x *erasing) visit(m store.MerchantID, visitors, each int) {
	x.t.Helper()
	for i := range each {
		for from := 0; from < visitors; from += 500 {
			var marks []store.Mark
			for v := from; v < min(from+500, visitors); v++ {
				marks = append(marks, newVisit(m, v, i))
			}
			testenv.Check(x.t, x.Record(ctx, marks))
			for _, mark := range marks {
				if mark.Outcome != store.Recorded {
					x.t.Fatalf("a mark is %d, not recorded", mark.Outcome)
				}
			}
		}
	}
}

func (x *erasing) erase(id store.Identity, suppress bool) store.Erasure {
	x.t.Helper()
	era, err := x.Erase(ctx, x.shop, id, store.ErasureOptions{Suppress: suppress})
	testenv.Check(x.t, err)
	return era
}

// await waits until an erasure is done.
func (x *erasing) await(id store.ErasureID) store.Erasure {
	x.t.Helper()
	for {
		era, err := x.Erasure(ctx, id)
		testenv.Check(x.t, err)
		if era.State == store.ErasureDone {
			return era
		}
		time.Sleep(time.Millisecond)
	}
}

func (x *erasing) total(m store.MerchantID) int {
	x.t.Helper()
	page, err := x.Events(ctx, store.Query{Merchant: m, SortBy: store.ByTime, Limit: 100})
	testenv.Check(x.t, err)
	return page.Total
}

// filesWith returns the files of a directory that have one of these texts.
func filesWith(t *testing.T, dir string, texts ...string) (found []string) {
	t.Helper()
	found, err := findTexts(dir, texts...)
	testenv.Check(t, err)
	return found
}

func findTexts(dir string, texts ...string) (found []string, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !entry.Type().IsRegular() {
			return nil // a directory of tables may be gone before it is read
		}
		if err != nil {
			return err
		}
		b, err := writtenIn(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for _, text := range texts {
			if bytes.Contains(b, []byte(text)) {
				found = append(found, strings.TrimPrefix(path, dir)+" has "+text)
			}
		}
		return err
	})
	return found, err
}

// writtenIn returns the parts of a file that are not holes, with a zero between two parts. Logs and spare files are large, and mostly
// holes.
func writtenIn(path string) (b []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	err = eachWritten(f, func(start, end int64) error {
		part := make([]byte, end-start)
		n, err := f.ReadAt(part, start)
		if errors.Is(err, io.EOF) {
			err = nil // the file became shorter meanwhile
		}
		b = append(append(b, part[:n]...), 0)
		return err
	})
	return b, err
}

func byMUID(n int) store.Identity { return store.Identity{MUID: muidOf(n)} }

func byEmail(n int) (id store.Identity) {
	id.Add(store.Email, strings.ToUpper(emailOf(n)))
	return id
}

// After an erasure, no file has a byte of the person, totals are exact, others are untouched, and the event_ids are free.
func TestErasure(t *testing.T) {
	x := newErasing(t)
	other := x.newShop()
	x.visit(x.shop, 100, 6)
	x.visit(other, 100, 1)
	archiveAll(t, x.engine)
	x.visit(x.newShop(), 10, 1)
	testenv.Check(t, x.Record(ctx, []store.Mark{newVisit(x.shop, 7, 100), newVisit(x.shop, 8, 101)}))
	if len(filesWith(t, filepath.Join(x.dir, "events"), string(muidOf(7)))) == 0 {
		t.Fatal("the search finds nothing")
	}
	for visitor, id := range map[int]store.Identity{7: byMUID(7), 9: byEmail(9)} {
		want := 6
		if visitor == 7 {
			want = 7
		}
		era := x.await(x.erase(id, false).ID)
		if era.Events != want || era.Links != 1 || era.FinishedAt.IsZero() {
			t.Errorf("the receipt is %+v, want %d events", era, want)
		}
	}
	if n := x.total(x.shop); n != 602-13 {
		t.Errorf("%d events are left", n)
	}
	if n := x.total(other); n != 100 {
		t.Errorf("another merchant has %d events", n)
	}
	findNothing(t, x.engine)
	again := []store.Mark{newVisit(x.shop, 7, 0)}
	if err := x.Record(ctx, again); err != nil || again[0].Outcome != store.Recorded {
		t.Errorf("an erased event that comes again: outcome %d, %v", again[0].Outcome, err)
	}
	unknown := []store.Mark{newVisit(x.shop, 9, 2)}
	if err := x.Record(ctx, unknown); err != nil || unknown[0].Outcome != store.Unresolved {
		t.Errorf("an event with an email whose link was erased: outcome %d, %v", unknown[0].Outcome, err)
	}
	closeEngine(t, x.engine)
}

// The visitors of one merchant only: another one may know the same person.
func TestDrillNoByteIsLeftAfterAnErasure(t *testing.T) {
	testenv.Drill(t)
	x := newErasing(t)
	x.visit(x.shop, 200, 4)
	x.visit(x.shop, 200, 0)
	gone := []string{string(muidOf(3)), emailOf(3), wordOf(3)}
	check := func(when string) {
		t.Helper()
		x.await(x.erase(byEmail(3), false).ID)
		if found := filesWith(t, x.dir, gone...); found != nil {
			t.Errorf("erased %s: %v", when, found)
		}
		findNothing(t, x.engine)
	}
	check("from the journal")
	for i := 10; i < 14; i++ {
		testenv.Check(t, x.Record(ctx, []store.Mark{newVisit(x.shop, 3, i*3), newVisit(x.shop, 4, i*3)}))
	}
	archiveAll(t, x.engine)
	check("from the archive")
	testenv.Check(t, x.Record(ctx, []store.Mark{newVisit(x.shop, 3, 60)}))
	closeEngine(t, x.engine)
	x.engine = open(t, x.dir)
	check("after a restart")
	x.dir = copied(t, x.dir)
	killed := x.engine
	x.engine = open(t, x.dir)
	if found := filesWith(t, x.dir, gone...); found != nil {
		t.Errorf("after a kill: %v", found)
	}
	closeEngine(t, killed)
	closeEngine(t, x.engine)
}

// With suppress, later events of the person are refused: by muid, and by the identifiers that were linked to it.
func TestSuppression(t *testing.T) {
	x := newErasing(t)
	x.visit(x.shop, 10, 2)
	x.await(x.erase(byMUID(3), true).ID)
	check := func() {
		t.Helper()
		stranger := newVisit(x.shop, 3, 100)
		stranger.Identity.MUID = "another"
		byCookie := newVisit(x.shop, 11, 101)
		byCookie.Identity = byMUID(3)
		marks := []store.Mark{newVisit(x.shop, 3, 99), stranger, byCookie, newVisit(x.shop, 4, 102)}
		testenv.Check(t, x.Record(ctx, marks))
		for i, want := range []store.Outcome{store.Suppressed, store.Suppressed, store.Suppressed} {
			if marks[i].Outcome != want {
				t.Errorf("mark %d: outcome %d, want %d", i, marks[i].Outcome, want)
			}
		}
		if marks[3].Outcome == store.Suppressed {
			t.Error("another person is refused")
		}
		id := byEmail(3)
		id.MUID = "another"
		if _, err := x.Resolve(ctx, x.shop, id); err != nil {
			t.Error(err)
		}
		if muid, err := x.Resolve(ctx, x.shop, byEmail(3)); err != nil || muid != "" {
			t.Errorf("the email is linked to %q, %v", muid, err)
		}
	}
	check()
	closeEngine(t, x.engine)
	x.engine = open(t, x.dir)
	check()
	closeEngine(t, x.engine)
}

// Deleting a merchant removes its events, links and event_ids; those of another merchant stay.
func TestDeletedMerchantIsRemoved(t *testing.T) {
	x := newErasing(t)
	other := x.newShop()
	x.visit(x.shop, 50, 3)
	archiveAll(t, x.engine)
	x.visit(x.shop, 100, 0)
	testenv.Check(t, x.Record(ctx, []store.Mark{newVisit(x.shop, 60, 0), newVisit(other, 70, 0)}))
	if _, err := x.DeleteMerchant(ctx, x.shop); err != nil {
		t.Fatal(err)
	}
	x.remover.runner.Wake()
	late := []store.Mark{newVisit(x.shop, 1, 51)}
	if err := x.Record(ctx, late); err != nil || late[0].Outcome != store.Removed {
		t.Errorf("an event that was on its way: outcome %d, %v", late[0].Outcome, err)
	}
	for {
		if left, err := x.Removals(ctx); err != nil {
			t.Fatal(err)
		} else if len(left) == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if found := filesWith(t, x.dir, "example.com", "visitor"); len(found) == 0 {
		t.Error("the other merchant's events are gone too")
	}
	if found := filesWith(t, x.dir, string(muidOf(1)), emailOf(1), wordOf(60), emailOf(60)); found != nil {
		t.Error(found)
	}
	if n := x.total(other); n != 1 {
		t.Errorf("the other merchant has %d events", n)
	}
	findNothing(t, x.engine)
	closeEngine(t, x.engine)
}

// PersonalData has the links and the events of a person, from the archive and the journal.
func TestPersonalData(t *testing.T) {
	x := newErasing(t)
	x.visit(x.shop, 20, 4)
	archiveAll(t, x.engine)
	testenv.Check(t, x.Record(ctx, []store.Mark{newVisit(x.shop, 3, 9), newVisit(x.shop, 4, 9)}))
	for name, id := range map[string]store.Identity{"muid": byMUID(3), "email": byEmail(3)} {
		events, links := 0, 0
		if _, err := x.PersonalData(ctx, x.shop, id, false, func(r *store.PersonalRecord) error {
			if r.Event == nil {
				links++
			} else if events++; !bytes.Contains(r.Event.Raw, []byte(wordOf(3))) || r.Event.MUID != muidOf(3) {
				t.Errorf("by %s: %+v", name, r.Event)
			}
			return nil
		}); err != nil || events != 5 || links != 1 {
			t.Errorf("by %s: %d events, %d links, %v", name, events, links, err)
		}
	}
	closeEngine(t, x.engine)
}

// An erasure that was accepted is done after a kill.
func TestAnErasureGoesOnAfterAKill(t *testing.T) {
	x := newErasing(t)
	x.visit(x.shop, 50, 4)
	release := x.archiver.PauseMoves() // it can move nothing, so it removes nothing
	era := x.erase(byEmail(3), false)
	killed := copied(t, x.dir)
	release()
	x.await(era.ID)
	closeEngine(t, x.engine)
	x.dir = killed
	x.engine = open(t, x.dir)
	if receipt := x.await(era.ID); receipt.Events != 4 || receipt.Links != 1 {
		t.Errorf("the receipt is %+v", receipt)
	}
	if found := filesWith(t, x.dir, string(muidOf(3)), emailOf(3), wordOf(3)); found != nil {
		t.Error(found)
	}
	if n := x.total(x.shop); n != 196 {
		t.Errorf("%d events are left", n)
	}
	closeEngine(t, x.engine)
}

// An erasure whose merchant is deleted is done when the merchant's events are gone, and not before.
func TestErasureOfADeletedMerchant(t *testing.T) {
	x := newErasing(t)
	x.visit(x.shop, 10, 2)
	closeEngine(t, x.engine)
	now := time.Now()
	opened, err := Open(x.dir, Options{Log: quiet, keepAll: true, Now: func() time.Time { return now }})
	testenv.Check(t, err)
	x.engine = opened.(*engine)
	x.remover.busy.Lock()
	era := x.erase(byMUID(3), false)
	if _, err := x.DeleteMerchant(ctx, x.shop); err != nil {
		t.Fatal(err)
	}
	now = now.Add(removal.Delay / 2)
	testenv.Check(t, x.remover.runner.Run(ctx))
	if era, err := x.Erasure(ctx, era.ID); err != nil || era.State == store.ErasureDone {
		t.Errorf("before the merchant's events are removed the erasure is %+v, %v", era, err)
	}
	now = now.Add(removal.Delay)
	testenv.Check(t, x.remover.runner.Run(ctx))
	x.remover.busy.Unlock()
	x.await(era.ID)
	if found := filesWith(t, x.dir, string(muidOf(3)), emailOf(3)); found != nil {
		t.Errorf("done, and still in %v", found)
	}
	closeEngine(t, x.engine)
}

// The receipt of an erasure whose bytes cannot be removed from the files says so.
func TestAPurgeThatFailsIsNoted(t *testing.T) {
	testenv.NotShort(t, "time")
	t.Parallel() // it waits for the next attempt
	x := &erasing{t: t, dir: t.TempDir()}
	var fails atomic.Bool
	fails.Store(true)
	opened, err := Open(x.dir, Options{Log: quiet, Broken: func(m store.MerchantID) error {
		if m == "" && fails.Load() {
			return errors.New("no room")
		}
		return nil
	}})
	testenv.Check(t, err)
	x.engine = opened.(*engine)
	p, err := x.AddPartner(ctx, "Acme")
	testenv.Check(t, err)
	x.partner = p.ID
	x.shop = x.newShop()
	x.visit(x.shop, 5, 2)
	id := x.erase(byMUID(3), false).ID
	for {
		era, err := x.Erasure(ctx, id)
		testenv.Check(t, err)
		if era.Attempts > 0 {
			if era.State != store.ErasurePurging || era.LastError == "" {
				t.Errorf("the receipt is %+v", era)
			}
			break
		}
		time.Sleep(time.Millisecond)
	}
	fails.Store(false)
	if era := x.await(id); era.Attempts == 0 || era.LastError != "" {
		t.Errorf("the receipt is %+v", era)
	}
	closeEngine(t, x.engine)
}

// A removal that a full disk has stopped goes on as soon as there is space: the pauses after other failures get long.
func TestARemovalGoesOnWhenThereIsSpaceAgain(t *testing.T) {
	var full atomic.Bool
	opened, err := Open(t.TempDir(), Options{Log: quiet, eager: true, keepAll: true, Broken: func(store.MerchantID) error {
		if full.Load() {
			return fmt.Errorf("write a table: %w", syscall.ENOSPC)
		}
		return nil
	}})
	testenv.Check(t, err)
	x := &erasing{t: t, engine: opened.(*engine)}
	p, err := x.AddPartner(ctx, "Acme")
	testenv.Check(t, err)
	x.partner = p.ID
	deleted := x.newShop()
	x.shop = x.newShop()
	x.visit(x.shop, 5, 2)
	id := x.erase(byMUID(3), false).ID
	_, err = x.DeleteMerchant(ctx, deleted)
	testenv.Check(t, err)
	full.Store(true)
	for range 3 {
		if err := x.remover.runner.Run(ctx); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("on a full disk, a round gives %v", err)
		}
	}
	full.Store(false)
	testenv.Check(t, x.remover.runner.Run(ctx))
	if erasures, removals, err := x.remover.Tasks(ctx); len(erasures)+len(removals) > 0 || err != nil {
		t.Errorf("with space again, %v and %v are left; %v", erasures, removals, err)
	}
	if era, err := x.Erasure(ctx, id); err != nil || era.State != store.ErasureDone || era.Attempts > 0 {
		t.Errorf("the receipt is %+v, %v", era, err)
	}
	closeEngine(t, x.engine)
}

// An erasure that waits for the end of a backup does not fill the disk.
func TestAnErasureWaitsForABackup(t *testing.T) {
	x := newErasing(t)
	x.visit(x.shop, 10, 2)
	purge := func() error {
		return x.journal.Purge(ctx, func(seq uint64) error { return x.archiver.moveTo(ctx, seq) })
	}
	s, err := x.journal.Snapshot()
	testenv.Check(t, err)
	for range 3 {
		if err := purge(); !errors.Is(err, badgerdb.ErrCopied) {
			t.Errorf("a purge during a backup: %v", err)
		}
	}
	s.Close()
	for range 3 { // the later ones have nothing to fill
		testenv.Check(t, purge())
	}
	closeEngine(t, x.engine)
}

// A page that was asked for before an erasure removed its events notes no damage.
func TestAPageBesideAnErasure(t *testing.T) {
	x := newErasing(t)
	x.visit(x.shop, 10, 2)
	archiveAll(t, x.engine)
	m, err := store.NewMerchantKey(x.shop)
	testenv.Check(t, err)
	_, positions, err := x.index.now.Page(ctx, m, rank.NewSelection(store.Query{Merchant: x.shop, SortBy: store.ByTime, Limit: 100}))
	testenv.Check(t, err)
	x.await(x.erase(byMUID(3), false).ID)
	damage := x.readEvents(ctx, m, positions, func(int, journal.Event) {})
	if !isDamage(damage) {
		t.Fatalf("the read of removed events gives %v", damage)
	}
	testenv.Check(t, x.index.withIndex(func(u *usedIndex) error { return x.noteDamage(ctx, u.Index, damage) }))
	if len(x.damage.notes) > 0 {
		t.Errorf("noted: %+v", x.damage.notes)
	}
	closeEngine(t, x.engine)
}

// While a backup is made, an erasure that waits for it would else fill the log with errors.
func TestAnErasureThatWaitsForABackupIsNoError(t *testing.T) {
	var log bytes.Buffer
	r := &remover{stored: &stored{log: slog.New(slog.NewTextHandler(&log, nil)), opened: ctx}}
	waits := fmt.Errorf("the bytes of removed events: %w", orWaits(badgerdb.ErrCopied))
	for _, c := range []struct {
		err   error
		level string
	}{
		{errors.Join(waits), "INFO"},
		{errors.Join(waits, errors.New("a file is gone")), "ERROR"},
		{errors.New("a file is gone"), "ERROR"},
	} {
		log.Reset()
		if r.logFailure("an erasure", c.err); !strings.Contains(log.String(), "level="+c.level) {
			t.Errorf("%v: %s", c.err, &log)
		}
	}
}
