// Package merge reads several sorted sources as one.
package merge

// Sources are those that have more, as a heap: the one with the next value is the first.
type Sources[T any] struct {
	all    []T
	before func(a, b T) bool
}

// New returns no sources. before reports whether the next value of a comes before that of b.
func New[T any](before func(a, b T) bool) Sources[T] { return Sources[T]{before: before} }

// Clear removes all sources.
func (s *Sources[T]) Clear() { s.all = s.all[:0] }

// First returns the source with the next value; false when there is none.
func (s *Sources[T]) First() (first T, ok bool) {
	if len(s.all) == 0 {
		return first, false
	}
	return s.all[0], true
}

// Add adds a source.
func (s *Sources[T]) Add(source T) {
	s.all = append(s.all, source)
	for at := len(s.all) - 1; at > 0; {
		parent := (at - 1) / 2
		if !s.before(s.all[at], s.all[parent]) {
			return
		}
		s.all[at], s.all[parent] = s.all[parent], s.all[at]
		at = parent
	}
}

// RemoveFirst removes the first source, which has no more values.
func (s *Sources[T]) RemoveFirst() {
	last := len(s.all) - 1
	s.all[0], s.all = s.all[last], s.all[:last]
	s.Moved()
}

// Moved is called when the first source has gone to its next value.
func (s *Sources[T]) Moved() {
	for at := 0; ; {
		least := at
		for child := 2*at + 1; child <= 2*at+2 && child < len(s.all); child++ {
			if s.before(s.all[child], s.all[least]) {
				least = child
			}
		}
		if least == at {
			return
		}
		s.all[at], s.all[least] = s.all[least], s.all[at]
		at = least
	}
}
