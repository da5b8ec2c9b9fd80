package local

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/backup"
	"mtagd/store/testenv"
)

// A point under load has every event that was acknowledged before the backup began, and no part of a commit.
func TestAPointUnderLoad(t *testing.T) {
	testenv.NotShort(t, "time")
	dir := t.TempDir()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	m := store.NewMerchantID()
	var acknowledged atomic.Int64
	src := SourceOf(e)
	b := backup.New(d, src)
	for i := range 4 {
		const workers, calls = 4, 200 // as many as a point can be restored from in seconds
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
		result, err := b.Run(ctx, backup.Options{Log: quiet, Now: time.Now, Small: i > 1})
		most := acknowledged.Load() + workers*10
		close(stop)
		load.Wait()
		testenv.Check(t, err)
		total := int64(everything(t, restored(t, d, result.Point), m)[0].Total)
		if total < least || total > most || total%10 != 0 {
			t.Errorf("point %d has %d events, want %d to %d in whole batches", i, total, least, most)
		}
	}
	last, err := b.Run(ctx, backup.Options{Log: quiet, Now: time.Now, Small: true})
	testenv.Check(t, errors.Join(err, src.Close()))
	if got, want := everything(t, restored(t, d, last.Point), m), everything(t, e, m); !reflect.DeepEqual(got, want) {
		t.Errorf("the last point has %d events, want %d", got[0].Total, want[0].Total)
	}
}

var underLoad = flag.Int("underload", 1, "how many chains of backups TestDrillAPointHasExactlyWhatWasAcknowledged makes")

// Incremental backups are taken under full load. A restored point has each event that was acknowledged before the backup began,
// once and byte for byte. It has no event of a call that began after the backup had ended, and of each call all or nothing.
func TestDrillAPointHasExactlyWhatWasAcknowledged(t *testing.T) {
	testenv.Drill(t)
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
		src := SourceOf(e)
		b := backup.New(d, src)
		for i := range 4 {
			least := calls(&done)
			result, err := b.Run(ctx, backup.Options{Log: quiet, Now: time.Now, Small: i > 1})
			testenv.Check(t, err)
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
		testenv.Check(t, src.Close())
		closeEngine(t, e)
	}
}
