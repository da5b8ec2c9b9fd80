package storetest

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store"
)

const (
	benchEvents = 100_000
	benchBody   = 300 // bytes
)

// Bench measures what the service does most: record, resolve, list.
func Bench(b *testing.B, open Open) {
	body := append(bytes.Repeat([]byte(" "), benchBody-2), "{}"...)
	users := func(n int) store.Identity {
		return who(store.MUID(fmt.Sprintf("user-%d", n)), email(fmt.Sprintf("%d@example.com", n)))
	}
	event := func(m store.MerchantID, tag store.TagID, n int) store.Mark {
		e := mark(m, tag, store.MUID(fmt.Sprintf("user-%d", n%1000)))
		e.Name = fmt.Sprintf("Event%d", n%20)
		e.Time = start.Add(time.Duration(n) * time.Second)
		e.Raw = body
		return e
	}

	b.Run("record", func(b *testing.B) {
		bed := newBed(b, open)
		m, tag := bed.shop()
		var n atomic.Int64
		b.SetParallelism(128)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := bed.Record([]store.Mark{event(m, tag, int(n.Add(1)))}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})

	full := newBed(b, open)
	m, tag := full.shop()
	for n := 0; n < benchEvents; {
		marks := make([]store.Mark, 0, store.MaxBatchEvents)
		for range store.MaxBatchEvents {
			marks = append(marks, event(m, tag, n))
			n++
		}
		full.record(marks)
	}
	for n := range 1000 {
		full.resolve(m, users(n))
	}

	b.Run("resolve", func(b *testing.B) {
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			id := users(n % 1000)
			id.MUID = ""
			if muid, err := full.Resolve(m, id); err != nil || muid == "" {
				b.Fatal(muid, err)
			}
		}
	})

	middle := start.Add(benchEvents / 2 * time.Second)
	for _, list := range []struct {
		name  string
		query store.Query
	}{
		{"list/first page", store.Query{SortBy: store.ByTime, Limit: 12}},
		{"list/middle page", store.Query{SortBy: store.ByTime, Offset: benchEvents / 2, Limit: 12}},
		{"list/last page", store.Query{SortBy: store.ByTime, Offset: benchEvents - 12, Limit: 12}},
		{"list/names", store.Query{SortBy: store.ByTime, Names: []string{"Event3", "Event7"}, Offset: benchEvents / 20, Limit: 12}},
		{"list/range", store.Query{SortBy: store.ByTime, From: middle, To: middle.Add(time.Hour), Limit: 12}},
		{"list/tag", store.Query{SortBy: store.ByTime, Tag: tag, Offset: benchEvents / 2, Limit: 12}},
		{"list/by name", store.Query{SortBy: store.ByName, Asc: true, Offset: benchEvents / 2, Limit: 12}},
		{"list/100 of one tag, names and range", store.Query{
			SortBy: store.ByName, Tag: tag, Names: []string{"Event1", "Event2", "Event3"}, From: start, To: middle, Offset: 1000, Limit: 100,
		}},
	} {
		b.Run(list.name, func(b *testing.B) {
			list.query.Merchant = m
			b.ReportAllocs()
			for b.Loop() {
				page, err := full.Events(b.Context(), list.query)
				if err != nil || len(page.Events) != list.query.Limit {
					b.Fatal(len(page.Events), err)
				}
			}
		})
	}
}
