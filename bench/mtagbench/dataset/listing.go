// Package dataset makes events whose listings are known beforehand, sends them to a running server, and then times and
// checks listing queries.
//
// Read in this order:
//
//	listing.go  times queries and checks their answers
//	query.go    draws a random query, and knows what its answer must be
//	fill.go     sends the events of a dataset
//	client.go   the partner API
//	dataset.go  the formula that every event follows
package dataset

import (
	"context"
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
func ListEachKind(ctx context.Context, api *Client, m *Manifest, n int) ([]Listing, error) {
	var all []Listing
	for number, k := range kinds {
		l := Listing{Kind: k.name, Large: load.NewHistogram(), Small: load.NewHistogram()}
		for i := range n {
			for _, side := range []struct {
				data *Dataset
				took *load.Histogram
			}{{&m.Large, l.Large}, {&m.Small, l.Small}} {
				q := k.draw(side.data, rand.New(rand.NewPCG(uint64(number), uint64(i))))
				began := time.Now()
				body, err := api.ask("GET", q.path, nil)
				took := time.Since(began)
				if err == nil {
					err = q.check(body)
				}
				if err != nil {
					return nil, err
				}
				side.took.Record(took)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
		all = append(all, l)
	}
	return all, nil
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
