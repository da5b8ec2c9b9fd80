package tag

import (
	"runtime"
	"sync"

	"mtagd/store"
)

// turns bounds how many large batches are parsed at the same time. Parsing one takes up to some milliseconds. Without a
// bound, batches would occupy all processors, and every other request would wait for a processor several times: to be
// read, to be written and to be answered. The merchants whose batches wait take turns.
type turns struct {
	mu      sync.Mutex
	free    int // how many more may begin now
	waiting map[store.MerchantID][]chan struct{}
	next    []store.MerchantID // those in waiting, in the order of their turns
}

// largeBatch is from how many bytes on a batch needs a turn. Smaller ones are parsed in less than half a millisecond, and
// turns would cost a tenth of their rate.
const largeBatch = 64 << 10

// parsers is how many large batches may be parsed at the same time. Two of Go's threads are left for everything else.
// mtagd has one more thread than processors, so one processor is left.
func parsers() int { return max(1, runtime.GOMAXPROCS(0)-2) }

func newTurns(atOnce int) *turns {
	return &turns{free: atOnce, waiting: map[store.MerchantID][]chan struct{}{}}
}

// begin waits for the merchant's turn. The caller ends it with end.
func (t *turns) begin(m store.MerchantID) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	if len(t.waiting[m]) == 0 {
		t.next = append(t.next, m)
	}
	t.waiting[m] = append(t.waiting[m], turn)
	t.mu.Unlock()
	<-turn
}

// end ends a turn, and begins the next one.
func (t *turns) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.next) == 0 {
		t.free++
		return
	}
	m := t.next[0]
	t.next = t.next[1:]
	close(t.waiting[m][0])
	t.waiting[m] = t.waiting[m][1:]
	if len(t.waiting[m]) > 0 {
		t.next = append(t.next, m)
	} else {
		delete(t.waiting, m)
	}
}
