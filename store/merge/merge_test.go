package merge

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSourcesAreReadAsOne(t *testing.T) {
	for n := range 20 {
		var want []int
		sources := New(func(a, b *[]int) bool { return (*a)[0] < (*b)[0] })
		for range n {
			one := make([]int, 1+rand.IntN(5))
			for i := range one {
				one[i] = rand.IntN(30)
			}
			slices.SortFunc(one, cmp.Compare)
			want = append(want, one...)
			sources.Add(&one)
		}
		slices.Sort(want)
		var got []int
		for first, ok := sources.First(); ok; first, ok = sources.First() {
			got = append(got, (*first)[0])
			if *first = (*first)[1:]; len(*first) == 0 {
				sources.RemoveFirst()
			} else {
				sources.Moved()
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d sources give %v, want %v", n, got, want)
		}
	}
}
