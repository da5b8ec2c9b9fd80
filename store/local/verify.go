package local

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/control"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
	"mtagd/store/rules"
)

// Verify implements store.Engine. Damaged chunks that it finds are noted. Close ends it.
func (r *reader) Verify(ctx context.Context, v store.Verification) (store.Verified, error) {
	ctx, done, err := r.beginReading(ctx)
	if err != nil {
		return store.Verified{}, err
	}
	defer done()
	x := r.index.use()
	defer x.users.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(x.replaced, cancel)() // else the old file would take space until the verification ends
	indexWrong := false
	found := v.Found
	v.Found = func(f store.Finding) {
		indexWrong = indexWrong || f.Part == store.PartIndex
		found(f)
	}
	w := verifier{Verification: v, ctx: ctx, stored: r.stored, control: r.control, index: x.Index, now: r.now(), live: true, since: r.moment()}
	err = w.verify()
	if indexWrong || w.disagree {
		r.index.startRebuild(x.Index, fmt.Errorf("%w: a verification has found damage", codec.ErrCorrupt))
	}
	if err == nil {
		err = r.noteChunks(ctx, x.Index, w.damaged)
	}
	if err == nil {
		err = r.noteBlocks(ctx, x.Index, w.blocks)
	}
	return w.counts, err
}

// VerifyClosed verifies the data in dir while no engine has it open, like Engine.Verify. It changes nothing. What cannot be
// opened is a finding. It fails with store.ErrInUse when another process has the data open.
func VerifyClosed(ctx context.Context, dir string, v store.Verification) (_ store.Verified, err error) {
	w := verifierOfClosed(ctx, v)
	defer func() { err = errors.Join(err, w.close()) }()
	unopened := func(part store.Part, where string, err error) {
		v.Found(store.Finding{Part: part, Where: where, Problem: "cannot be opened: " + err.Error()})
	}
	opt := Options{}.withDefaults()
	w.expiring = readExpiring(dir, opt.Log)
	if w.control, err = control.OpenReadOnly(dir); errors.Is(err, store.ErrInUse) {
		return w.counts, err
	} else if err != nil {
		unopened(store.PartControl, "control.db", err)
	} else {
		parts, err := readGeneration(dir, opt.Log)
		if err == nil {
			err = parts.compare(w.control)
		}
		if err != nil {
			v.Found(store.Finding{Part: store.PartControl, Where: dir, Problem: err.Error()})
		}
		if _, err := os.Stat(filepath.Join(dir, "events")); errors.Is(err, os.ErrNotExist) {
			return w.counts, w.verify() // no server has run yet
		}
	}
	options := journal.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now}
	if w.journal, err = journal.OpenReadOnly(filepath.Join(dir, "events"), options); err != nil {
		unopened(store.PartEvents, "events", err)
	}
	if w.damage, err = openDamage(dir, opt); err != nil {
		return w.counts, err
	}
	w.archive, err = archive.OpenReadOnly(Parts(dir)["archive"], options.Log)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // an earlier version had none
		unopened(store.PartEvents, "archive", err)
		w.hidden = true
	}
	w.index, err = rank.OpenReadOnly(filepath.Join(dir, "index.db"))
	if _, ok := errors.AsType[codec.UnknownFormat](err); err != nil && !errors.Is(err, os.ErrNotExist) && !ok { // else the next start builds it
		unopened(store.PartIndex, "index.db", err)
	}
	return w.counts, w.verify()
}

// verifier verifies the parts, and compares them. A part that could not be opened is nil.
//
// Each event that the index has stored must be in the journal or the archive, and each event there that the index covers
// must be in the index. To compare in any order and little memory, the verifier sums the hashes of each merchant's events
// on both sides, and of parts of them (buckets). Where the sums differ, it looks for the events (compare.go).
type verifier struct {
	store.Verification
	*stored
	ctx     context.Context
	control *control.Data
	index   *rank.Index
	now     time.Time
	live    bool   // an engine has the data open: events that only the index has are noted, and taken out of it
	since   uint64 // the moment when the verification began (stored.unchanged)

	counts   store.Verified
	boundary uint64 // of the archive, when the journal was read
	upTo     uint64 // events of later chunks are not compared: the index may not have stored them
	indexed  map[store.MerchantKey]*merchantSums
	buckets  []eventSum // the events of the index less those of the journal and the archive
	unsound  bool       // damage was found that may concern the index of any merchant
	hidden   bool       // damage was found that may hide events of the archive or the journal
	damaged  journal.DamagedChunks
	blocks   archive.Damaged

	onlyLost bool // what the index lacks is not reported
	disagree bool // the index lacks events
}

// merchantSums are the sums of a merchant's events.
type merchantSums struct {
	retainedFrom int64           // earlier events are past the retention and being removed: they are not compared
	series       map[string]bool // those that the index counts
	events       eventSum        // of the index less those of the journal and the archive
	unsound      bool            // damage was found in its index, so that is not compared
}

// eventSum is the number of some events, and the sum of their hashes.
type eventSum struct{ n, hash uint64 }

// buckets are few enough for any memory.
const buckets = 1 << 16

var seed = maphash.MakeSeed()

func (s *eventSum) add(o eventSum) { s.n, s.hash = s.n+o.n, s.hash+o.hash }

// count adds an event of the index to the sums, or subtracts one of the journal or the archive.
func (v *verifier) count(s *merchantSums, hash uint64, indexed bool) {
	one := eventSum{1, hash}
	if !indexed {
		one = eventSum{^uint64(0), -hash}
	}
	s.events.add(one)
	v.buckets[hash%buckets].add(one)
}

func hashOf(m store.MerchantKey, k rank.Key, series string) uint64 {
	return maphash.Comparable(seed, struct {
		store.MerchantKey
		rank.Key
		series string
	}{m, k, series})
}

// verifierOfClosed returns a verifier of data that no engine has open. It has no parts yet.
func verifierOfClosed(ctx context.Context, v store.Verification) verifier {
	return verifier{Verification: v, ctx: ctx, stored: &stored{damage: &damageLog{}}, now: time.Now()}
}

func (v *verifier) verify() error {
	if err := v.readParts(); err != nil {
		return err
	}
	return v.compare()
}

// readParts verifies the parts, and sums up the events of both sides.
func (v *verifier) readParts() (err error) {
	v.indexed, v.buckets = map[store.MerchantKey]*merchantSums{}, make([]eventSum, buckets)
	if v.control != nil {
		v.counts.Records, err = v.control.Verify(v.ctx, func(where, problem string) {
			v.Found(store.Finding{Part: store.PartControl, Where: where, Problem: problem})
		})
		v.Read(store.PartControl, 1, 1)
	}
	if err == nil && v.index != nil {
		err = v.verifyIndex()
	}
	if err == nil && v.journal != nil {
		err = v.verifyJournal()
	}
	if err == nil && v.archive != nil {
		err = v.verifyArchive()
	}
	return err
}

func (v *verifier) verifyIndex() (err error) {
	if v.upTo, err = v.index.StoredUpTo(); err != nil {
		v.upTo = 0 // Verify reports it
	}
	return v.index.Verify(v.ctx, rank.Check{
		Wrong: func(m store.MerchantKey, err error) {
			f := store.Finding{Part: store.PartIndex, Where: "index.db", Problem: strings.TrimPrefix(err.Error(), "index.db: ")}
			if m == (store.MerchantKey{}) {
				v.unsound = true
			} else {
				f.Merchants = []store.MerchantID{m.ID()}
				v.sums(m).unsound = true
			}
			v.Found(f)
		},
		Tags: v.verifyTags,
		Event: func(m store.MerchantKey, k rank.Key, series string) {
			v.counts.Entries++
			if s := v.sums(m); k.Seq <= v.upTo && k.Time >= s.retainedFrom {
				v.count(s, hashOf(m, k, series), true)
			}
		},
		Read: func(done, total uint64) { v.Read(store.PartIndex, done, total) },
	})
}

// verifyTags notes the series of a merchant's tree, and checks that their tags exist and are the merchant's.
func (v *verifier) verifyTags(m store.MerchantKey, series []string) {
	s := v.sums(m)
	var tags []string
	for _, name := range series {
		s.series[name] = true
		if tag, _ := codec.SplitSeries(name); tag != "" && !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	if v.control == nil || v.control.IsRemoved(m.ID()) {
		return
	}
	for _, id := range tags {
		tag, err := v.control.Tag(v.ctx, store.TagID(id))
		if store.KindOf(err) == store.KindNotFound || err == nil && tag.Merchant != m.ID() { // other errors were found before
			v.Found(store.Finding{Part: store.PartTags, Where: "tag " + id, Merchants: []store.MerchantID{m.ID()},
				Problem: "has events of a merchant, but does not exist or is not the merchant's"})
		}
	}
}

func (v *verifier) sums(m store.MerchantKey) *merchantSums {
	s := v.indexed[m]
	if s == nil {
		s = &merchantSums{series: map[string]bool{}, retainedFrom: v.expiringBefore(m.ID())}
		if v.control != nil {
			s.retainedFrom = max(s.retainedFrom, rules.RetainedFrom(v.control.RetentionOf(m.ID()), v.now))
		}
		v.indexed[m] = s
	}
	return s
}

func (v *verifier) verifyJournal() error {
	release := v.PauseMoves()
	defer release()
	if v.archive != nil {
		v.boundary = v.archive.Boundary()
	}
	counts, err := v.journal.Verify(v.ctx, journal.Check{
		Wrong: v.wrongInEvents,
		Damaged: func(d journal.DamagedChunk) {
			if d.Seq > v.boundary || v.damage.isNoted(d.Seq) { // else the archive has its events
				v.damaged = append(v.damaged, d)
			}
		},
		Events: func(seq uint64, events []journal.Event) {
			if seq <= v.boundary {
				return
			}
			v.counts.Events += uint64(len(events))
			if seq <= v.upTo {
				for i := range events {
					s := v.sums(events[i].Merchant)
					if events[i].Time >= s.retainedFrom {
						v.count(s, s.hash(&events[i].Event), false)
					}
				}
			}
		},
		Read: func(done, total uint64) { v.Read(store.PartEvents, done, total) },
	})
	v.counts.Chunks, v.counts.Links, v.counts.Marks = counts.Chunks, counts.Links, counts.Marks
	return err
}

// verifyArchive reads the events up to the boundary as of verifyJournal. Those that have moved since were read there.
func (v *verifier) verifyArchive() error {
	return v.archive.Verify(v.ctx, archive.Check{
		Wrong:   func(err error) { v.wrongInEvents("archive", err) },
		Damaged: func(d archive.Damage) { v.blocks = append(v.blocks, d) },
		Events: func(m store.MerchantKey, events []archive.Event) {
			s := v.sums(m)
			for _, stored := range events {
				if stored.Seq > v.boundary {
					return
				}
				v.counts.Events++
				event, err := journal.DecodeBody(m, stored.Position, stored.Body)
				if err != nil {
					v.wrongInEvents("archive", err)
				} else if stored.Seq <= v.upTo && event.Time >= s.retainedFrom {
					v.count(s, s.hash(&event.Event), false)
				}
			}
		},
		Read: func(done, total uint64) { v.Read(store.PartEvents, done, total) },
	})
}

func (v *verifier) wrongInEvents(where string, err error) {
	v.hidden = v.hidden || !strings.HasPrefix(where, "events: entry")
	v.Found(store.Finding{Part: store.PartEvents, Where: where, Problem: err.Error()})
}

// hash returns the hash of an event of the journal, with the series under which the index counts it.
func (s *merchantSums) hash(e *codec.Event) uint64 {
	series := string(e.Series)
	if !s.series[series] {
		series = codec.OverflowSeries(series)
	}
	return hashOf(e.Merchant, rank.Key{Time: e.Time, Position: e.Position}, series)
}

func (v *verifier) close() error {
	return errors.Join(closeOpened(v.journal), closeOpened(v.control), closeOpened(v.archive), closeOpened(v.index))
}

// closeOpened closes what was opened; nil: it was not.
func closeOpened[T interface {
	comparable
	io.Closer
}](part T) error {
	var none T
	if part == none {
		return nil
	}
	return part.Close()
}
