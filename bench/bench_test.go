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

// names are the event names of all benchmarks.
var names = [...]string{
	"PageView", "ViewContent", "ViewItem", "ViewCart", "AddToCart", "RemoveFromCart", "AddToWishlist",
	"BeginCheckout", "AddShippingInfo", "AddPaymentInfo", "Purchase", "Refund", "Search", "Share", "Login",
	"Signup", "Subscribe", "Lead", "Contact", "NewsletterOpened",
}

const eventSize = 300 // bytes of an event's JSON

// event is the JSON of the n-th event.
func event(n int) []byte {
	b := fmt.Appendf(nil, `{"event":%q,"muid":"4be0643f-1d98-473b-97cd-%012d","event_source":"server","session":"%016x","value":%d.5,"currency":"EUR","description":"`,
		names[n%len(names)], n%100_000, uint64(n)*0x9e3779b97f4a7c15, n%1000)
	for len(b) < eventSize-2 {
		b = append(b, "comfortable shoes for long walks "[n%7+len(b)%26])
	}
	return append(b, `"}`...)
}

// mark is the n-th event as the engine takes it.
func mark(tag *store.Tag, n int, at time.Time) store.Mark {
	return store.Mark{
		Merchant: tag.Merchant,
		Tag:      tag.ID,
		Identity: store.Identity{MUID: store.MUID(fmt.Sprintf("4be0643f-1d98-473b-97cd-%012d", n%100_000))},
		Name:     names[n%len(names)],
		Time:     at,
		Raw:      event(n),
	}
}

// openEngine opens an engine that is closed after the benchmark.
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
	merchant, err := e.AddMerchant(ctx, partner.ID, "Shop", "")
	if err != nil {
		b.Fatal(err)
	}
	tag, _, err := e.GenerateTag(ctx, merchant.ID, store.ClientSide, "")
	if err != nil {
		b.Fatal(err)
	}
	return &tag
}

// callers runs b.N operations from a fixed number of goroutines, whatever the number of cores is. do is called with
// the number of its caller.
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

// perSecond reports events per second, where an operation records several.
func perSecond(b *testing.B, eventsPerOp int) {
	b.ReportMetric(float64(b.N*eventsPerOp)/b.Elapsed().Seconds(), "events/s")
}
