package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi/delivery"
	"mtagd/store"
)

// deliveries is a service with destinations that are local sinks.
type deliveries struct {
	store.Engine
	*delivery.Service
	merchant     store.Merchant
	destinations []delivery.Destination
	arrived      atomic.Int64 // events
	recorded     int
}

func openDeliveries(b *testing.B, destinations, batch int, paused bool) *deliveries {
	b.Helper()
	d := &deliveries{Engine: openEngine(b)}
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	sink := &fasthttp.Server{MaxRequestBodySize: 16 << 20, Handler: func(ctx *fasthttp.RequestCtx) {
		d.arrived.Add(int64(bytes.Count(ctx.Request.Body(), []byte(`"eventId"`))))
	}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() { _ = sink.Serve(listener) }() // until Shutdown
	b.Cleanup(func() { must(sink.Shutdown()) })
	tag := addTag(b, d.Engine)
	d.merchant, err = d.Engine.Merchant(b.Context(), tag.Merchant)
	must(err)
	keys, err := delivery.OpenKeyring(filepath.Join(b.TempDir(), "key"))
	must(err)
	d.Service = delivery.Open(delivery.Config{Engine: d.Engine, Keys: keys, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Log: slog.New(slog.DiscardHandler), Now: time.Now})
	b.Cleanup(func() { must(d.Service.Close()) })
	for range destinations {
		one, _, err := d.Create(b.Context(), d.merchant, delivery.Change{Type: new("webhook"), Paused: &paused,
			Settings: json.RawMessage(fmt.Sprintf(`{"url":"http://%s","batchSize":%d}`, listener.Addr(), batch))})
		must(err)
		d.destinations = append(d.destinations, one)
	}
	return d
}

func (d *deliveries) record(b *testing.B, n int) {
	marks := make([]store.Mark, n)
	for i := range marks {
		marks[i] = mark(&d.merchant.Tags[0], d.recorded, time.Now())
		d.recorded++
	}
	if err := d.Record(b.Context(), marks); err != nil {
		b.Error(err)
	}
}

func (d *deliveries) await() {
	for d.arrived.Load() < int64(d.recorded*len(d.destinations)) {
		time.Sleep(100 * time.Microsecond)
	}
}

// BenchmarkDeliver delivers b.N events to each of five destinations in batches of 500, while 10,000 events a second come in, which they get
// too. An operation is an event at one of them. The processor time is that of all: engine, delivery, sink.
func BenchmarkDeliver(b *testing.B) {
	d := openDeliveries(b, 5, 500, true)
	for left := b.N/5 + 1; left > 0; left -= 1000 {
		d.record(b, min(left, 1000))
	}
	before := processorTime(b)
	b.ResetTimer()
	for _, one := range d.destinations {
		if _, _, err := d.Update(b.Context(), d.merchant, one.ID, delivery.Change{Paused: new(false)}); err != nil {
			b.Fatal(err)
		}
	}
	began, backlog := time.Now(), d.recorded
	for d.arrived.Load() < int64(backlog*len(d.destinations)) {
		if due := int(10_000 * time.Since(began).Seconds()); due > d.recorded-backlog {
			d.record(b, due-(d.recorded-backlog))
		}
		time.Sleep(time.Millisecond)
	}
	arrived := float64(d.arrived.Load())
	b.ReportMetric(arrived/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/arrived, "cpu-µs/event")
	b.StopTimer()
	d.await()
}

// BenchmarkDeliverAtRest is how long an event takes from its commit to the sink's request when nothing else happens.
func BenchmarkDeliverAtRest(b *testing.B) {
	d := openDeliveries(b, 1, 1, false)
	d.record(b, 1)
	d.await()
	var lags []time.Duration
	for range b.N {
		time.Sleep(5 * time.Millisecond) // at rest
		d.record(b, 1)
		committed := time.Now()
		d.await()
		lags = append(lags, time.Since(committed))
	}
	slices.Sort(lags)
	b.ReportMetric(float64(lags[len(lags)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(lags[len(lags)*99/100].Microseconds())/1000, "p99-ms")
}
