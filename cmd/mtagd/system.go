package main

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/partnerapi/console"
	"mtagd/store"
	"mtagd/store/local/space"
)

// diskMetrics are the metrics of the space that the parts of the data directory take, and have. Each part may be on a disk
// of its own. A database is the part "store", of which the free space is known.
type diskMetrics struct {
	parts  map[string]string // files and directories, by what they hold; none with a database
	engine store.Engine

	mu       sync.Mutex
	used     map[string]float64 // bytes on the disk
	measured time.Time
}

// usedInterval is how old the used bytes may be. To measure them, each file is looked at, and a certificate is several.
const usedInterval = time.Minute

var (
	freeDesc = prometheus.NewDesc("mtagd_disk_free_bytes",
		"Free space on the disk of a part of the data directory: journal (events/), archive, index, control, certificates. With --store only store: what is left of --store-size.", []string{"part"}, nil)
	usedDesc = prometheus.NewDesc("mtagd_disk_used_bytes",
		"Space that a part of the data directory takes on its disk; up to a minute old.", []string{"part"}, nil)
	reserveDesc = prometheus.NewDesc("mtagd_disk_reserve_bytes",
		"Free space below which events are refused.", nil, nil)
)

func (d *diskMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- freeDesc
	to <- usedDesc
	to <- reserveDesc
}

// Collect implements prometheus.Collector. It leaves out parts that do not exist, and what cannot be measured.
func (d *diskMetrics) Collect(to chan<- prometheus.Metric) {
	for part, path := range d.parts {
		if free, err := space.Free(path); err == nil {
			to <- prometheus.MustNewConstMetric(freeDesc, prometheus.GaugeValue, float64(free), part)
		}
	}
	if len(d.parts) == 0 {
		to <- prometheus.MustNewConstMetric(freeDesc, prometheus.GaugeValue, float64(d.engine.FreeSpace()), "store")
	}
	for part, used := range d.usedBytes() {
		to <- prometheus.MustNewConstMetric(usedDesc, prometheus.GaugeValue, used, part)
	}
	to <- prometheus.MustNewConstMetric(reserveDesc, prometheus.GaugeValue, reserve)
}

func (d *diskMetrics) usedBytes() map[string]float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); now.Sub(d.measured) >= usedInterval {
		d.used, d.measured = map[string]float64{}, now
		for part, path := range d.parts {
			if used, err := usedBytes(path); err == nil {
				d.used[part] = used
			}
		}
	}
	return maps.Clone(d.used)
}

// view returns the space of each part, in the order of their names. It leaves out parts that do not exist.
func (d *diskMetrics) view() (disks []console.Disk) {
	used := d.usedBytes()
	for _, part := range slices.Sorted(maps.Keys(d.parts)) {
		disk, err := space.OfDisk(d.parts[part])
		if err == nil {
			disks = append(disks, console.Disk{Part: part, Free: uint64(disk.Free), Total: uint64(disk.Size), Used: uint64(used[part])})
		}
	}
	return disks
}

// usedBytes returns the space that a file, or all files in a directory, take on the disk. Files just deleted do not count.
func usedBytes(path string) (bytes float64, err error) {
	err = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}
		switch {
		case err == nil:
			bytes += float64(info.Sys().(*syscall.Stat_t).Blocks * 512) // not the size: the logs have holes
		case name == path || !errors.Is(err, fs.ErrNotExist):
			return err
		}
		return nil
	})
	return bytes, err
}

// rates remembers the counters of the last minutes, for operators without Prometheus. The counters have a registry of their
// own, because gathering all metrics costs much more.
type rates struct {
	counters *prometheus.Registry // requests to the front door, and refused ones

	mu      sync.Mutex
	samples []sample // oldest first
}

// sample is what was counted since the start.
type sample struct {
	at      time.Time
	events  uint64 // recorded
	refused map[string]uint64
}

const (
	sampleEvery = 10 * time.Second
	ratesOver   = 5 * time.Minute
)

func newRates() *rates { return &rates{counters: prometheus.NewRegistry()} }

func (r *rates) run(ctx context.Context) {
	for {
		r.add(r.take(time.Now()))
		if store.Sleep(ctx, sampleEvery) != nil {
			return
		}
	}
}

// add adds a sample, and forgets those that are too old.
func (r *rates) add(s sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, s)
	for s.at.Sub(r.samples[0].at) > ratesOver {
		r.samples = r.samples[1:]
	}
}

// take reads the counters. What cannot be read is left out.
func (r *rates) take(at time.Time) sample {
	s := sample{at: at, refused: map[string]uint64{}}
	families, _ := r.counters.Gather()
	for _, family := range families {
		name := family.GetName()
		if name != "mtagd_events_total" && name != "mtagd_refused_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			n := uint64(metric.GetCounter().GetValue())
			for _, label := range metric.GetLabel() {
				switch {
				case label.GetName() == "outcome" && label.GetValue() == "recorded":
					s.events += n
				case label.GetName() == "cause":
					s.refused[label.GetValue()] += n
				}
			}
		}
	}
	return s
}

// since returns what was counted from the oldest sample to now.
func (r *rates) since(now time.Time) console.Rates {
	last := r.take(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) == 0 {
		return console.Rates{}
	}
	first := r.samples[0]
	shown := console.Rates{Over: last.at.Sub(first.at), Events: last.events - first.events, Refused: map[string]uint64{}}
	for cause, n := range last.refused {
		shown.Refused[cause] = n - first.refused[cause]
	}
	return shown
}
