package groupcommit

import "slices"

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
