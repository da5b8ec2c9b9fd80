package store

import "sort"

// Sort sorts as slices.SortFunc does, for short lists. The compiler writes slices.SortFunc again for each type, which adds up
// to 30 KB to the program.
func Sort[E any](all []E, compare func(a, b E) int) {
	sort.Slice(all, func(i, j int) bool { return compare(all[i], all[j]) < 0 })
}
