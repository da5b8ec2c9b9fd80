package certs

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A flood of questions for challenges is one question at a time to the store, and each sees what was there when it was put.
func TestReadsAreShared(t *testing.T) {
	count := 0
	r := reads[int]{every: time.Millisecond, read: func(context.Context) (int, error) {
		count++
		return count, nil
	}}
	last := 0
	for range 3 {
		got := make(chan int)
		for range 100 {
			go func() {
				n, err := r.get(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- n
			}()
		}
		newest := last
		for range 100 {
			n := <-got
			if n <= last {
				t.Errorf("read %d is from before the question", n)
			}
			newest = max(newest, n)
		}
		last = newest
	}
	if last > 150 {
		t.Errorf("%d reads for 300 questions", last)
	}
	tries := 0
	r.read = func(context.Context) (int, error) {
		if tries++; tries < 3 {
			return 0, fmt.Errorf("away")
		}
		return tries, nil
	}
	if n, err := r.get(t.Context()); n != 3 || err != nil {
		t.Errorf("after two failures: %d, %v", n, err)
	}
}

func TestAReadThatAlwaysFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := reads[int]{every: time.Millisecond, read: func(context.Context) (int, error) { return 0, fmt.Errorf("away") }}
		began := time.Now()
		if _, err := r.get(t.Context()); err == nil || time.Since(began) < readTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
