package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/local/control"
	"mtagd/store/local/space"
)

// openEngine opens the storage engine for the service, and creates it if the data directory is new. This file is the
// only one that names an engine.
func openEngine(data string, log *slog.Logger) (store.Engine, error) {
	engine, err := local.Open(data, local.Options{Log: log, Now: time.Now})
	if err != nil {
		return nil, openError(data, err)
	}
	return engine, nil
}

// sourceOf returns what backups of the engine read.
func sourceOf(engine store.Engine, data string, log *slog.Logger) *local.Source {
	return local.SourceOf(engine, data, local.Options{Log: log, Now: time.Now})
}

// diskMetrics are the metrics of the data directory's disk.
func diskMetrics(data string) []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mtagd_disk_free_bytes",
			Help: "Free space on the disk of the data directory.",
		}, func() float64 {
			free, err := space.Free(data)
			if err != nil {
				return math.NaN()
			}
			return float64(free)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mtagd_disk_reserve_bytes",
			Help: "Free space below which events are refused.",
		}, func() float64 { return local.MinFree }),
	}
}

// openControl opens the control data for an operator command, when no server has it open. Without control data in the
// directory it fails, so that a mistyped directory is noticed. Only when create is set and the directory is empty, it
// creates the data and says so on stderr.
func openControl(data string, create bool, stderr io.Writer) (operator.Control, error) {
	created, err := checkData(data, create)
	if err != nil {
		return nil, fmt.Errorf("data directory %s %w", data, err)
	}
	opened, err := local.OpenControl(data, local.Options{})
	if err != nil {
		return nil, openError(data, err)
	}
	if created {
		fmt.Fprintf(stderr, "mtagd: created a new store in the empty data directory %s\n", data)
	}
	return opened, nil
}

// openError adds the name of the data directory to an error.
func openError(data string, err error) error {
	if errors.Is(err, store.ErrInUse) {
		return fmt.Errorf("%s: %w", data, err) // its text says that this is a data directory
	}
	return fmt.Errorf("data directory %s: %w", data, err)
}

// checkData reports whether opening the data directory creates a store, or why the directory must not be opened.
func checkData(data string, create bool) (creates bool, err error) {
	found, err := control.Inspect(data)
	switch {
	case err != nil:
		return false, fmt.Errorf("cannot be read: %w", err)
	case found == control.NoDirectory:
		return false, errors.New("does not exist. Name the directory of your service with --data, or create the directory for a new one")
	case found == control.OtherFiles:
		return false, errors.New("contains other files, but no control.db. Name the directory of your service with --data")
	case found == control.Nothing && !create:
		return false, errors.New(`is empty. Name the directory of your service with --data, or create a partner first with "mtagd partner add"`)
	}
	return found == control.Nothing, nil
}
