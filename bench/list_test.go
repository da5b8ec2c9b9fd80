package bench

import (
	"fmt"
	"testing"
	"time"

	"mtagd/store"
)

// BenchmarkList lists one page of a merchant's events, out of few and out of many. The times should be about equal.
// The larger size takes some seconds to prepare; -short skips it.
func BenchmarkList(b *testing.B) {
	for _, size := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("events=%d", size), func(b *testing.B) {
			if testing.Short() && size > 10_000 {
				b.Skip("-short")
			}
			engine := openEngine(b)
			tag := addTag(b, engine)
			start := time.Now().AddDate(0, 0, -400)
			step := 400 * 24 * time.Hour / time.Duration(size)
			for n := 0; n < size; {
				marks := make([]store.Mark, 0, store.MaxBatchEvents)
				for range store.MaxBatchEvents {
					marks = append(marks, mark(tag, n, start.Add(time.Duration(n)*step)))
					n++
				}
				if err := engine.Record(b.Context(), marks); err != nil {
					b.Fatal(err)
				}
			}
			quarter := start.Add(time.Duration(size/4) * step)
			for _, list := range []struct {
				name  string
				query store.Query
			}{
				{"first", store.Query{SortBy: store.ByTime}},
				{"deep", store.Query{SortBy: store.ByTime, Offset: size / 3}},
				{"names", store.Query{SortBy: store.ByTime, Names: []string{"Purchase", "Refund"}, Offset: size / 30}},
				{"byname", store.Query{SortBy: store.ByName, Asc: true, Offset: size / 3}},
				{"range", store.Query{SortBy: store.ByTime, From: &quarter, To: new(quarter.AddDate(0, 0, 100)), Offset: size / 8}},
				{"all", store.Query{
					SortBy: store.ByName, Tag: tag.ID, Names: []string{"Login", "Purchase", "Refund"}, From: &quarter, To: new(quarter.AddDate(0, 0, 100)), Offset: size / 100,
				}},
			} {
				for _, limit := range []int{12, 100} {
					b.Run(fmt.Sprintf("page=%s/limit=%d", list.name, limit), func(b *testing.B) {
						q := list.query
						q.Merchant, q.Limit = tag.Merchant, limit
						b.ReportAllocs()
						for b.Loop() {
							page, err := engine.Events(b.Context(), q)
							if err != nil || len(page.Events) != limit {
								b.Fatalf("%d events, %v", len(page.Events), err)
							}
						}
					})
				}
			}
		})
	}
}
