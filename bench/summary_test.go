package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"mtagd/store"
)

// BenchmarkSummary makes summaries of a merchant with 257 series (names of two tags) and events of 400 days, and prints the
// median and the 99th percentile of each kind. One kind has made-up names besides. The defaults take seconds. For the size
// that counts:
//
//	BENCH_EVENTS=10000000 go test -run '^$' -bench Summary -benchtime 1x -timeout 1h ./bench
func BenchmarkSummary(b *testing.B) {
	size := fromEnvironment(b, "BENCH_EVENTS", 200_000)
	plain := openShop(b, "plain", size)
	plain.fillSeries(b)
	flooded := openShop(b, "flooded first", size)
	flooded.flood(b, fromEnvironment(b, "BENCH_NAMES", 20_000), madeUpName)
	flooded.fill(b)
	for _, s := range []*shop{plain, flooded} {
		s.settle(b)
	}
	quarter := plain.start.AddDate(0, 0, 100)
	for range b.N {
		for _, s := range []*shop{plain, flooded} {
			for _, kind := range []struct {
				name  string
				query store.SummaryQuery
			}{
				{"total", store.SummaryQuery{}},
				{"days", store.SummaryQuery{Bucket: store.Daily}},
				{"days by tag", store.SummaryQuery{Bucket: store.Daily, By: store.GroupByTag}},
				{"days by name", store.SummaryQuery{Bucket: store.Daily, By: store.GroupByName}},
				{"days of 3 names", store.SummaryQuery{Bucket: store.Daily, By: store.GroupByName, Names: []string{"Purchase", "Refund", "Login"}}},
				{"months by name", store.SummaryQuery{Bucket: store.Monthly, By: store.GroupByName}},
				{"hours by name", store.SummaryQuery{Bucket: store.Hourly, By: store.GroupByName}},
				{"hours of 10 days by name", store.SummaryQuery{Bucket: store.Hourly, By: store.GroupByName, From: &quarter, To: new(quarter.AddDate(0, 0, 10))}},
			} {
				q := kind.query
				q.Merchants, q.Now = []store.MerchantID{s.tags[0].Merchant}, time.Now()
				const rounds = 100
				var wall, cpu []time.Duration
				for range rounds {
					var sum store.Summary
					took, err := timed(func() (err error) {
						sum, err = s.Summary(b.Context(), q)
						return err
					})
					if err != nil || sum.All.Total == 0 {
						b.Fatalf("%+v: %d events, %v", q, sum.All.Total, err)
					}
					wall, cpu = append(wall, took.wall), append(cpu, took.cpu)
				}
				slices.Sort(wall)
				slices.Sort(cpu)
				fmt.Printf("%-14s %-25s p50 %9v p99 %9v  (CPU: %9v %9v)\n", s.kind, kind.name, wall[rounds/2].Round(time.Microsecond),
					wall[rounds*99/100].Round(time.Microsecond), cpu[rounds/2].Round(time.Microsecond), cpu[rounds*99/100].Round(time.Microsecond))
			}
		}
	}
}

// fillSeries records events of 257 series: 129 names of one tag, and 128 of the other. 20 % are backdated.
func (s *shop) fillSeries(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	s.record(b, s.size, func(n int) store.Mark {
		at := n
		if n%5 == 0 {
			at = rng.IntN(n + 1)
		}
		series := rng.IntN(257)
		m := mark(s.tags[series%2], n, s.start.Add(time.Duration(at)*s.step))
		m.Name = Names[series/2%len(Names)]
		if more := series / 2 / len(Names); more > 0 {
			m.Name = fmt.Sprintf("%s%d", m.Name, more)
		}
		return m
	})
}
