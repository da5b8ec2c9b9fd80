package local

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/testenv"
)

var (
	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
	ctx   = context.Background()
)

func open(t *testing.T, dir string) *engine {
	t.Helper()
	e, err := Open(dir, Options{Log: quiet, eager: true})
	testenv.Check(t, err)
	return e.(*engine)
}

func closeEngine(t *testing.T, e *engine) {
	t.Helper()
	testenv.Check(t, e.Close())
}

// newMark returns a mark of tag cs_a; at is its time in µs since 1970.
func newMark(m store.MerchantID, name string, at int, raw []byte) store.Mark {
	return store.Mark{
		Merchant: m, Tag: "cs_a", Identity: store.Identity{MUID: "u-1"},
		Name: name, Time: time.UnixMicro(int64(at)), Raw: raw,
	}
}

// record records n events of a merchant, with various times and names, in calls of up to 100.
func record(t *testing.T, e *engine, m store.MerchantID, n int) {
	t.Helper()
	for n > 0 {
		marks := make([]store.Mark, min(n, 100))
		for i := range marks {
			n--
			marks[i] = newMark(m, fmt.Sprintf("Name%d", n%7), n*7919%1000*1e6, fmt.Appendf(nil, `{"n":%d}`, n))
		}
		testenv.Check(t, e.Record(ctx, marks))
	}
}

// everything lists all events of a merchant, by time and by name.
func everything(t *testing.T, e *engine, m store.MerchantID) [2]store.Page {
	t.Helper()
	var pages [2]store.Page
	for i, sort := range []store.SortKey{store.ByTime, store.ByName} {
		var err error
		if pages[i], err = e.Events(ctx, store.Query{Merchant: m, SortBy: sort, Limit: 1_000_000}); err != nil {
			t.Fatal(err)
		}
	}
	return pages
}

// The metrics have the number of events, also after a kill and a replay, and each commit.
func TestMetrics(t *testing.T) {
	shops := []store.MerchantID{store.NewMerchantID(), store.NewMerchantID()}
	dir := t.TempDir()
	e, values := openMeasured(t, dir)
	const commits = "mtagd_journal_commit_duration_seconds"
	atStart := values()[commits]
	for i, m := range shops {
		record(t, e, m, 100*(i+1))
	}
	unresolved := []store.Mark{newMark(shops[0], "Name", 0, []byte("{}"))}
	unresolved[0].Identity = store.Identity{}
	testenv.Check(t, e.Record(ctx, unresolved))
	everything(t, e, shops[1]) // waits for the index
	got := values()
	if got["mtagd_index_events"] != 300 || got["mtagd_journal_group_events"] != 4 || got[commits]-atStart != 3 {
		t.Errorf("after three commits of 100 events, and one that keeps nothing: %v", got)
	}
	if got["mtagd_journal_queue_bytes"] != 0 || got["mtagd_journal_queue_requests"] != 0 {
		t.Errorf("nothing waits: %v", got)
	}
	if age := float64(time.Now().Unix()) - got["mtagd_journal_last_commit_timestamp_seconds"]; age < -1 || age > 600 {
		t.Errorf("the last commit was %v s ago", age)
	}
	killed, values := openMeasured(t, copied(t, dir))
	if got := values()["mtagd_index_events"]; got != 300 {
		t.Errorf("after a kill there are %v events, want 300", got)
	}
	closeEngine(t, killed)
	closeEngine(t, e)
	e, values = openMeasured(t, dir)
	if got := values(); got["mtagd_index_events"] != 300 || got["mtagd_merchant_event_bytes"] == 0 ||
		got["mtagd_index_event_bytes"] <= got["mtagd_merchant_event_bytes"] {
		t.Errorf("after a restart there are %v; want 300 events, and the bytes of both merchants", got)
	}
	closeEngine(t, e)
}

// openMeasured opens an engine with metrics. The function that it returns has the values of the gauges, and the number of
// observations of the histograms.
func openMeasured(t *testing.T, dir string) (*engine, func() map[string]float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	e, err := Open(dir, Options{Log: quiet, Metrics: registry})
	testenv.Check(t, err)
	return e.(*engine), func() map[string]float64 {
		families, err := registry.Gather()
		testenv.Check(t, err)
		values := map[string]float64{}
		for _, family := range families {
			m := family.GetMetric()[0]
			values[family.GetName()] = m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
		return values
	}
}

// A mark that was cut short or emptied still keeps the directory from opening, and says what to do.
func TestADamagedMarkSaysWhatToDo(t *testing.T) {
	for name, want := range map[string]string{movedFile: "start with --store", unfinishedFile: "Run it again"} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		testenv.Check(t, os.WriteFile(path, nil, 0o600))
		if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("an empty %s: %v", name, err)
		}
	}
}
