package local

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
)

// background shares the processors between requests and the work behind them. While requests come in, each kind of work
// has a share of one processor, which grows with what waits: it pauses between pieces.
type background struct {
	off         bool // nothing pauses
	stop        context.Context
	lastRequest atomic.Int64 // when the last one came, in ns since 1970
	purging     atomic.Bool  // the last step of an erasure runs, or waits for the end of a backup

	worked, paused *prometheus.CounterVec // by kind of work
}

// work is a kind of work in the background, and its share of one processor in percent.
type work struct {
	kind  string
	share int64

	// A busy machine makes a pause some milliseconds too long. Later pauses are shorter by that, up to credit in all. Without
	// it, work gets much less than its share on such a machine.
	credit time.Duration
}

var (
	packWork    = work{kind: "pack", share: 25}             // events of the log into the archive
	compactWork = work{kind: "compact", share: 25}          // the databases
	eraseWork   = work{"erase", 80, 100 * time.Millisecond} // events of persons and of deleted merchants: this should take a minute at most
	expireWork  = work{kind: "expire", share: 10}           // events that are past the retention
	backupWork  = work{kind: "backup", share: 25}
)

const (
	// pieceOfWork is how long work goes on between two pauses.
	pieceOfWork = 500 * time.Microsecond
	// longestPiece is how much of the time since the last pause counts as work. If more has passed, the machine was
	// busy, and most of the time was waiting.
	longestPiece = 20 * time.Millisecond
	// quietTime is how long no requests must have come in until work need not pause.
	quietTime = 100 * time.Millisecond
)

func newBackground(stop context.Context, off bool) *background {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"work"})
	}
	b := &background{
		off: off, stop: stop,
		worked: counter("mtagd_background_work_seconds_total", "Time that work in the background has taken between its pauses, by kind of work."),
		paused: counter("mtagd_background_pause_seconds_total", "Time that work in the background has paused for requests, by kind of work."),
	}
	for _, w := range []work{packWork, compactWork, eraseWork, expireWork, backupWork} {
		b.worked.WithLabelValues(w.kind)
		b.paused.WithLabelValues(w.kind)
	}
	return b
}

// newGauge returns a metric that value returns.
func newGauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

// oneIf is the value of a metric of what is or is not so.
func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (b *background) metrics() []prometheus.Collector {
	return []prometheus.Collector{b.worked, b.paused}
}

// note notes a request: events have come in, or somebody has asked for a page or a summary.
func (b *background) note() { b.lastRequest.Store(time.Now().UnixNano()) }

// pacer paces one piece of work after another.
type pacer struct {
	b              *background
	work           func() work // its share and credit may change
	ctx            context.Context
	from           time.Time
	since          time.Duration // worked since the last pause
	owed           time.Duration // how long the next pause should be; below 0, earlier ones were too long
	worked, paused prometheus.Counter
}

// pacer returns a new pacer for work that begins now. Its pauses end with ctx.
func (b *background) pacer(ctx context.Context, w work) *pacer {
	return &pacer{b: b, work: func() work { return w }, ctx: ctx, from: time.Now(),
		worked: b.worked.WithLabelValues(w.kind), paused: b.paused.WithLabelValues(w.kind)}
}

// pace returns the pause of a new pacer.
func (b *background) pace(w work) func() { return b.pacer(b.stop, w).pause }

// pause is called between pieces of work.
func (p *pacer) pause() {
	now := time.Now()
	p.since += now.Sub(p.from)
	if p.from = now; p.since < pieceOfWork {
		return
	}
	p.worked.Add(p.since.Seconds())
	w := p.work()
	share := min(w.share, 100)
	p.owed += min(p.since, longestPiece) * time.Duration(100-share) / time.Duration(share)
	p.since = 0
	if p.b.off || share == 100 || now.UnixNano()-p.b.lastRequest.Load() > int64(quietTime) {
		p.owed = 0
		runtime.Gosched()
		return
	}
	if p.owed <= 0 {
		return
	}
	_ = store.Sleep(p.ctx, p.owed) // the caller looks at its context
	p.resume()
	paused := p.from.Sub(now)
	p.owed = max(p.owed-paused, -w.credit)
	p.paused.Add(paused.Seconds())
}

// resume says that the time since the last pause was not work.
func (p *pacer) resume() { p.from = time.Now() }
