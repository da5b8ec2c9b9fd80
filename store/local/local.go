// Package local is the embedded engine: control data in bbolt, events and identities in Badger, under one data directory.
package local

import (
	"errors"
	"log/slog"
	"time"

	"mtagd/store"
)

// Options are an engine's inputs beside its directory.
type Options struct {
	Log *slog.Logger     // nil: slog.Default
	Now func() time.Time // nil: time.Now
}

// Open opens or creates the engine in dir.
func Open(dir string, opt Options) (store.Engine, error) { return nil, errors.New("not yet") }

// OpenControl opens the control data alone, for operator commands beside no server. It fails with ErrInUse
// when another process has it open.
func OpenControl(dir string, opt Options) (ControlStore, error) { return nil, errors.New("not yet") }

// ControlStore is the control data opened alone.
type ControlStore interface {
	store.Control
	Close() error
}

// ErrInUse is returned when another process has the data directory open.
var ErrInUse = errors.New("data directory is in use by another process")
