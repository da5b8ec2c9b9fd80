// Package dataset makes events whose listings are known beforehand, sends them to a running server, and then times and
// checks listing queries.
//
// Read in this order:
//
//	listing.go  times queries and checks their answers
//	query.go    draws a random query, and knows what its answer must be
//	summary.go  the same for summaries, and pages of the feed
//	fill.go     sends the events of a dataset
//	client.go   the partner API
//	dataset.go  the formula that every event follows
package dataset

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"mtagd/bench/mtagbench/load"
)

// Listing is how long the queries of one kind took.
type Listing struct {
	Kind         string
	Large, Small *load.Histogram
}

// ListEachKind times n queries of each kind on both datasets in turns, and checks every answer.
func ListEachKind(ctx context.Context, api *Client, m *Manifest, n int) (all []Listing, err error) {
	for number, k := range kinds {
		l, err := timeBoth(ctx, api, m, k.name, n, func(d *Dataset, i int) (string, func([]byte) error) {
			q := k.draw(d, rand.New(rand.NewPCG(uint64(number), uint64(i))))
			return q.path, q.check
		})
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// SummarizeEachKind does the same for summaries, and for pages of the feed.
func SummarizeEachKind(ctx context.Context, api *Client, m *Manifest, n int) (all []Listing, err error) {
	for number, k := range summaryKinds {
		l, err := timeBoth(ctx, api, m, k.name, n, func(d *Dataset, i int) (string, func([]byte) error) {
			return k.draw(d, rand.New(rand.NewPCG(uint64(100+number), uint64(i))))
		})
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	feed, err := readFeed(ctx, api, m, n)
	return append(all, feed), err
}

// timeBoth times n requests on both datasets in turns, and checks every answer. draw makes the i-th request on a dataset.
func timeBoth(ctx context.Context, api *Client, m *Manifest, kind string, n int, draw func(d *Dataset, i int) (path string, check func([]byte) error)) (Listing, error) {
	l := Listing{Kind: kind, Large: load.NewHistogram(), Small: load.NewHistogram()}
	for i := range n {
		for _, side := range []struct {
			data *Dataset
			took *load.Histogram
		}{{&m.Large, l.Large}, {&m.Small, l.Small}} {
			path, check := draw(side.data, i)
			began := time.Now()
			body, err := api.ask("GET", path, nil)
			took := time.Since(began)
			if err != nil {
				return l, err
			}
			if err := check(body); err != nil {
				return l, fmt.Errorf("%s: %w", path, err)
			}
			side.took.Record(took)
		}
		if ctx.Err() != nil {
			return l, ctx.Err()
		}
	}
	return l, nil
}

// ListSteadily sends rate queries per second at fixed times, the kinds in turn, and reports how long each took from its
// intended time. It does not check answers, because new events may be arriving.
func ListSteadily(ctx context.Context, api *Client, d *Dataset, rate float64, duration time.Duration, report func(took time.Duration)) error {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	began := time.Now()
	for n := 0; ; n++ {
		intended := load.IntendedTime(n, rate)
		if intended >= duration {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(intended - time.Since(began)):
		}
		q := kinds[n%len(kinds)].draw(d, random)
		if _, err := api.ask("GET", q.path, nil); err != nil {
			return err
		}
		report(time.Since(began) - intended)
	}
}
