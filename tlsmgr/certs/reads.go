package certs

import (
	"context"
	"sync"
	"time"
)

// reads shares one read among all who ask at about the same time. Each gets the result of a read that began after it asked. So it
// misses nothing that was there when it asked, and however many ask, there is one read at a time, with a pause before the next.
type reads[T any] struct {
	every time.Duration // between the beginnings of two reads
	read  func(ctx context.Context) (T, error)

	mu   sync.Mutex
	next *read[T]      // has not begun; nil: nobody waits for one
	last chan struct{} // is closed when the next read may begin; nil: it may
}

type read[T any] struct {
	done   chan struct{}
	result T
	err    error
}

// readTimeout bounds a read.
const readTimeout = 5 * time.Second

// get returns the result of a read that begins from now on, or the error of ctx when it ends before.
func (r *reads[T]) get(ctx context.Context) (result T, err error) {
	r.mu.Lock()
	mine := r.next
	if mine == nil {
		mine = &read[T]{done: make(chan struct{})}
		before, after := r.last, make(chan struct{})
		r.next, r.last = mine, after
		go r.run(mine, before, after)
	}
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.result, mine.err
	case <-ctx.Done():
		return result, ctx.Err()
	}
}

// run waits for its turn, and reads.
func (r *reads[T]) run(mine *read[T], before, after chan struct{}) {
	if before != nil {
		<-before
	}
	r.mu.Lock()
	r.next = nil // whoever asks from now on needs another read
	r.mu.Unlock()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	mine.result, mine.err = r.read(ctx)
	close(mine.done)
	time.AfterFunc(r.every-time.Since(began), func() { close(after) })
}
