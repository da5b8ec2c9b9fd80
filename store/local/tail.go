package local

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mtagd/store/local/codec"
)

// tail knows, for the newest chunks of the journal, which merchants have events in them. It wakes readers that wait for a
// merchant's events.
//
// The committer only notes what it has committed, because all requests wait for it. These notes are sorted by merchant later, by
// the next reader or by the tail's own goroutine.
type tail struct {
	// The last chunk on disk. Its events, and those of all chunks before it, are noted.
	last atomic.Uint64

	noting sync.Mutex // held for moments; taken after mu
	inUse  bool       // notes are taken: somebody has read the feed
	notes  []tailNote

	mu         sync.Mutex
	merchants  map[codec.MerchantKey]*tailEnd
	maxNumbers int    // maxTailNumbers, except in tests
	numbers    int    // how many numbers the newer generations have
	begin      uint64 // the notes are of chunks after this one
	known      uint64 // the generations have the numbers after this one
	recent     uint64 // the newer generations have those after this one

	work  chan struct{} // holds a value when there are notes
	ended chan struct{}
	run   sync.WaitGroup
}

// tailNote says that a merchant has events in a chunk.
type tailNote struct {
	merchant codec.MerchantKey
	seq      uint64
}

// tailEnd is what the tail knows of one merchant.
type tailEnd struct {
	last         uint64   // the last chunk with events of the merchant; 0: none after begin
	older, newer []uint64 // the chunks with its events, in two generations
	watchers     map[*watcher]struct{}
	hasNews      bool // its watchers are about to be woken
}

// watcher is a call of Watch.
type watcher struct{ news chan struct{} }

const (
	// maxTailNumbers is how many chunk numbers a generation has at most, 8 bytes each. When the newer one is full, the older one
	// is dropped. At worst, when neighbouring events are never of one merchant, each event takes a number.
	maxTailNumbers = 1 << 19
	// newsPause is how long a watcher waits at most to be woken. Without the pause, each commit would wake it.
	newsPause = 10 * time.Millisecond
)

func newTail(last uint64) *tail {
	t := &tail{merchants: map[codec.MerchantKey]*tailEnd{}, maxNumbers: maxTailNumbers, work: make(chan struct{}, 1), ended: make(chan struct{})}
	t.last.Store(last)
	return t
}

// start starts the tail's goroutine.
func (t *tail) start() { t.run.Go(t.wakeWatchers) }

// close ends the tail's goroutine. No watcher is woken any more.
func (t *tail) close() {
	close(t.ended)
	t.run.Wait()
}

// add notes the events of a commit. Only the committer calls it.
func (t *tail) add(events []codec.Event, last uint64) {
	t.noting.Lock()
	if t.inUse {
		var n tailNote
		for i := range events {
			if e := &events[i]; e.Seq != n.seq || e.Merchant != n.merchant { // neighbours are often of one merchant
				n = tailNote{e.Merchant, e.Seq}
				t.notes = append(t.notes, n)
			}
		}
		select {
		case t.work <- struct{}{}:
		default:
		}
	}
	t.last.Store(last)
	t.noting.Unlock()
}

// use makes the tail take notes from now on.
func (t *tail) use() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noting.Lock()
	defer t.noting.Unlock()
	if !t.inUse {
		t.inUse, t.begin, t.known = true, t.last.Load(), t.last.Load()
	}
}

// wakeWatchers wakes the watchers of merchants that have new events.
func (t *tail) wakeWatchers() {
	for {
		select {
		case <-t.work:
		case <-t.ended:
			return
		}
		t.mu.Lock()
		t.sort()
		t.mu.Unlock()
		select {
		case <-time.After(newsPause):
		case <-t.ended:
			return
		}
	}
}

// sort sorts the notes by merchant, and wakes watchers. It returns the last chunk that is sorted. The caller holds mu.
func (t *tail) sort() (last uint64) {
	t.noting.Lock()
	notes := t.notes
	t.notes = nil
	last = t.last.Load()
	t.noting.Unlock()
	var woken []*tailEnd
	for _, n := range notes {
		m := t.of(n.merchant)
		if m.last != n.seq {
			m.last = n.seq
			m.newer = append(m.newer, n.seq)
			t.numbers++
		}
		if len(m.watchers) > 0 && !m.hasNews {
			m.hasNews = true
			woken = append(woken, m)
		}
	}
	for _, m := range woken {
		m.hasNews = false
		for w := range m.watchers {
			select {
			case w.news <- struct{}{}:
			default:
			}
		}
	}
	if t.numbers > t.maxNumbers {
		t.dropOlder(last)
	}
	return last
}

// dropOlder drops the older generation. The caller holds mu.
func (t *tail) dropOlder(last uint64) {
	for _, m := range t.merchants {
		m.older, m.newer = m.newer, nil
	}
	t.known, t.recent, t.numbers = max(t.known, t.recent), last, 0
}

// of returns what is known of a merchant. The caller holds mu.
func (t *tail) of(m codec.MerchantKey) *tailEnd {
	end := t.merchants[m]
	if end == nil {
		end = &tailEnd{}
		t.merchants[m] = end
	}
	return end
}

// watch implements store.Feed's Watch.
func (t *tail) watch(merchants []codec.MerchantKey) (news <-chan struct{}, stop func()) {
	t.use()
	w := &watcher{make(chan struct{}, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range merchants {
		end := t.of(m)
		if end.watchers == nil {
			end.watchers = map[*watcher]struct{}{}
		}
		end.watchers[w] = struct{}{}
	}
	return w.news, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, m := range merchants {
			end := t.merchants[m]
			if end == nil { // m is twice in merchants
				continue
			}
			if delete(end.watchers, w); len(end.watchers) == 0 {
				end.watchers = nil
				if end.last == 0 {
					delete(t.merchants, m)
				}
			}
		}
	}
}

// reading is what a reader of the feed reads next.
type reading struct {
	seqs []uint64 // these chunks, if there are any
	scan bool     // or all chunks
	upTo uint64   // then it has read everything up to this chunk
}

// next returns what a reader reads next. The reader has read everything before the chunk from, and wants the events of these
// merchants up to the chunk upTo. next returns at most n chunks.
func (t *tail) next(merchants []codec.MerchantKey, from, upTo uint64, n int) reading {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sort()
	numbers := smallest{limit: n, below: math.MaxUint64}
	for _, key := range merchants {
		m := t.merchants[key]
		if from <= t.known {
			// The numbers up to known were dropped. Chunks there may have events of the merchant, unless its last one is before from.
			if from <= t.begin || m != nil && m.last >= from {
				return reading{scan: true, upTo: min(t.known, upTo)}
			}
			continue
		}
		if m == nil || m.last < from {
			continue
		}
		numbers.add(m.older, from)
		numbers.add(m.newer, from)
	}
	seqs := numbers.result()
	for len(seqs) > 0 && seqs[len(seqs)-1] > upTo {
		seqs = seqs[:len(seqs)-1]
	}
	if len(seqs) == n {
		upTo = seqs[n-1]
	}
	return reading{seqs: seqs, upTo: upTo}
}

// smallest collects the smallest numbers of several increasing lists.
type smallest struct {
	limit   int
	below   uint64 // larger numbers than this one are not among the smallest
	numbers []uint64
}

// add adds the numbers of a list from a number on.
func (s *smallest) add(list []uint64, from uint64) {
	i, _ := slices.BinarySearch(list, from)
	for _, v := range list[i:min(i+s.limit, len(list))] {
		if v > s.below {
			return
		}
		s.numbers = append(s.numbers, v)
	}
	if len(s.numbers) > 8*s.limit {
		s.result()
	}
}

// result returns the smallest numbers, without duplicates.
func (s *smallest) result() []uint64 {
	slices.Sort(s.numbers)
	s.numbers = slices.Compact(s.numbers)
	if len(s.numbers) > s.limit {
		s.numbers = s.numbers[:s.limit]
		s.below = s.numbers[s.limit-1]
	}
	return s.numbers
}
