package postgres

import (
	"mtagd/store/local/codec"
	"time"
)

// positionOf returns the place of an event in the order of receipt. Ids and cursors are those of the embedded engine, so that they
// stay good when a service moves from one engine to the other.
func positionOf(seq int64, idx int16) codec.Position {
	return codec.Position{Seq: uint64(seq), Index: uint16(idx)}
}

func timeAt(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
