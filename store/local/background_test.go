package local

import (
	"testing"
	"testing/synctest"
	"time"

	"mtagd/store"
)

// Work gives way to whoever asks for events, not only to those that come in.
func TestPagesAndSummariesAreRequests(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	for name, ask := range map[string]func() error{
		"page": func() error {
			_, err := e.Events(ctx, store.Query{Merchant: store.NewMerchantID(), Limit: 1})
			return err
		},
		"summary": func() error { _, err := e.Summary(ctx, store.SummaryQuery{}); return err },
	} {
		e.background.lastRequest.Store(0)
		if err := ask(); err != nil || e.background.lastRequest.Load() == 0 {
			t.Errorf("a %s is not noted (error: %v)", name, err)
		}
	}
}

// Sleeps stand for work: the clock is not real.
func TestWorkPausesForRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackground(t.Context(), false)
		w := packWork
		p := b.pacer(t.Context(), packWork)
		p.work = func() work { return w }
		paused := func(worked time.Duration) time.Duration {
			time.Sleep(worked)
			from := time.Now()
			p.pause()
			return time.Since(from)
		}
		if got := paused(8 * time.Millisecond); got != 0 {
			t.Errorf("with no requests it pauses for %v", got)
		}
		b.note()
		if got := paused(pieceOfWork / 2); got != 0 {
			t.Errorf("after too little work it pauses for %v", got)
		}
		if got, want := paused(7*time.Millisecond), 3*(7*time.Millisecond+pieceOfWork/2); got != want {
			t.Errorf("with a quarter of a processor it pauses for %v, want %v", got, want)
		}
		if got, want := paused(50*time.Millisecond), 3*longestPiece; got != want {
			t.Errorf("after 50 ms it pauses for %v, want %v", got, want)
		}
		b.note()
		w.share = 400
		if got := paused(8 * time.Millisecond); got != 0 {
			t.Errorf("when much waits it pauses for %v", got)
		}
		w.share = 80
		p.owed = -2 * time.Millisecond // the last pause was longer than it should have been
		if got := paused(4 * time.Millisecond); got != 0 {
			t.Errorf("after a long pause it pauses for %v", got)
		}
		if got, want := paused(8*time.Millisecond), time.Millisecond; got != want {
			t.Errorf("when the long pause is made up for, it pauses for %v, want %v", got, want)
		}
		w.share = 25
		time.Sleep(quietTime)
		p.resume()
		if got := paused(8 * time.Millisecond); got != 0 {
			t.Errorf("after the last request it pauses for %v", got)
		}
	})
}
