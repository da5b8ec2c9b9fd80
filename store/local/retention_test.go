package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/durable"
	"mtagd/store/migrate"
	"mtagd/store/testenv"
)

// day0 is when the clock of these tests begins.
var day0 = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// expiring is an engine whose clock the test moves, with a merchant whose events are kept for ten days.
type expiring struct {
	*engine
	t    *testing.T
	dir  string
	now  time.Time
	shop store.Merchant
}

func newExpiring(t *testing.T) *expiring {
	x := &expiring{t: t, dir: t.TempDir(), now: day0}
	x.open()
	p, err := x.AddPartner(ctx, "Acme")
	testenv.Check(t, err)
	if x.shop, err = x.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Shop"}); err != nil {
		t.Fatal(err)
	}
	x.keep(10)
	return x
}

func (x *expiring) open() {
	x.t.Helper()
	e, err := Open(x.dir, Options{Log: quiet, keepAll: true, Now: func() time.Time { return x.now }})
	testenv.Check(x.t, err)
	x.engine = e.(*engine)
}

func (x *expiring) keep(days store.Retention) {
	x.t.Helper()
	if _, err := x.UpdateMerchant(ctx, x.shop.ID, func(m store.Merchant) store.Merchant {
		m.Retention = days
		return m
	}); err != nil {
		x.t.Fatal(err)
	}
}

// record records an event for each day before the clock's, n of them.
func (x *expiring) record(n int) {
	x.t.Helper()
	marks := make([]store.Mark, n)
	for i := range marks {
		marks[i] = newMark(x.shop.ID, "Name", 0, fmt.Appendf(nil, `{"day":%d}`, i))
		marks[i].Time = x.now.AddDate(0, 0, -i)
	}
	testenv.Check(x.t, x.Record(ctx, marks))
}

func (x *expiring) expect(want int) {
	x.t.Helper()
	page, err := x.Events(ctx, store.Query{Merchant: x.shop.ID, SortBy: store.ByTime, Limit: 1000})
	if err != nil || page.Total != want || len(page.Events) != want {
		x.t.Errorf("%d events of %d are listed, %v, want %d", len(page.Events), page.Total, err, want)
	}
}

// expire removes the events of all merchants that are past the retention.
func (r *remover) expire(ctx context.Context) error { return r.runner.Expire(ctx, r.Expiring(), false) }

func (x *expiring) expire() {
	x.t.Helper()
	testenv.Check(x.t, x.remover.do(ctx, x.remover.expire))
	findNothing(x.t, x.engine)
}

// stored returns how many events the archive and the index have.
func (x *expiring) stored() (archived, indexed uint64) {
	x.t.Helper()
	m, err := store.NewMerchantKey(x.shop.ID)
	testenv.Check(x.t, err)
	usage, err := x.archive.Usage(m)
	testenv.Check(x.t, err)
	if indexed, _, err = x.index.now.Usage(ctx, m); err != nil {
		x.t.Fatal(err)
	}
	return usage.Events, indexed
}

// An event that is past the retention is in no listing, before anything is removed; without retention it is there again.
func TestRetentionHidesEventsAtOnce(t *testing.T) {
	x := newExpiring(t)
	x.record(30)
	x.expect(11)
	x.now = x.now.Add(time.Microsecond)
	x.expect(10)
	x.keep(store.Forever)
	x.expect(30)
	x.keep(0)
	x.expect(30)
	closeEngine(t, x.engine)
}

// Expired events are removed from the archive and the index, also after a kill between the two and after the index is rebuilt.
func TestRetentionRemovesEvents(t *testing.T) {
	x := newExpiring(t)
	x.record(30)
	x.now = x.now.AddDate(0, 0, 2)
	x.record(30)
	x.expire()
	x.expect(20)
	if archived, indexed := x.stored(); archived != 20 || indexed != 20 {
		t.Errorf("the archive has %d events, the index %d, want 20", archived, indexed)
	}
	x.now = x.now.AddDate(0, 0, 5)
	m, err := store.NewMerchantKey(x.shop.ID)
	testenv.Check(t, err)
	if err := x.remover.do(ctx, func(ctx context.Context) error {
		_, err := x.remover.rewriteBefore(ctx, m, store.Position{}, endOfTime, nil, x.retainedFrom(x.shop.ID))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	findNothing(t, x.engine)
	closeEngine(t, x.engine)
	x.open()
	x.expect(10)
	x.expire()
	if archived, indexed := x.stored(); archived != 10 || indexed != 10 {
		t.Errorf("after a kill the archive has %d events, the index %d, want 10", archived, indexed)
	}
	closeEngine(t, x.engine)
	testenv.Check(t, os.Remove(filepath.Join(x.dir, "index.db")))
	x.open()
	x.expect(10)
	findNothing(t, x.engine)
	closeEngine(t, x.engine)
}

// Backdated events that come in past the retention are removed too.
func TestRetentionRemovesBackdatedEvents(t *testing.T) {
	x := newExpiring(t)
	x.record(30)
	x.expire()
	x.record(30)
	x.expire()
	if archived, indexed := x.stored(); archived != 22 || indexed != 22 {
		t.Errorf("the archive has %d events, the index %d, want 22", archived, indexed)
	}
	closeEngine(t, x.engine)
}

// Backdated events that come in while expired ones are removed are neither half removed nor lost.
func TestExpiredEventsThatComeInMeanwhile(t *testing.T) {
	x := newExpiring(t)
	x.record(30)
	for range 2 {
		x.keep(10)
		testenv.Check(t, x.remover.setExpiring(x.shop.ID, x.retainedFrom(x.shop.ID))) // as after a kill: the archive is searched
		removed := make(chan struct{})
		var recorder sync.WaitGroup
		recorder.Go(func() {
			for {
				x.record(30)
				select {
				case <-removed:
					return
				default:
				}
			}
		})
		err := x.remover.do(ctx, x.remover.expire)
		close(removed)
		recorder.Wait()
		testenv.Check(t, err)
		x.keep(store.Forever)
		archiveAll(t, x.engine)
		if archived, indexed := x.stored(); archived != indexed {
			t.Fatalf("the archive has %d events, and the index %d", archived, indexed)
		}
	}
	findNothing(t, x.engine)
	closeEngine(t, x.engine)
}

// The operator's default is for merchants without a retention of their own. It stays until another one is given.
func TestDefaultRetention(t *testing.T) {
	x := newExpiring(t)
	x.record(30)
	x.keep(0)
	x.expect(30)
	for _, c := range []struct {
		given store.Retention
		want  int
	}{{0, 30}, {store.Forever, 30}, {5, 6}, {0, 6}, {3, 4}} { // fewer and fewer: what is past it may be removed at once
		closeEngine(t, x.engine)
		e, err := Open(x.dir, Options{Log: quiet, keepAll: true, Now: func() time.Time { return x.now }, Retention: c.given})
		testenv.Check(t, err)
		x.engine = e.(*engine)
		x.expect(c.want)
	}
	closeEngine(t, x.engine)
}

// A retention that is made longer brings no event back whose removal has begun, also after a kill while only the archive or
// only the index is without them. Nothing counts as damaged, and the removal is finished.
func TestALongerRetentionWhileEventsAreRemoved(t *testing.T) {
	for _, removed := range []string{"archive", "index"} {
		t.Run(removed, func(t *testing.T) {
			x := newExpiring(t)
			x.record(30)
			x.expireHalf(removed)
			for range 2 {
				x.keep(store.Forever)
				x.expect(11)
				findNothing(t, x.engine)
				closeEngine(t, x.engine)
				x.expectSound()
				x.open()
			}
			x.expire()
			x.record(30)
			x.expect(41)
			if err := x.Impaired(); err != nil || durable.Exists(filepath.Join(x.dir, "damaged.jsonl")) {
				t.Errorf("damage is named: %v", err)
			}
			closeEngine(t, x.engine)
			x.expectSound()
		})
	}
}

// expireHalf removes the expired events from the archive or the index only, as a removal that is cut off.
func (x *expiring) expireHalf(from string) {
	x.t.Helper()
	m, err := store.NewMerchantKey(x.shop.ID)
	testenv.Check(x.t, err)
	testenv.Check(x.t, x.remover.do(ctx, func(ctx context.Context) error {
		before := x.retainedFrom(x.shop.ID)
		testenv.Check(x.t, errors.Join(x.remover.setExpiring(x.shop.ID, before), x.archiver.moveTo(ctx, x.journal.Committed())))
		if from == "archive" {
			_, err := x.remover.rewriteBefore(ctx, m, store.Position{}, endOfTime, nil, before)
			return err
		}
		return x.index.withIndex(func(index *usedIndex) error {
			_, _, err := index.RemoveBefore(ctx, m, before)
			return err
		})
	}))
}

// A migration finishes a removal that was cut off: what it reads would not be what is counted.
func TestAMigrationFinishesARemoval(t *testing.T) {
	for _, removed := range []string{"archive", "index"} {
		x := newExpiring(t)
		x.record(30)
		x.expireHalf(removed)
		from := x.source()
		release, err := from.Hold(ctx)
		testenv.Check(t, err)
		read := 0
		testenv.Check(t, from.Events(ctx, 0, math.MaxUint64, func(*migrate.Event) error { read++; return nil }))
		usage, err := x.Usage(ctx, []store.MerchantID{x.shop.ID})
		if err != nil || read == 0 || usage[0].Events != uint64(read) {
			t.Errorf("removed from the %s: %d events are read, %+v are counted, %v", removed, read, usage, err)
		}
		release()
	}
}

// expectSound fails the test unless a verification of the closed directory finds nothing.
func (x *expiring) expectSound() {
	x.t.Helper()
	for _, f := range closedFindings(x.t, x.dir) {
		if f.Part != store.PartTags { // the tag of these events is made up
			x.t.Errorf("a verification finds %+v", f)
		}
	}
}

func TestADamagedFileOfExpiringMerchantsIsAWarning(t *testing.T) {
	dir, log := t.TempDir(), new(bytes.Buffer)
	logger := slog.New(slog.NewTextHandler(log, nil))
	if all := readExpiring(dir, logger); len(all) > 0 || log.Len() > 0 {
		t.Errorf("without the file: %v, %s", all, log)
	}
	testenv.Check(t, os.WriteFile(filepath.Join(dir, expiringFile), []byte(`{}1234`), 0o600))
	if all := readExpiring(dir, logger); len(all) > 0 || !strings.Contains(log.String(), "the file expiring is damaged") {
		t.Errorf("with a damaged file: %v, %s", all, log)
	}
}
