package groupcommit

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
)

// turns holds each merchant's waiting requests, in the order of arrival, and composes groups of them.
//
// The merchants that wait when a group begins take turns, until nothing is left of what waited then or the group is full.
// A turn takes a bounded number of marks, so a large request may be spread over several groups. A merchant whose first
// request arrives while the group is built has one turn in it.
//
// An event waits for the group that is being written, and then for its own. So while several merchants wait, groups are
// small: only the first turn of each merchant may exceed sharedMarks and sharedBytes. While one merchant waits, groups
// are large, because each costs a sync. Such a group ends early when another merchant joins it.
//
// Each request costs the same, however many merchants wait. A merchant without requests in flight is forgotten.
type turns struct {
	tenants map[uuid.UUID]*tenant // those with requests in flight
	now     fifo[*tenant]         // wait for a turn in the current group
	later   fifo[*tenant]         // have no more turns in it, and wait for the next one

	requests int // that wait; of the one at the head of a tenant, a part may have been taken
	marks    int // that wait
	bytes    int // of the requests in flight, without reserved ones
	reserved int // reserved bytes of the requests in flight

	group     []Part // the current group, or the last one
	number    uint64 // of the group
	merchants int    // in the group
	taken     int    // marks in the group
	size      int    // bytes of the group, about
	leftOver  bool   // the group became full before it had all that was waiting when it began
	arrivals  bool   // requests have arrived since the group began
}

// tenant is a merchant with requests in flight.
type tenant struct {
	waiting  fifo[*request]
	marks    int // of waiting, not taken yet
	inFlight int
	bytes    int    // of the requests in flight, without reserved ones
	reserved int    // reserved bytes of the requests in flight
	group    uint64 // in which it had its last turn
}

// request is what one call of Record or Resolve wants to write: marks, or a link.
type request struct {
	Merchant uuid.UUID
	Marks    []store.Mark
	Link     *store.Identity // its identifiers are linked to its muid
	size     int             // bytes

	tenant   *tenant   // of merchant
	reserved bool      // it takes reserved bytes
	group    uint64    // the current group when the request arrived
	arrived  time.Time // a lower bound: when the first request arrived during that group
	taken    int       // how many of the marks groups have taken
	err      error     // of the first group that failed; groups take no more of the marks then
	done     chan error
}

// length is the number of marks. A link counts as one.
func (r *request) length() int { return max(len(r.Marks), 1) }

// Part is some marks of a request, Marks[From:To], or its Link.
type Part struct {
	*request
	From, To int
	last     bool // nothing of the request is left after it
}

// Fail fails the request with an error. Its marks from To on are not written. Those before may be.
func (p Part) Fail(err error) { p.err = err }

const (
	// The limits of a group. The last mark may exceed the bytes.
	MaxMarks    = 2000
	groupBytes  = 1 << 20
	sharedMarks = 512 // while several merchants wait; from here on a larger group is hardly cheaper for each mark
	sharedBytes = 256 << 10

	// Requests are refused immediately while the queue would exceed maxQueueBytes. That is enough for dozens of the
	// largest requests, whose bodies are in memory anyway. One merchant may hold three times as many bytes as are free:
	// three quarters of the queue when it is alone, three sevenths when there are two. Each merchant that fills its share
	// leaves a quarter of what was free, so after eight of them hardly anything is.
	maxQueueBytes = 32 << 20
	shareOfFree   = 3

	// A request that does not fit into its merchant's share may take reserved bytes, which no share includes. One merchant
	// may take enough for an event of the largest size, and all merchants together maxReservedBytes. So more than two
	// hundred merchants must fill their shares before the requests of other merchants are refused.
	reservedBytes    = store.MaxEventBytes + 4<<10
	maxReservedBytes = 16 << 20

	// Requests are also refused while more than a group of their merchant's marks waits, the first one for maxQueueTime.
	maxQueueTime = time.Second

	// After these marks, the committer checks for merchants whose requests arrived since.
	takeMarks = sharedMarks / 2
)

var spareTenants = sync.Pool{New: func() any { return new(tenant) }}

func newTurns() turns { return turns{tenants: map[uuid.UUID]*tenant{}} }

// hasRoom reports whether a request may wait, too.
func (q *turns) hasRoom(r *request) bool {
	var t tenant
	if known := q.tenants[r.Merchant]; known != nil {
		t = *known
	}
	if !q.fitsShare(&t, r) && (t.reserved+r.size > reservedBytes || q.reserved+r.size > maxReservedBytes) {
		return false
	}
	if t.waiting.len() == 0 || t.marks+r.length() <= MaxMarks {
		return true
	}
	return time.Since(t.waiting.first().arrived) <= maxQueueTime
}

// fitsShare reports whether a request fits into its merchant's share of the queue.
func (q *turns) fitsShare(t *tenant, r *request) bool {
	return t.bytes+r.size <= shareOfFree*(maxQueueBytes-q.bytes-r.size)
}

// add adds a request for which there is room. It reports whether no other has arrived since the current group began.
func (q *turns) add(r *request) (first bool) {
	t := q.tenants[r.Merchant]
	if t == nil {
		t = spareTenants.Get().(*tenant)
		q.tenants[r.Merchant] = t
	}
	if t.waiting.len() == 0 {
		q.now.push(t)
	}
	first = q.requests == 0 || !q.arrivals
	t.waiting.push(r)
	t.inFlight++
	t.marks += r.length()
	q.requests++
	q.marks += r.length()
	r.reserved = !q.fitsShare(t, r)
	q.charge(t, r, r.size)
	r.tenant, r.group = t, q.number
	q.arrivals = true
	return first
}

// charge adds bytes of a request to what its merchant and all together have in flight.
func (q *turns) charge(t *tenant, r *request, bytes int) {
	if r.reserved {
		t.reserved += bytes
		q.reserved += bytes
		return
	}
	t.bytes += bytes
	q.bytes += bytes
}

// begin begins a group.
func (q *turns) begin() {
	q.number++
	q.group = q.group[:0]
	q.merchants, q.taken, q.size = 0, 0, 0
	q.leftOver, q.arrivals = false, false
	for q.later.len() > 0 {
		q.now.push(q.later.pop())
	}
}

// take gives turns until the group has takeMarks more marks, and returns what was taken; nothing: the group is complete.
func (q *turns) take() []Part {
	parts, enough := len(q.group), min(q.taken+takeMarks, MaxMarks)
	for q.now.len() > 0 && q.taken < enough && q.size < groupBytes {
		t := q.now.pop()
		if !q.turn(t) {
			q.later.push(t)
			q.leftOver = q.leftOver || t.waiting.first().group < q.number
		} else if t.waiting.len() > 0 {
			q.now.push(t)
		}
	}
	if len(q.group) == parts && q.now.len() > 0 {
		q.leftOver = true
	}
	return q.group[parts:]
}

// turn takes marks of a merchant. It returns false when the group may not have more of its marks.
func (q *turns) turn(t *tenant) bool {
	merchants := q.now.len() + 1
	marks, bytes := MaxMarks-q.taken, groupBytes-q.size
	again := t.group == q.number
	if again && max(q.merchants, merchants) > 1 {
		marks, bytes = sharedMarks-q.taken, sharedBytes-q.size
	}
	marks = min(marks, max(1, sharedMarks/max(2, merchants)))
	bytes = min(bytes, max(1, sharedBytes/max(2, merchants)))
	before := len(q.group)
	for marks > 0 && bytes > 0 && t.waiting.len() > 0 {
		r := t.waiting.first()
		if again && r.group == q.number {
			break
		}
		if r.err != nil { // a part has failed: the rest is not written
			rest := r.length() - r.taken
			q.group = append(q.group, Part{request: r, From: r.length(), To: r.length(), last: true})
			t.waiting.pop()
			q.requests--
			t.marks -= rest
			q.marks -= rest
			continue
		}
		markBytes := 1 + r.size/r.length()
		n := min(marks, r.length()-r.taken, 1+bytes/markBytes)
		p := Part{request: r, From: r.taken, To: r.taken + n, last: r.taken+n == r.length()}
		q.group = append(q.group, p)
		r.taken = p.To
		if p.last {
			t.waiting.pop()
			q.requests--
		}
		t.marks -= n
		q.marks -= n
		q.taken += n
		q.size += n * markBytes
		marks -= n
		bytes -= n * markBytes
	}
	if len(q.group) == before {
		return false
	}
	if !again {
		t.group = q.number
		q.merchants++
	}
	return true
}

// finish ends the group, and returns it. err is the error of the requests that have a part in it. If an earlier group has
// recorded a part of one, its error has no kind: KindUnavailable would promise that nothing was recorded.
func (q *turns) finish(err error) []Part {
	for _, p := range q.group {
		switch {
		case p.err != nil || err == nil:
		case p.From > 0: // from an earlier group: another part in this one would have set p.err
			p.err = fmt.Errorf("a part was recorded: %v", err)
		default:
			p.err = err
		}
		if !p.last {
			continue
		}
		t := p.tenant
		t.inFlight--
		q.charge(t, p.request, -p.request.size)
		if t.inFlight == 0 {
			delete(q.tenants, p.Merchant)
			*t = tenant{waiting: t.waiting}
			spareTenants.Put(t)
		}
	}
	return q.group
}

// fifo is a queue. The zero value is empty.
type fifo[T any] struct {
	items []T
	taken int // items that were removed
}

func (f *fifo[T]) len() int { return len(f.items) - f.taken }

func (f *fifo[T]) first() T { return f.items[f.taken] }

func (f *fifo[T]) push(v T) {
	if len(f.items) == cap(f.items) && f.taken > len(f.items)/2 {
		f.items, f.taken = slices.Delete(f.items, 0, f.taken), 0
	}
	f.items = append(f.items, v)
}

func (f *fifo[T]) pop() T {
	var none T
	v := f.items[f.taken]
	f.items[f.taken] = none
	f.taken++
	if f.taken == len(f.items) {
		f.items, f.taken = f.items[:0], 0
	}
	return v
}
