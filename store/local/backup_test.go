package local

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"

	"mtagd/store"
	"mtagd/store/local/backup"
)

// destination opens a directory as a destination.
func destination(t *testing.T, dir string) backup.Destination {
	t.Helper()
	d, err := backup.Open(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// backUp makes a point of an open engine.
func backUp(t *testing.T, e *engine, dir string, d backup.Destination, change func(*backup.Options)) backup.Result {
	t.Helper()
	result, err := tryBackup(e, dir, d, change)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func tryBackup(e *engine, dir string, d backup.Destination, change func(*backup.Options)) (backup.Result, error) {
	src := SourceOf(e, dir, Options{Log: quiet})
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
	if err := restoreTo(d, m, dir, identities...); err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
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
			if err := e.Record(ctx, []store.Mark{mark}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := e.AddPartner(ctx, fmt.Sprintf("Partner %d", round)); err != nil {
		t.Fatal(err)
	}
}

// Each kept point of a chain restores to what the data directory was at its moment.
func TestEveryPointRestores(t *testing.T) {
	for _, small := range []bool{false, true} {
		t.Run(fmt.Sprintf("small=%v", small), func(t *testing.T) {
			dir := t.TempDir()
			e := open(t, dir)
			defer func() { closeEngine(t, e) }()
			d := destination(t, filepath.Join(t.TempDir(), "backup"))
			m := store.NewMerchantID()
			src := SourceOf(e, dir, Options{Log: quiet})
			b := backup.New(d, src)
			var points []*backup.Manifest
			var want []contents
			for round := range 5 {
				change(t, e, m, round)
				want = append(want, contentsOf(t, e, m))
				result, err := b.Run(ctx, backup.Options{Log: quiet, Now: time.Now, Small: small, Fold: round == 3})
				if err != nil {
					t.Fatal(err)
				}
				points = append(points, result.Point)
				if isBase := result.Point.Parent == ""; isBase != (round == 0) {
					t.Errorf("point %d is a base: %v, because %s", round, isBase, result.Why)
				}
			}
			if err := src.Close(); err != nil {
				t.Fatal(err)
			}
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

// A point under load has every event that was acknowledged before the backup began, and no part of a commit.
func TestAPointUnderLoad(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	m := store.NewMerchantID()
	var acknowledged atomic.Int64
	src := SourceOf(e, dir, Options{Log: quiet})
	b := backup.New(d, src)
	for i := range 6 {
		const workers, calls = 4, 500 // as many as a point can be restored from in seconds
		least := acknowledged.Load()
		stop := make(chan struct{})
		var load sync.WaitGroup
		for worker := range workers {
			load.Go(func() {
				for call := range calls {
					select {
					case <-stop:
						return
					default:
					}
					marks := make([]store.Mark, 10)
					for k := range marks {
						marks[k] = newMark(m, "Load", call, fmt.Appendf(nil, `{"w":%d,"i":%d,"call":%d,"k":%d}`, worker, i, call, k))
					}
					if err := e.Record(ctx, marks); err != nil {
						t.Error(err)
						return
					}
					acknowledged.Add(int64(len(marks)))
				}
			})
		}
		result, err := b.Run(ctx, backup.Options{Log: quiet, Now: time.Now, Small: i > 2})
		most := acknowledged.Load() + workers*10
		close(stop)
		load.Wait()
		if err != nil {
			t.Fatal(err)
		}
		total := int64(everything(t, restored(t, d, result.Point), m)[0].Total)
		if total < least || total > most || total%10 != 0 {
			t.Errorf("point %d has %d events, want %d to %d in whole batches", i, total, least, most)
		}
	}
	last, err := b.Run(ctx, backup.Options{Log: quiet, Now: time.Now, Small: true})
	if err := errors.Join(err, src.Close()); err != nil {
		t.Fatal(err)
	}
	if got, want := everything(t, restored(t, d, last.Point), m), everything(t, e, m); !reflect.DeepEqual(got, want) {
		t.Errorf("the last point has %d events, want %d", got[0].Total, want[0].Total)
	}
}

var underLoad = flag.Int("underload", 1, "how many chains of backups TestAPointHasExactlyWhatWasAcknowledged makes")

// Incremental backups are taken under full load. A restored point has each event that was acknowledged before the backup began,
// once and byte for byte. It has no event of a call that began after the backup had ended, and of each call all or nothing.
func TestAPointHasExactlyWhatWasAcknowledged(t *testing.T) {
	for range *underLoad {
		dir := t.TempDir()
		e := open(t, dir)
		d := destination(t, filepath.Join(t.TempDir(), "backup"))
		m := store.NewMerchantID()
		const workers, batch, most = 4, 10, 1000
		var begun, done [workers]atomic.Int64 // calls of each worker
		stop := make(chan struct{})
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				for i := int64(0); i < most; i++ { // on a fast disk too, a point can be restored in seconds
					select {
					case <-stop:
						return
					default:
					}
					marks := make([]store.Mark, batch)
					for k := range marks {
						marks[k] = newMark(m, "Load", int(i), fmt.Appendf(nil, `{"w":%d,"i":%d,"k":%d}`, w, i, k))
					}
					begun[w].Store(i + 1)
					if err := e.Record(ctx, marks); err != nil {
						t.Error(err)
						return
					}
					done[w].Store(i + 1)
				}
			})
		}
		calls := func(of *[workers]atomic.Int64) (n [workers]int64) {
			for w := range of {
				n[w] = of[w].Load()
			}
			return n
		}
		src := SourceOf(e, dir, Options{Log: quiet})
		b := backup.New(d, src)
		for i := range 4 {
			least := calls(&done)
			result, err := b.Run(ctx, backup.Options{Log: quiet, Now: time.Now, Small: i > 1})
			if err != nil {
				t.Fatal(err)
			}
			latest := calls(&begun)
			got := map[string]int{}
			for _, event := range everything(t, restored(t, d, result.Point), m)[0].Events {
				got[string(event.Raw)]++
			}
			points := 0
			for w := range workers {
				has := int64(0)
				for ; got[fmt.Sprintf(`{"w":%d,"i":%d,"k":0}`, w, has)] == 1; has++ {
					for k := range batch {
						if n := got[fmt.Sprintf(`{"w":%d,"i":%d,"k":%d}`, w, has, k)]; n != 1 {
							t.Errorf("point %d has event %d of call %d %d times", i, k, has, n)
						}
					}
				}
				if has < least[w] || has > latest[w] {
					t.Errorf("point %d has %d calls of worker %d, want %d to %d", i, has, w, least[w], latest[w])
				}
				points += int(has) * batch
			}
			if points != len(got) {
				t.Errorf("point %d has %d events, of which %d are of complete calls", i, len(got), points)
			}
		}
		close(stop)
		all.Wait()
		if err := src.Close(); err != nil {
			t.Fatal(err)
		}
		closeEngine(t, e)
	}
}

// failing is a destination that fails from its operation number left on. Each failure may have been a kill: nothing that
// was begun is undone.
type failing struct {
	backup.Destination
	left int
}

var errFailing = errors.New("the destination fails")

func (f *failing) fails() bool {
	f.left--
	return f.left < 0
}

func (f *failing) Put(ctx context.Context, name string, content []byte) error {
	if f.fails() {
		if f.left%2 == 0 { // the object may be there although the operation has failed
			return errors.Join(errFailing, f.Destination.Put(ctx, name, content))
		}
		return errFailing
	}
	return f.Destination.Put(ctx, name, content)
}

func (f *failing) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	if f.fails() {
		return nil, errFailing
	}
	return f.Destination.Get(ctx, name, limit)
}

func (f *failing) List(ctx context.Context, prefix string) ([]backup.Stored, error) {
	if f.fails() {
		return nil, errFailing
	}
	return f.Destination.List(ctx, prefix)
}

func (f *failing) Delete(ctx context.Context, name string) error {
	if f.fails() {
		return errFailing
	}
	return f.Destination.Delete(ctx, name)
}

// A backup that fails at any step leaves no false point: every point that is there restores, the next backup succeeds, and
// one of the next day leaves no garbage.
func TestABackupThatIsCutOff(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	before := filepath.Join(t.TempDir(), "backup")
	m := store.NewMerchantID()
	change(t, e, m, 0)
	old := time.Now().Add(-time.Hour)
	first := backUp(t, e, dir, destination(t, before), nil)
	wantFirst := contentsOf(t, e, m)
	change(t, e, m, 1)
	for n, done := 0, false; !done; n++ {
		if n > 50 {
			t.Fatal("the backup never succeeds")
		}
		d := destination(t, copied(t, before))
		expire := func(o *backup.Options) { o.Full, o.Keep = n%2 == 1, time.Since(old) }
		_, err := tryBackup(e, dir, &failing{d, n}, expire)
		if done = err == nil; !done && !errors.Is(err, errFailing) {
			t.Errorf("step %d: %v", n, err)
		}
		checkNoProblem(t, d)
		last := backUp(t, e, dir, d, func(o *backup.Options) {
			o.Full, o.Now = n%2 == 1, func() time.Time { return time.Now().Add(25 * time.Hour) }
		})
		checkNoProblem(t, d)
		checkNoGarbage(t, d)
		if got := contentsOf(t, restored(t, d, last.Point), m); !reflect.DeepEqual(got, contentsOf(t, e, m)) {
			t.Errorf("step %d: the last point has %d events", n, got.Pages[0].Total)
		}
		if n > 0 {
			continue // once is enough: the first point does not change
		}
		if got := contentsOf(t, restored(t, d, first.Point), m); !reflect.DeepEqual(got, wantFirst) {
			t.Errorf("step %d: the first point has %d events", n, got.Pages[0].Total)
		}
	}
}

func checkNoProblem(t *testing.T, d backup.Destination) {
	t.Helper()
	if report, err := backup.Verify(ctx, d, nil, CheckEntry, nil); err != nil || len(report.Problems) > 0 {
		t.Errorf("verify: %+v, %v", report, err)
	}
}

func checkNoGarbage(t *testing.T, d backup.Destination) {
	t.Helper()
	points, err := backup.Points(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := d.List(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range stored {
		known := strings.HasSuffix(object.Name, "/lock")
		for _, p := range points {
			known = known || strings.Contains(object.Name, p.Point)
		}
		if !known {
			t.Errorf("%s belongs to no point", object.Name)
		}
	}
}

// A restore that fails at any step leaves a directory that is not opened, and that the next restore uses.
func TestARestoreThatIsCutOff(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	m := store.NewMerchantID()
	change(t, e, m, 0)
	backUp(t, e, dir, d, nil)
	change(t, e, m, 1)
	point := backUp(t, e, dir, d, nil).Point
	points, err := backup.Points(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "restored")
	attempt := func(d backup.Destination) error {
		_, err := Restore(ctx, to, Options{Log: quiet}, func(target backup.Target) (backup.Count, error) {
			return backup.Restore(ctx, d, points, point, nil, CheckEntry, target, nil)
		})
		return err
	}
	for n := 0; ; n++ {
		err := attempt(&failing{d, n})
		if err == nil {
			break
		}
		if !errors.Is(err, errFailing) {
			t.Fatalf("step %d: %v", n, err)
		}
		if opened, err := Open(to, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "restore") {
			closeEngine(t, opened.(*engine))
			t.Fatalf("step %d: an unfinished restore was opened", n)
		}
	}
	restored := open(t, to)
	if got := contentsOf(t, restored, m); !reflect.DeepEqual(got, contentsOf(t, e, m)) {
		t.Errorf("the restored directory has %d events", got.Pages[0].Total)
	}
	closeEngine(t, restored)
	if err := attempt(d); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a second restore gives %v, want ErrNotEmpty", err)
	}
	// A kill while the files are moved: some are in their places, the rest is not.
	if err := os.Mkdir(filepath.Join(to, restoringDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(to, Options{Log: quiet}); err == nil {
		t.Error("a half-moved restore was opened")
	}
	if err := attempt(d); err != nil {
		t.Error(err)
	}
}

// interrupted is a source whose streams are interrupted by their first write.
type interrupted struct {
	*Source
	frames *bytes.Buffer
}

func (s interrupted) Stream(ctx context.Context, r backup.Request, to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return s.Source.Stream(ctx, r, interrupting{s.frames, cancel})
}

type interrupting struct {
	io.Writer
	interrupt func()
}

func (w interrupting) Write(b []byte) (int, error) {
	w.interrupt()
	return w.Writer.Write(b)
}

// replaying is a source that streams what another one has written, and does not fail.
type replaying struct {
	interrupted
}

func (s replaying) Stream(_ context.Context, _ backup.Request, to io.Writer) error {
	_, err := s.frames.WriteTo(to)
	return err
}

// The stream of an interrupted source has no end frame: nobody who reads it can take it for everything.
func TestAnInterruptedStreamHasNoEnd(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	change(t, e, store.NewMerchantID(), 0)
	closeEngine(t, e)
	src, err := OpenSource(dir, Options{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := interrupted{src, new(bytes.Buffer)}
	if err := s.Stream(ctx, backup.Request{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the interrupted stream gives %v", err)
	}
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	_, err = backup.New(d, replaying{s}).Run(ctx, backup.Options{Log: quiet, Now: time.Now})
	if err == nil || err.Error() != context.Canceled.Error() {
		t.Errorf("its reader gets the error %v, want the source's", err)
	}
}

// Encrypted points need the identity. Without it, verify compares checksums; a flipped bit is found either way, and is not
// restored.
func TestEncryptionAndDamage(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	result, err := backup.New(d, src).Run(ctx, backup.Options{Log: quiet, Now: time.Now})
	if err := errors.Join(err, src.Close()); err != nil {
		t.Fatal(err)
	}
	if got := contentsOf(t, restored(t, d, result.Point), m); !reflect.DeepEqual(got, want) {
		t.Errorf("%d events were restored", got.Pages[0].Total)
	}
}
