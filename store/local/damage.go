package local

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/journal"
)

// damageFile has a line for each damaged chunk or block that was found: a JSON object (note), between two line feeds, because
// the line before may have been cut short. What is served does not depend on it. It says what was lost, also when the index no
// longer knows the events.
const damageFile = "damaged.jsonl"

// note is what is known of a damaged chunk, a damaged block of the archive, or an archive that was repaired.
type note struct {
	Chunk     uint64             `json:"chunk"`
	Archived  string             `json:"archived,omitempty"` // of a block: its merchant and the id of its last event, whose chunk is Chunk
	Reason    string             `json:"reason"`
	FoundAt   time.Time          `json:"foundAt"`
	Events    uint64             `json:"events"` // 0: unknown, because the index did not have them
	Merchants []store.MerchantID `json:"merchants,omitempty"`
	From      time.Time          `json:"from,omitzero"`
	To        time.Time          `json:"to,omitzero"`
}

type noteKey struct {
	chunk    uint64
	archived string
}

func (n note) key() noteKey { return noteKey{n.Chunk, n.Archived} }

// damageLog is what an engine knows of its damaged chunks.
type damageLog struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	mu    sync.Mutex
	notes map[noteKey]note
}

// openDamage reads the notes of a data directory. A line that was cut short or damaged is skipped: the chunk is found again.
func openDamage(dir string, opt Options) (*damageLog, error) {
	d := &damageLog{path: filepath.Join(dir, damageFile), log: opt.Log, now: opt.Now, notes: map[noteKey]note{}}
	b, err := os.ReadFile(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, len(b)+1)
	for lines.Scan() {
		var n note
		if json.Unmarshal(lines.Bytes(), &n) == nil && n.Chunk != 0 {
			d.notes[n.key()] = n
		}
	}
	return d, lines.Err()
}

// metrics returns the metrics of the damage.
func (d *damageLog) metrics() []prometheus.Collector {
	count := func(of func(note) uint64) func() float64 {
		return func() float64 {
			d.mu.Lock()
			defer d.mu.Unlock()
			sum := uint64(0)
			for _, n := range d.notes {
				sum += of(n)
			}
			return float64(sum)
		}
	}
	return []prometheus.Collector{
		newGauge("mtagd_damaged_chunks", "Chunks of events that were found damaged.", count(func(note) uint64 { return 1 })),
		newGauge("mtagd_damaged_events", "Events in damaged chunks, as far as their number is known.", count(func(n note) uint64 { return n.Events })),
	}
}

// add notes a damaged chunk on disk and in the log, unless it is noted already.
func (d *damageLog) add(n note) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.notes[n.key()]; known {
		return nil
	}
	n.FoundAt = d.now().UTC()
	line, err := json.Marshal(n)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(d.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(slices.Concat([]byte("\n"), line, []byte("\n")))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	d.notes[n.key()] = n
	d.log.Error("a chunk of events is damaged: its events are lost, all others are served",
		"chunk", n.Chunk, "archived", n.Archived, "received", timeOf(int64(n.Chunk)), "reason", n.Reason,
		"events", n.Events, "merchants", n.Merchants, "from", n.From, "to", n.To)
	return nil
}

// isNoted reports whether a chunk was found damaged, and its events were taken out of the index.
func (d *damageLog) isNoted(seq uint64) bool { return d.has(noteKey{chunk: seq}) }

// isNotedBlock is isNoted for a block of the archive.
func (d *damageLog) isNotedBlock(block archive.Damage) bool {
	return d.has(noteOf(block).key())
}

func (d *damageLog) has(key noteKey) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, noted := d.notes[key]
	return noted
}

// noteOf returns what the archive knows of a damaged block.
func noteOf(d archive.Damage) note {
	return note{Chunk: d.Last.Seq, Archived: string(d.Merchant.ID()) + " " + string(d.Last.EventID()),
		Reason: fmt.Sprintf("cannot be read: %v", d.Err), Merchants: []store.MerchantID{d.Merchant.ID()}}
}

// isDamage reports whether an error says that events cannot be read.
func isDamage(err error) bool {
	_, chunks := errors.AsType[journal.DamagedChunks](err)
	_, blocks := errors.AsType[archive.Damaged](err)
	return chunks || blocks
}

// timeOf returns the time of µs since 1970.
func timeOf(µs int64) time.Time { return time.UnixMicro(µs).UTC() }

// shorts are the merchants of which an answer has read too few events, since the last verification.
type shorts struct {
	mu    sync.Mutex
	found map[store.MerchantKey]error
	count prometheus.Counter
}

func newShorts() *shorts {
	return &shorts{found: map[store.MerchantKey]error{}, count: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "mtagd_short_reads_total",
		Help: "Answers that failed because they found fewer events than the index counts.",
	})}
}

// note notes a short read, and returns the error of the answer.
func (s *shorts) note(m store.MerchantKey, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found[m] = err
	s.count.Inc()
	return fmt.Errorf("the answer is not complete: %w", err)
}

// all returns the short reads, sorted.
func (s *shorts) all() (found []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.found), func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
}

func (s *shorts) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.found)
}
