package bench

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local"
)

// event is the JSON of the n-th event.
func event(n int) []byte { return AppendEvent(nil, uint64(n), Names[n%len(Names)], time.Time{}, false) }

// mark is the n-th event in the form that the engine records.
func mark(tag *store.Tag, n int, at time.Time) store.Mark {
	return store.Mark{
		Merchant: tag.Merchant,
		Tag:      tag.ID,
		Identity: store.Identity{MUID: store.MUID(fmt.Sprintf("4be0643f-1d98-473b-97cd-%012d", n%users))},
		Name:     Names[n%len(Names)],
		Time:     at,
		Raw:      event(n),
	}
}

// openEngine opens an engine and closes it after the benchmark.
func openEngine(b *testing.B) store.Engine {
	b.Helper()
	e, err := local.Open(b.TempDir(), local.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	})
	return e
}

// addTag makes a merchant with a client-side tag.
func addTag(b *testing.B, e store.Engine) *store.Tag {
	b.Helper()
	ctx := context.Background()
	partner, err := e.AddPartner(ctx, "Partner")
	if err != nil {
		b.Fatal(err)
	}
	merchant, err := e.AddMerchant(ctx, partner.ID, store.NewMerchant{Name: "Shop"})
	if err != nil {
		b.Fatal(err)
	}
	tag, _, err := e.GenerateTag(ctx, merchant.ID, store.ClientSide, "")
	if err != nil {
		b.Fatal(err)
	}
	return &tag
}

// callers divides b.N operations among n goroutines, on any number of cores. do gets the number of its goroutine.
func callers(b *testing.B, n int, do func(caller int) error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	b.ResetTimer()
	for caller := range n {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				if err := do(caller); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
}

// perSecond reports the events per second, when each operation records several events.
func perSecond(b *testing.B, eventsPerOp int) {
	b.ReportMetric(float64(b.N*eventsPerOp)/b.Elapsed().Seconds(), "events/s")
}
