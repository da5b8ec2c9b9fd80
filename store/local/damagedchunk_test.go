package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/testenv"
)

// logFiles returns the paths of the files of the log.
func logFiles(dir string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, "events", "log", "*.log"))
}

// damageChunk flips two bits of the first record of the log that has this text: one would be corrected.
func damageChunk(dir, text string) error {
	logs, err := logFiles(dir)
	if err != nil {
		return err
	}
	for _, log := range logs {
		damaged := false
		if err := changeFile(log, func(b []byte) {
			if at := bytes.Index(b, []byte(text)); at >= 0 {
				b[at+1] ^= 5
				damaged = true
			}
		}); err != nil || damaged {
			return err
		}
	}
	return errors.New("no such text in the log")
}

// A damaged chunk costs its own events, and nothing else: all others are listed, with exact totals, also after the index is
// rebuilt. The damage is noted once.
func TestADamagedChunkCostsItsOwnEvents(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	merchants := []store.MerchantID{store.NewMerchantID(), store.NewMerchantID()}
	for range 5 {
		record(t, e, merchants[0], 300)
		record(t, e, merchants[1], 100)
	}
	recorded := map[store.MerchantID][]store.Event{}
	for _, m := range merchants {
		recorded[m] = everything(t, e, m)[0].Events
	}
	closeEngine(t, e)
	testenv.Check(t, damageChunk(dir, `{"n":`))
	for _, when := range []string{"when it is found", "after a restart", "after the index is rebuilt"} {
		if when == "after the index is rebuilt" {
			testenv.Check(t, os.Remove(filepath.Join(dir, "index.db")))
		}
		e := open(t, dir)
		listed := map[store.MerchantID][2]store.Page{}
		for _, m := range merchants {
			listed[m] = everything(t, e, m)
		}
		closeEngine(t, e)
		b, err := os.ReadFile(filepath.Join(dir, "damaged.jsonl"))
		testenv.Check(t, err)
		var n note
		b, _, _ = bytes.Cut(bytes.TrimSpace(b), []byte("\n")) // a start without an index notes the record too
		if err := json.Unmarshal(b, &n); err != nil {
			t.Fatalf("%s: %s: %v", when, b, err)
		}
		lost := map[store.EventID]bool{}
		for i := range uint16(256) {
			lost[store.Position{Seq: n.Chunk, Index: i}.EventID()] = true
		}
		missing := 0
		for m, all := range recorded {
			want := slices.DeleteFunc(slices.Clone(all), func(e store.Event) bool { return lost[e.ID] })
			missing += len(all) - len(want)
			for _, page := range listed[m] {
				if page.Total != len(want) {
					t.Errorf("%s: total %d, want %d", when, page.Total, len(want))
				}
			}
			if !reflect.DeepEqual(listed[m][0].Events, want) {
				t.Errorf("%s: %d other events than all but those of the damaged chunk", when, len(listed[m][0].Events))
			}
		}
		if missing == 0 || n.Events != uint64(missing) || len(n.Merchants) != 1 || n.From.IsZero() || n.To.Before(n.From) {
			t.Errorf("%s: %d events are missing; the note is %s", when, missing, b)
		}
		if found := closedFindings(t, dir); !slices.ContainsFunc(found, func(f store.Finding) bool {
			return f.Part == store.PartEvents && strings.HasPrefix(f.Where, "chunk")
		}) {
			t.Errorf("%s: verify finds %v", when, found)
		}
	}
}

// Wrong bits anywhere in the log cost at most the records that they are in. Everything else is served, with exact
// totals; verify and the metrics say what is lost; and the rest is kept when the index is rebuilt.
func TestDrillWrongBitsCostOnlyTheirRecords(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	for range 12 {
		record(t, e, m, 300)
	}
	recorded := everything(t, e, m)[0].Events
	closeEngine(t, e)
	logs, err := logFiles(dir)
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	random := testenv.Random(t)
	for round := range testenv.Rounds(6) {
		dir := copied(t, dir)
		flips := 1 + random.IntN(8)
		for range flips {
			if err := changeFile(filepath.Join(dir, "events", "log", filepath.Base(logs[random.IntN(len(logs))])), func(b []byte) {
				used := len(bytes.TrimRight(b, "\x00"))
				if used > 4096 { // behind the header
					b[4096+random.IntN(used-4096)] ^= 5 << random.IntN(6)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if round%2 == 1 {
			testenv.Check(t, os.Remove(filepath.Join(dir, "index.db")))
		}
		metrics := prometheus.NewRegistry()
		opened, err := Open(dir, Options{Log: quiet, Metrics: metrics})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		e := opened.(*engine)
		if round%3 == 0 { // found by verify first
			findings(t, e.Verify)
		}
		listed := everything(t, e, m)
		damaged := map[store.EventID]bool{}
		for seq := range e.damage.notes {
			for i := range uint16(256) {
				damaged[store.Position{Seq: seq.chunk, Index: i}.EventID()] = true
			}
		}
		if round%2 == 1 { // nobody knows which chunks the records had
			there := map[store.EventID]bool{}
			for _, e := range listed[0].Events {
				there[e.ID] = true
			}
			for _, e := range recorded {
				damaged[e.ID] = len(damaged) > 0 && !there[e.ID]
			}
		}
		want := slices.DeleteFunc(slices.Clone(recorded), func(e store.Event) bool { return damaged[e.ID] })
		for _, page := range listed {
			if page.Total != len(want) {
				t.Errorf("round %d: total %d, want %d", round, page.Total, len(want))
			}
		}
		if !reflect.DeepEqual(listed[0].Events, want) {
			t.Errorf("round %d: other events", round)
		}
		if lost := len(recorded) - len(want); lost > flips*300 {
			t.Errorf("round %d: %d wrong bytes cost %d events", round, flips, lost)
		}
		if n, err := gauge(metrics, "mtagd_damaged_chunks"); err != nil || int(n) != len(e.damage.notes) {
			t.Errorf("round %d: the metric is %v, %v, want %d", round, n, err, len(e.damage.notes))
		}
		closeEngine(t, e)
		for _, f := range closedFindings(t, dir) {
			if f.Part == store.PartIndex || f.Part == store.PartEvents && !strings.HasPrefix(f.Where, "chunk") {
				t.Errorf("round %d: %v", round, f)
			}
		}
	}
}

// The last chunk may be the damaged one: a listing after a replay does not wait for it.
func TestDrillTheLastChunkMayBeDamaged(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 300)
	lastRaw := []byte(`{"last":"`)
	for range 50 { // more than is kept in tables
		lastRaw = append(lastRaw, store.NewMerchantID()...)
	}
	lastRaw = append(lastRaw, `"}`...)
	testenv.Check(t, e.Record(ctx, []store.Mark{newMark(m, "Last", 1, lastRaw)}))
	closeEngine(t, e)
	testenv.Check(t, errors.Join(damageChunk(dir, `{"last":`), os.Remove(filepath.Join(dir, "index.db"))))
	e = open(t, dir)
	defer closeEngine(t, e)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if page, err := e.Events(ctx, store.Query{Merchant: m, Limit: 1}); err != nil || page.Total != 300 {
		t.Errorf("total %d, %v, want 300", page.Total, err)
	}
}

// The last chunk is damaged, and the index covers it: each start knows that it is lost, though other records come behind it.
func TestADamagedLastChunkStopsNoStart(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 30)
	archiveAll(t, e) // a start notes that these chunks are forgotten, which is a record
	record(t, e, m, 30)
	mark := newMark(m, "Login", 1, []byte("{}"))
	mark.Identity.Add(store.Email, "ann@example.com")
	testenv.Check(t, e.Record(ctx, []store.Mark{mark}))
	testenv.Check(t, e.Record(ctx, []store.Mark{newMark(m, "Last", 1, []byte(`{"last":"ab"}`))}))
	everything(t, e, m)
	testenv.Check(t, e.index.now.Merge(ctx))
	killed := copied(t, dir)
	closeEngine(t, e)
	testenv.Check(t, damageChunk(killed, `{"last":`))
	for range 3 {
		e := open(t, killed)
		if total := everything(t, e, m)[0].Total; total != 61 {
			t.Errorf("total %d, want 61", total)
		}
		if !e.journal.HasLost() {
			t.Error("the start does not see that a part of the log is lost")
		}
		closeEngine(t, e)
	}
}

// gauge returns the value of a metric.
func gauge(metrics prometheus.Gatherer, name string) (float64, error) {
	families, err := metrics.Gather()
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].Gauge.GetValue(), err
		}
	}
	return 0, errors.Join(err, fmt.Errorf("no metric %s", name))
}
