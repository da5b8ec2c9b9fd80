package bench

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store"
)

// BenchmarkRecord measures the engine alone, from the call of Record to the synced commit.
func BenchmarkRecord(b *testing.B) {
	for _, c := range []struct{ callers, batch int }{{1, 1}, {64, 1}, {256, 1}, {1, 100}, {16, 100}} {
		b.Run(fmt.Sprintf("callers=%d/batch=%d", c.callers, c.batch), func(b *testing.B) {
			engine := openEngine(b)
			tag := addTag(b, engine)
			batches := make([][]store.Mark, c.callers)
			var n atomic.Int64
			for i := range batches {
				for range c.batch {
					batches[i] = append(batches[i], mark(tag, int(n.Add(1)), time.Now()))
				}
			}
			b.ReportAllocs()
			callers(b, c.callers, func(caller int) error { return engine.Record(b.Context(), batches[caller]) })
			perSecond(b, c.batch)
		})
	}
}

// BenchmarkResolve measures finding the muid of an email, for an event without a muid.
func BenchmarkResolve(b *testing.B) {
	const users = 1000
	engine := openEngine(b)
	merchant := addTag(b, engine).Merchant
	identities := make([]store.Identity, users)
	for i := range identities {
		identities[i].Add(store.Email, fmt.Sprintf("%d@example.com", i))
		linked := identities[i]
		linked.MUID = store.MUID(fmt.Sprintf("4be0643f-1d98-473b-97cd-%012d", i))
		if _, err := engine.Resolve(b.Context(), merchant, linked); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if muid, err := engine.Resolve(b.Context(), merchant, identities[n%users]); err != nil || muid == "" {
			b.Fatalf("muid %q, %v", muid, err)
		}
	}
}
