package journal

import (
	"sync"
	"time"

	"mtagd/store/local/codec"
)

// turns has the requests of each merchant that wait, in the order of arrival, and composes groups of them.
//
// The merchants that wait when a group begins take turns, until nothing is left of what waited then or the group is full.
// A turn takes some marks, so a large request may be spread over several groups. A merchant whose requests arrive while
// the group is built has one turn in it.
//
// The events of one merchant wait for the group that is being written, and for their own. So a group with several merchants
// is small, unless each has only one turn: then its size comes from the number of merchants. A group with one merchant is
// large, because large groups need fewer syncs. But it ends when another merchant has joined it.
//
// Each request costs the same, however many merchants wait. A merchant without requests in flight is forgotten.
type turns struct {
	tenants map[codec.MerchantKey]*tenant // those with requests in flight
	now     fifo[*tenant]                 // wait for a turn in the current group
	later   fifo[*tenant]                 // wait for the next group

	requests int // that wait; of the one at the head of a tenant, a part may have been taken
	marks    int // that wait
	bytes    int // of all requests in flight

	group     []part // the current group, or the last one
	number    uint64 // of the group
	merchants int    // in the group
	taken     int    // marks in the group
	size      int    // bytes of the group, about
	leftOver  bool   // the group was full when some of what waited before it was not in it
	arrivals  bool   // requests have arrived since the group began
}

// tenant is a merchant with requests in flight.
type tenant struct {
	waiting  fifo[*request]
	marks    int // of waiting, not taken yet
	inFlight int
	bytes    int    // of the requests in flight
	group    uint64 // in which it had its last turn
}

// part is some marks of a request, marks[from:to], or its link.
type part struct {
	*request
	from, to int
	last     bool // nothing of the request is left after it
}

const (
	// The limits of a group. The last mark may exceed the bytes.
	groupMarks  = 2000
	groupBytes  = 1 << 20
	sharedMarks = 512 // for further turns in a group of several merchants
	sharedBytes = 256 << 10

	// After these marks, the committer checks for merchants whose requests arrived since.
	takeMarks = sharedMarks / 2
)

var spareTenants = sync.Pool{New: func() any { return new(tenant) }}

func newTurns() turns { return turns{tenants: map[codec.MerchantKey]*tenant{}} }

// hasRoom reports whether a request may wait, too.
func (q *turns) hasRoom(r *request) bool {
	free := maxQueueBytes - q.bytes - r.size
	t := q.tenants[r.merchant]
	switch {
	case t == nil:
		return r.size <= shareOfFree*free
	case t.bytes+r.size > shareOfFree*free:
		return false
	case t.marks+r.length() <= groupMarks:
		return true
	}
	return t.waiting.len() == 0 || time.Since(t.waiting.first().arrived) <= maxQueueTime
}

// add adds a request. It reports whether the request is the first since the current group began.
func (q *turns) add(r *request) (first bool) {
	t := q.tenants[r.merchant]
	if t == nil {
		t = spareTenants.Get().(*tenant)
		q.tenants[r.merchant] = t
	}
	if t.waiting.len() == 0 {
		if t.group == q.number {
			q.later.push(t)
		} else {
			q.now.push(t)
		}
	}
	t.waiting.push(r)
	t.inFlight++
	t.marks += r.length()
	t.bytes += r.size
	q.requests++
	q.marks += r.length()
	q.bytes += r.size
	r.tenant, r.group = t, q.number
	first = !q.arrivals
	q.arrivals = true
	return first
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

// take gives turns until the group has takeMarks more marks, and returns the parts that were taken. When it returns none,
// the group is complete.
func (q *turns) take() []part {
	parts, enough := len(q.group), min(q.taken+takeMarks, groupMarks)
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
	marks, bytes := groupMarks-q.taken, groupBytes-q.size
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
		markBytes := 1 + r.size/r.length()
		n := min(marks, r.length()-r.taken, 1+bytes/markBytes)
		p := part{request: r, from: r.taken, to: r.taken + n, last: r.taken+n == r.length()}
		q.group = append(q.group, p)
		r.taken = p.to
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

// finish ends the group, and returns it. err, unless it is nil, is the error of the requests that have a part in it.
func (q *turns) finish(err error) []part {
	for _, p := range q.group {
		if p.err == nil {
			p.err = err
		}
		if !p.last {
			continue
		}
		t := p.tenant
		t.inFlight--
		t.bytes -= p.request.size
		q.bytes -= p.request.size
		if t.inFlight == 0 {
			delete(q.tenants, p.merchant)
			*t = tenant{waiting: t.waiting}
			spareTenants.Put(t)
		}
	}
	return q.group
}
