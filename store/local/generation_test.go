package local

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mtagd/store"
	"mtagd/store/testenv"
)

// Each file or directory of a data directory that is older than the others is noticed. An index is rebuilt; with anything else, the
// directory is refused, and nothing is changed.
func TestDrillAFileThatIsOlderThanTheOthersIsNoticed(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	m := soundDirectory(t, dir)[0]
	older := copied(t, dir)
	e := open(t, dir)
	keys, err := e.Keys(ctx, partnerOf(t, e))
	testenv.Check(t, err)
	if _, err := e.RevokeKey(ctx, keys[0].ID, true); err != nil {
		t.Fatal(err)
	}
	want := everything(t, e, m)
	closeEngine(t, e)
	for _, part := range []string{"control.db", "events", "events/log", "events/keys", "archive", "index.db", generationFile} {
		mixed := copied(t, dir)
		replacePart(t, mixed, older, part)
		if part != "index.db" {
			if found := closedFindings(t, mixed); len(found) == 0 {
				t.Errorf("with an older %s, a verification finds nothing", part)
			}
		}
		before := fileSums(t, mixed)
		opened, err := Open(mixed, Options{Log: quiet})
		if part == "index.db" {
			if err != nil {
				t.Fatalf("%s: %v", part, err)
			}
			if x := opened.(*engine); x.index.now.Covered() == 0 || everything(t, x, m)[0].Total != want[0].Total {
				t.Errorf("%s: %d events", part, everything(t, x, m)[0].Total)
			}
			closeEngine(t, opened.(*engine))
			continue
		}
		if !errors.Is(err, errOtherTime) || !strings.Contains(err.Error(), "mtagd repair") {
			t.Errorf("with an older %s: %v", part, err)
			if err == nil {
				closeEngine(t, opened.(*engine))
			}
			continue
		}
		for path, sum := range fileSums(t, mixed) {
			if before[path] != sum {
				t.Errorf("with an older %s, the start has changed %s", part, path)
			}
		}
		if _, err := OpenControl(mixed, Options{Log: quiet}); !errors.Is(err, errOtherTime) {
			t.Errorf("with an older %s, a command gets %v", part, err)
		}
	}
	// A repair goes on with what there is, and says so, also when there is only an older copy.
	for _, part := range []string{"control.db", "control.copy"} {
		mixed, said := copied(t, dir), 0
		testenv.Check(t, os.Remove(filepath.Join(mixed, "control.db")))
		replacePart(t, mixed, older, part)
		to := filepath.Join(t.TempDir(), "new")
		if err := Repair(ctx, mixed, to, quiet, func(f store.Finding) {
			if said++; !strings.Contains(f.Problem, "revoked") {
				t.Errorf("lost: %+v", f)
			}
		}); err != nil || said != 1 {
			t.Errorf("with an older %s, a repair says %d things, %v", part, said, err)
		}
		closeEngine(t, open(t, to))
	}
	// All of it may go back to an earlier moment.
	closeEngine(t, open(t, older))
}

// A change that a command has made while no server ran counts as well, and so does one since the last start.
func TestAnOlderControlFileIsNoticedAfterEachChange(t *testing.T) {
	dir := t.TempDir()
	closeEngine(t, open(t, dir))
	for range 3 {
		older := copied(t, dir)
		data, err := OpenControl(dir, Options{Log: quiet})
		testenv.Check(t, err)
		_, err = data.AddPartner(ctx, "Shop")
		testenv.Check(t, errors.Join(err, data.Close()))
		mixed := copied(t, dir)
		replacePart(t, mixed, older, "control.db")
		if _, err := OpenControl(mixed, Options{Log: quiet}); !errors.Is(err, errOtherTime) {
			t.Errorf("an older control.db: %v", err)
		}
	}
}

// A kill between any two writes raises no alarm, and what it leaves does not let older files pass later.
func TestDrillAKillBetweenTheWritesRaisesNoAlarm(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	e := open(t, dir)
	killed := map[string]string{}
	keep := func(moment string) { killed[moment] = copied(t, dir) }
	changing, changed := e.Changing, e.Changed
	e.Changing = func(sum uint64) error {
		keep("before a change is noted")
		err := changing(sum)
		keep("before a change is committed")
		return err
	}
	e.Changed = func() {
		keep("after a change is committed")
		changed()
		keep("after it is noted")
	}
	if _, err := e.AddPartner(ctx, "Shop"); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	between := copied(t, killed["before a change is committed"])
	replacePart(t, between, killed["after a change is committed"], "control.copy")
	killed["between the commits of the two files"] = between
	// An opening: the file, then three parts and the index, then the file.
	for n := range 6 {
		to := copied(t, dir)
		data, g, err := openControl(to, Options{Log: quiet})
		testenv.Check(t, err)
		g.opening.next = 4711
		steps := []func() error{func() error { return g.write(synced) }}
		for _, part := range stampedParts {
			steps = append(steps, func() error {
				return writeInPlace(filepath.Join(to, part, generationFile), sealNumbers(4711), synced)
			})
		}
		steps = append(steps, func() error { g.opening.now = 4711; return g.write(synced) })
		for _, step := range steps[:min(n, len(steps))] {
			testenv.Check(t, step())
		}
		testenv.Check(t, data.Close())
		killed["after step "+string(rune('0'+n))+" of an opening"] = to
	}
	for moment, dir := range killed {
		older := copied(t, dir)
		e, err := Open(dir, Options{Log: quiet})
		if err != nil {
			t.Errorf("%s: %v", moment, err)
			continue
		}
		if _, err := e.AddPartner(ctx, "Later"); err != nil {
			t.Error(err)
		}
		closeEngine(t, e.(*engine))
		for _, part := range []string{"control.db", "events/log", "archive"} {
			mixed := copied(t, dir)
			replacePart(t, mixed, older, part)
			if _, err := OpenControl(mixed, Options{Log: quiet}); !errors.Is(err, errOtherTime) {
				t.Errorf("%s, then an older %s: %v", moment, part, err)
			}
		}
	}
}

// One wrong bit in the file that says what belongs together is a warning, and no reason to refuse; neither is its loss.
func TestDamageOfTheGenerationFileIsNoAlarm(t *testing.T) {
	dir := t.TempDir()
	closeEngine(t, open(t, dir))
	for name, change := range map[string]func(b []byte) []byte{
		"one copy": func(b []byte) []byte { b[3] ^= 1; return b },
		"both":     func(b []byte) []byte { b[3] ^= 1; b[generationCopy] ^= 1; return b },
		"empty":    func([]byte) []byte { return nil },
	} {
		to := copied(t, dir)
		damage(t, filepath.Join(to, generationFile), change)
		damage(t, filepath.Join(to, "archive", generationFile), func(b []byte) []byte { b[2] ^= 1; return b })
		log := new(bytes.Buffer)
		e, err := Open(to, Options{Log: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !strings.Contains(log.String(), "the file generation is damaged") {
			t.Errorf("%s: no warning in %s", name, log)
		}
		closeEngine(t, e.(*engine))
	}
}

func partnerOf(t *testing.T, e *engine) store.PartnerID {
	t.Helper()
	partners, err := e.Partners(ctx)
	if err != nil || len(partners) == 0 {
		t.Fatal(partners, err)
	}
	return partners[0].ID
}

// replacePart replaces a file or directory by that of another data directory.
func replacePart(t *testing.T, dir, from, part string) {
	t.Helper()
	target := filepath.Join(dir, part)
	testenv.Check(t, os.RemoveAll(target))
	testenv.Check(t, copyFiles(filepath.Join(from, part), target))
}
