package groupcommit

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mtagd/store"
)

// One merchant sends batches on eight connections, others send single events. An event waits hardly longer than for two syncs, and the batches
// keep nearly all of their rate. The clock is synctest's, and the durations are those of the embedded engine, whose index takes longest.
func TestAnEventWaitsForFewMarksOfBatches(t *testing.T) {
	const (
		mark, index, parse = 700 * time.Nanosecond, 1700 * time.Nanosecond, 1500 * time.Microsecond
		toSync             = 120 * time.Microsecond
		queued             = 16 // groups that the index has not applied
		seconds            = 2
	)
	run := func(think time.Duration, events int) (p50, p99 time.Duration, marks int) {
		q := newIdleQueue()
		committed := make(chan int, queued)
		stop := false
		var waits []time.Duration
		var all, engine sync.WaitGroup
		engine.Go(func() {
			for n := range committed {
				time.Sleep(time.Duration(n) * index)
			}
		})
		engine.Go(func() {
			defer close(committed)
			timer := time.AfterFunc(time.Hour, q.Recheck)
			defer timer.Stop()
			for q.Next(timer) {
				n := 0
				for parts := q.Take(); len(parts) > 0; parts = q.Take() {
					before := n
					for _, p := range parts {
						n += p.To - p.From
					}
					time.Sleep(time.Duration(n-before) * mark)
				}
				time.Sleep(toSync)
				q.Synced(toSync)
				committed <- n
				q.Finish(nil)
			}
		})
		send := func(m, n int, before func(), after func(time.Duration)) {
			all.Go(func() {
				for marks := make([]store.Mark, n); !stop; {
					before()
					began := time.Now()
					if err := q.Record(t.Context(), merchant(m), marks); err != nil {
						t.Error(err)
					}
					after(time.Since(began))
				}
			})
		}
		var counting sync.Mutex
		parser := make(chan bool, 1) // synctest's clock does not go on beside a mutex that is waited for
		for range 8 {
			send(0, store.MaxBatchEvents, func() {
				parser <- true
				time.Sleep(parse)
				<-parser
			}, func(time.Duration) {
				counting.Lock()
				marks += store.MaxBatchEvents
				counting.Unlock()
			})
		}
		for range events {
			send(1, 1, func() { time.Sleep(think) }, func(took time.Duration) {
				counting.Lock()
				waits = append(waits, took)
				counting.Unlock()
			})
		}
		time.Sleep(seconds * time.Second)
		stop = true
		all.Wait()
		q.Close()
		engine.Wait()
		slices.Sort(waits)
		if len(waits) == 0 {
			return 0, 0, marks / seconds
		}
		return waits[len(waits)/2], waits[len(waits)*99/100], marks / seconds
	}
	synctest.Test(t, func(*testing.T) {
		_, _, alone := run(0, 0)
		for _, c := range []struct {
			think    time.Duration
			events   int
			p50, p99 time.Duration
			least    float64 // of the rate of the batches
		}{
			{100 * time.Microsecond, 1, 4 * toSync, 4 * toSync, 0.9},
			{100 * time.Microsecond, 16, 4 * toSync, 4 * toSync, 0.9},
			{7 * time.Millisecond, 1, 5 * toSync, 18 * toSync, 0.97}, // most arrive while the batches are alone
		} {
			p50, p99, marks := run(c.think, c.events)
			if share := float64(marks) / float64(alone); p50 > c.p50 || p99 > c.p99 || share < c.least {
				t.Errorf("%d connections that send every %v wait %v, %v; the batches have %.2f of their rate; want %v, %v, %.2f",
					c.events, c.think, p50, p99, share, c.p50, c.p99, c.least)
			}
		}
	})
}
