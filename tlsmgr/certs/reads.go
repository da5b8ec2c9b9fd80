package certs

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// reads shares one read among all who ask at about the same time. Each gets the result of a read that began after it asked. So it
// misses nothing that was there when it asked, and however many ask, there is one read at a time, with a pause before the next.
type reads[T any] struct {
	every time.Duration // between the beginnings of two reads
	read  func(ctx context.Context) (T, error)

	asked singleflight.Group // callers that wait for the next read
	one   sync.Mutex         // held during a read
	last  time.Time          // when it began
}

// readTimeout bounds a read with its repeats. A failed read is repeated, because the store fails immediately while its node
// is not ready, and a CA counts each challenge without an answer.
const readTimeout = 5 * time.Second

// get returns the result of a read that begins from now on, or the error of ctx when it ends before.
func (r *reads[T]) get(ctx context.Context) (result T, err error) {
	done := r.asked.DoChan("", func() (any, error) {
		r.one.Lock()
		defer r.one.Unlock()
		time.Sleep(time.Until(r.last.Add(r.every)))
		r.asked.Forget("") // later callers need a new read
		r.last = time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		defer cancel()
		for {
			result, err := r.read(ctx)
			if err == nil || pause(ctx, r.every) != nil {
				return result, err
			}
		}
	})
	select {
	case got := <-done:
		return got.Val.(T), got.Err
	case <-ctx.Done():
		return result, ctx.Err()
	}
}
