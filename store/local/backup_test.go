package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"

	"mtagd/store"
	"mtagd/store/local/backup"
	"mtagd/store/removal"
	"mtagd/store/testenv"
)

// destination opens a directory as a destination.
func destination(t *testing.T, dir string) backup.Destination {
	t.Helper()
	d, err := backup.Open(dir, true)
	testenv.Check(t, err)
	return d
}

// backUp makes a point of an open engine.
func backUp(t *testing.T, e *engine, dir string, d backup.Destination, change func(*backup.Options)) backup.Result {
	t.Helper()
	result, err := tryBackup(e, dir, d, change)
	testenv.Check(t, err)
	return result
}

func tryBackup(e *engine, dir string, d backup.Destination, change func(*backup.Options)) (backup.Result, error) {
	src := SourceOf(e)
	opt := backup.Options{Log: quiet, Now: time.Now}
	if change != nil {
		change(&opt)
	}
	result, err := backup.New(d, src).Run(ctx, opt)
	return result, errors.Join(err, src.Close())
}

// restoreTo restores a point into a new directory.
func restoreTo(d backup.Destination, m *backup.Manifest, dir string, identities ...age.Identity) error {
	points, err := backup.Points(ctx, d)
	if err != nil {
		return err
	}
	_, err = Restore(ctx, dir, Options{Log: quiet}, func(to backup.Target) (backup.Count, error) {
		return backup.Restore(ctx, d, points, m, identities, CheckEntry, to, nil)
	})
	return err
}

// restored restores a point and opens the result.
func restored(t *testing.T, d backup.Destination, m *backup.Manifest, identities ...age.Identity) *engine {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	testenv.Check(t, restoreTo(d, m, dir, identities...))
	e := open(t, dir)
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

// contents is what a test compares of an engine: events, what an identity resolves to, and the partners.
type contents struct {
	Pages    [2]store.Page
	Linked   []store.MUID
	Partners []store.Partner
}

func contentsOf(t *testing.T, e *engine, m store.MerchantID) (c contents) {
	t.Helper()
	c.Pages = everything(t, e, m)
	for i := range 50 {
		muid, err := e.Resolve(ctx, m, withEmail("", i))
		testenv.Check(t, err)
		c.Linked = append(c.Linked, muid)
	}
	var err error
	if c.Partners, err = e.Partners(ctx); err != nil {
		t.Fatal(err)
	}
	return c
}

func withEmail(muid store.MUID, i int) store.Identity {
	id := store.Identity{MUID: muid}
	id.Add(store.Email, fmt.Sprintf("v%d@example.com", i))
	return id
}

// change records events, links identities anew, remembers event_ids and adds a partner.
func change(t *testing.T, e *engine, m store.MerchantID, round int) {
	t.Helper()
	record(t, e, m, 150)
	for i := range 50 {
		mark := newMark(m, "Linked", round*1000+i, fmt.Appendf(nil, `{"round":%d}`, round))
		mark.Identity = withEmail(store.MUID(fmt.Sprintf("r%d-%d", round, i)), i)
		mark.DedupeID = fmt.Sprintf("d%d-%d", round, i)
		if i%3 == round%3 {
			testenv.Check(t, e.Record(ctx, []store.Mark{mark}))
		}
	}
	if _, err := e.AddPartner(ctx, fmt.Sprintf("Partner %d", round)); err != nil {
		t.Fatal(err)
	}
}

// Each kept point of a chain restores to what the data directory was at its moment.
func TestDrillEveryPointRestores(t *testing.T) {
	testenv.Drill(t)
	for _, small := range []bool{false, true} {
		t.Run(fmt.Sprintf("small=%v", small), func(t *testing.T) {
			dir := t.TempDir()
			e := open(t, dir)
			defer func() { closeEngine(t, e) }()
			d := destination(t, filepath.Join(t.TempDir(), "backup"))
			m := store.NewMerchantID()
			src := SourceOf(e)
			b := backup.New(d, src)
			var points []*backup.Manifest
			var want []contents
			for round := range 5 {
				change(t, e, m, round)
				want = append(want, contentsOf(t, e, m))
				result, err := b.Run(ctx, backup.Options{Log: quiet, Now: time.Now, Small: small, Fold: round == 3})
				testenv.Check(t, err)
				points = append(points, result.Point)
				if isBase := result.Point.Parent == ""; isBase != (round == 0) {
					t.Errorf("point %d is a base: %v, because %s", round, isBase, result.Why)
				}
			}
			testenv.Check(t, src.Close())
			for i, point := range points {
				if got := contentsOf(t, restored(t, d, point), m); !reflect.DeepEqual(got, want[i]) {
					t.Errorf("point %d has %d events and %v, want %d and %v", i, got.Pages[0].Total, got.Linked, want[i].Pages[0].Total, want[i].Linked)
				}
			}
			report, err := backup.Verify(ctx, d, nil, CheckEntry, nil)
			if err != nil || len(report.Problems) > 0 || report.Points != 5 {
				t.Errorf("verify: %+v, %v", report, err)
			}
		})
	}
}

// Encrypted points need the identity. Without it, verify compares checksums; a flipped bit is found either way, and is not
// restored.
func TestDrillEncryptionAndDamage(t *testing.T) {
	testenv.Drill(t)
	identity, err := age.GenerateX25519Identity()
	testenv.Check(t, err)
	for _, recipients := range [][]string{nil, {identity.Recipient().String()}} {
		dir := t.TempDir()
		e := open(t, dir)
		where := filepath.Join(t.TempDir(), "backup")
		d := destination(t, where)
		m := store.NewMerchantID()
		change(t, e, m, 0)
		point := backUp(t, e, dir, d, func(o *backup.Options) { o.Recipients = recipients }).Point
		want := contentsOf(t, e, m)
		closeEngine(t, e)
		if got := contentsOf(t, restored(t, d, point, identity), m); !reflect.DeepEqual(got, want) {
			t.Errorf("%d events were restored", got.Pages[0].Total)
		}
		if recipients != nil {
			if err := restoreTo(d, point, filepath.Join(t.TempDir(), "x")); !errors.Is(err, backup.ErrNoIdentity) {
				t.Errorf("without the identity, restore gives %v", err)
			}
			stored, err := os.ReadFile(filepath.Join(where, point.Control[0].Name))
			if err != nil || !strings.HasPrefix(string(stored), "age-encryption.org") {
				t.Errorf("the control data is not encrypted: %.20q, %v", stored, err)
			}
		}
		for _, name := range []string{point.Control[0].Name, point.Events[0].Name, point.Data + "/points/" + point.Point + ".json"} {
			file := filepath.Join(where, name)
			flip := func() {
				damage(t, file, func(b []byte) []byte {
					b[len(b)/2] ^= 0x10
					return b
				})
			}
			flip()
			report, err := backup.Verify(ctx, d, nil, CheckEntry, nil)
			if err != nil || len(report.Problems) != 1 {
				t.Errorf("%s is damaged: verify finds %+v, %v", name, report, err)
			}
			if err := restoreTo(d, point, filepath.Join(t.TempDir(), "x"), identity); err == nil {
				t.Errorf("%s is damaged, and was restored", name)
			}
			flip()
		}
	}
}

// A chain of backups cannot be continued from a directory that went back to an older state. A restored directory has another id.
func TestAnotherPastBeginsANewBase(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	m := store.NewMerchantID()
	change(t, e, m, 0)
	first := backUp(t, e, dir, d, nil)
	closeEngine(t, e)
	older := copied(t, dir)
	e = open(t, dir)
	change(t, e, m, 1)
	backUp(t, e, dir, d, nil)
	closeEngine(t, e)

	e = open(t, older)
	change(t, e, m, 2)
	result := backUp(t, e, older, d, nil)
	if result.Point.Parent != "" || result.Point.Data != first.Point.Data {
		t.Errorf("the older copy went on from %s", result.Point.Parent)
	}
	if got := contentsOf(t, restored(t, d, result.Point), m); !reflect.DeepEqual(got, contentsOf(t, e, m)) {
		t.Errorf("its point has %d events", got.Pages[0].Total)
	}
	closeEngine(t, e)
	r := restored(t, d, first.Point)
	if id, err := r.ID(); err != nil || id == first.Point.Data {
		t.Errorf("the restored directory has the id %s of the old one, %v", id, err)
	}
}

// A key that was revoked before a backup is revoked in what is restored of it, also when an older control.db was put back before:
// then bbolt counts the changes again from a smaller number, and may come to one that an earlier point has.
func TestARevokedKeyIsNotInALaterBackup(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	change(t, e, store.NewMerchantID(), 0)
	key, _, err := e.IssueKey(ctx, partnerOf(t, e), store.KeyOptions{})
	testenv.Check(t, err)
	if _, err := e.ID(); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	older := copied(t, dir)
	addPartners := func(e *engine, n int) {
		for range n {
			if _, err := e.AddPartner(ctx, "Later"); err != nil {
				t.Fatal(err)
			}
		}
	}
	backups := filepath.Join(t.TempDir(), "backup")
	e = open(t, dir)
	addPartners(e, 3)
	first := backUp(t, e, dir, destination(t, backups), nil).Point
	closeEngine(t, e)
	replacePart(t, dir, older, "control.db")
	if err := os.Remove(filepath.Join(dir, generationFile)); err != nil { // else the start refuses
		t.Fatal(err)
	}
	for others := range 4 {
		dir, d := copied(t, dir), destination(t, copied(t, backups))
		e := open(t, dir)
		if _, err := e.RevokeKey(ctx, key.ID, true); err != nil {
			t.Fatal(err)
		}
		addPartners(e, others)
		backUp(t, e, dir, d, nil)
		closeEngine(t, e)
		points, err := backup.Points(ctx, d)
		testenv.Check(t, err)
		found, err := backup.Find(points, first.Data, time.Time{})
		testenv.Check(t, err)
		r := restored(t, d, found[0])
		keys, err := r.Keys(ctx, partnerOf(t, r))
		if err != nil || len(keys) != 1 || keys[0].RevokedAt == nil {
			t.Errorf("with %d other changes, the newest of %d points has the keys %+v, %v", others, len(points), keys, err)
		}
	}
}

// Without a server, the directory itself is read.
func TestASourceWithoutAServer(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	change(t, e, m, 0)
	want := contentsOf(t, e, m)
	if _, err := OpenSource(dir, Options{Log: quiet}); !errors.Is(err, store.ErrInUse) {
		t.Errorf("beside a server: %v, want ErrInUse", err)
	}
	closeEngine(t, e)
	src, err := OpenSource(dir, Options{Log: quiet})
	testenv.Check(t, err)
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	result, err := backup.New(d, src).Run(ctx, backup.Options{Log: quiet, Now: time.Now})
	testenv.Check(t, errors.Join(err, src.Close()))
	if got := contentsOf(t, restored(t, d, result.Point), m); !reflect.DeepEqual(got, want) {
		t.Errorf("%d events were restored", got.Pages[0].Total)
	}
}

// writerFunc is an io.Writer.
type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A backup every few seconds reads the log, so a purge waits for it.
func TestAPurgeWaitsForASmallBackup(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	src := SourceOf(e)
	m := store.NewMerchantID()
	stream := func(to io.Writer) error {
		return src.Stream(ctx, backup.Request{Since: e.journal.Version(), LastChunk: e.journal.Committed(), Small: true}, to)
	}
	testenv.Check(t, errors.Join(e.Record(ctx, []store.Mark{newMark(m, "Purchase", 1, []byte(`{}`))}), stream(io.Discard)))
	r := backup.Request{Since: e.journal.Version(), LastChunk: e.journal.Committed(), Small: true}
	testenv.Check(t, e.Record(ctx, []store.Mark{newMark(m, "Purchase", 2, []byte(`{"this":"is new"}`))}))
	var purge sync.WaitGroup
	var purged atomic.Bool
	begun := false
	if err := src.Stream(ctx, r, writerFunc(func(b []byte) (int, error) {
		if !begun {
			begun = true
			purge.Go(func() {
				if err := e.remover.Purge(ctx); err != nil {
					t.Errorf("the purge: %v", err)
				}
				purged.Store(true)
			})
			for waits := false; !waits; runtime.Gosched() {
				if waits = !e.turns.places.TryAcquire(1); !waits {
					e.turns.places.Release(1)
				}
			}
		}
		if purged.Load() {
			t.Error("the purge did not wait for the backup")
		}
		return len(b), nil
	})); err != nil || !begun {
		t.Errorf("the backup: %v", err)
	}
	purge.Wait()
	e.turns.patience = time.Millisecond
	if err := src.Stream(ctx, r, writerFunc(func(b []byte) (int, error) {
		if err := e.remover.Purge(ctx); !errors.Is(err, removal.ErrWaits) {
			t.Errorf("a purge beside a backup that takes long: %v", err)
		}
		return len(b), nil
	})); err != nil {
		t.Error(err)
	}
	if err := src.Stream(ctx, backup.Request{}, writerFunc(func(b []byte) (int, error) {
		if err := e.remover.Purge(ctx); !errors.Is(err, removal.ErrWaits) {
			t.Errorf("a purge while everything is backed up: %v", err)
		}
		return len(b), nil
	})); err != nil {
		t.Error(err)
	}
	if err := errors.Join(src.Close(), e.remover.Purge(ctx)); err != nil {
		t.Errorf("after the backups: %v", err)
	}
}
