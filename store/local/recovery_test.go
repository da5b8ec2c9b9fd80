package local

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

// crash copies an open engine's files as a kill would leave them, and opens the copy.
func crash(t *testing.T, dir string) *engine {
	t.Helper()
	e := open(t, copied(t, dir))
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func TestACrashLosesNothing(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	m, other := store.NewMerchantID(), store.NewMerchantID()
	record(t, e, m, 700)
	if got, want := everything(t, crash(t, dir), m), everything(t, e, m); !reflect.DeepEqual(got, want) {
		t.Errorf("before any merge: %d events after the crash, %d before", got[0].Total, want[0].Total)
	}
	closeEngine(t, e) // merges
	e = open(t, dir)
	record(t, e, other, 300)
	record(t, e, m, 300)
	after := crash(t, dir)
	for _, m := range []store.MerchantID{m, other} {
		if got, want := everything(t, after, m), everything(t, e, m); !reflect.DeepEqual(got, want) {
			t.Errorf("after a merge: %d events after the crash, %d before", got[0].Total, want[0].Total)
		}
	}
}

// A missing index is rebuilt from the events. An index that covers events which are gone is refused.
func TestTheIndexMustFitTheEvents(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 300)
	before := copied(t, filepath.Join(dir, "events"))
	record(t, e, m, 300)
	want := everything(t, e, m)
	closeEngine(t, e)

	testenv.Check(t, os.Remove(filepath.Join(dir, "index.db")))
	e = open(t, dir)
	if got := everything(t, e, m); !reflect.DeepEqual(got, want) {
		t.Errorf("%d events without the index, %d before", got[0].Total, want[0].Total)
	}
	closeEngine(t, e)

	testenv.Check(t, os.RemoveAll(filepath.Join(dir, "events")))
	testenv.Check(t, os.Rename(before, filepath.Join(dir, "events")))
	if err := os.Remove(filepath.Join(dir, generationFile)); err != nil { // which would say it before
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "index") {
		t.Errorf("with events older than the index, Open gives %v; want an error that names the index", err)
	}
}

// A long replay logs how far it is.
func TestAReplayLogsItsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		l := &liveIndex{stored: &stored{log: slog.New(slog.NewTextHandler(&log, nil))}}
		progress := l.progress("catching up")
		progress(0, 200)
		progress(50, 200)
		if log.Len() > 0 {
			t.Errorf("a short replay logs %s", &log)
		}
		time.Sleep(2 * progressInterval)
		progress(100, 200)
		progress(101, 200) // too soon
		if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "percent=50") {
			t.Errorf("the replay logs %s, want one line with 50 percent", &log)
		}
		time.Sleep(2 * progressInterval)
		progress(0, 0) // one chunk, which takes long to read
		if !strings.Contains(log.String(), "percent=0") {
			t.Errorf("the replay of one chunk logs %s, want 0 percent", &log)
		}
	})
}
