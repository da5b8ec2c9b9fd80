package backup

import (
	"log/slog"
	"time"
)

// Options are what a backup can be told.
type Options struct {
	Full         bool          // make a base
	Certificates bool          // back up certificates too
	Recipients   []string      // encrypt for these age recipients; empty: do not encrypt
	Keep         time.Duration // remove points that are older; 0: keep all
	Small        bool          // one of a backup every few seconds: a point only when there is something new
	Fold         bool          // build on the newest point that is not small

	Progress func(done, total int64) // bytes; may be nil. A total of 0 is unknown
	Log      *slog.Logger
	Now      func() time.Time
}
