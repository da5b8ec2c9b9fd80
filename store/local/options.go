package local

import (
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/local/journal"
)

// MinFree is how many bytes of the disk must be free: events are refused before less is.
const MinFree = journal.MinFree

// Options are an engine's inputs besides its directory.
type Options struct {
	Log *slog.Logger     // nil: slog.Default
	Now func() time.Time // nil: time.Now

	Metrics prometheus.Registerer // the engine registers its metrics here; nil: they are not exported

	// Retention is how long events of merchants without a retention of their own are kept. 0: as when the engine was last
	// opened with another value, at first for ever.
	Retention store.Retention

	keepAll    bool // nothing is removed in the background
	unfinished bool // the directory is being filled: CheckFinished is left out

	// For tests. 0 and false: the default.
	ArchiveRun  int                          // bytes of events that are archived together, without pauses
	MaxSeries   int                          // rank.LimitSeries
	eager       bool                         // removes what is left of deleted merchants without removal.Delay
	unhealed    bool                         // what is damaged is not replaced in the background
	Broken      func(store.MerchantID) error // returns an error to keep a merchant's events from removal; for "", the files from a purge
	AuditLimits store.AuditLimits
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Broken == nil {
		o.Broken = func(store.MerchantID) error { return nil }
	}
	return o
}

// Parts returns the paths of the engine's files in dir, by what they hold.
func Parts(dir string) map[string]string {
	return map[string]string{
		"control": filepath.Join(dir, "control.db"),
		"journal": filepath.Join(dir, "events"),
		"archive": filepath.Join(dir, "archive"),
		"index":   filepath.Join(dir, "index.db"),
	}
}
