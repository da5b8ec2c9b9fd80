package merge

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever sources are added, moved and removed, in any order, the first one has the least next value of all that are there.
func TestTheFirstSourceIsTheNext(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		values := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 6)
		sources := New(func(a, b *[]int) bool { return (*a)[0] < (*b)[0] })
		var model []*[]int
		r.Repeat(map[string]func(*rapid.T){
			"add": func(r *rapid.T) {
				one := values.Draw(r, "values")
				slices.Sort(one)
				model = append(model, &one)
				sources.Add(&one)
			},
			"take": func(r *rapid.T) {
				first, ok := sources.First()
				if !ok {
					return
				}
				if *first = (*first)[1:]; len(*first) > 0 {
					sources.Moved()
					return
				}
				model = slices.DeleteFunc(model, func(s *[]int) bool { return s == first })
				sources.RemoveFirst()
			},
			"clear": func(r *rapid.T) {
				if rapid.IntRange(0, 9).Draw(r, "really") == 0 {
					model = nil
					sources.Clear()
				}
			},
			"": func(r *rapid.T) {
				first, ok := sources.First()
				if ok != (len(model) > 0) || ok && !slices.Contains(model, first) {
					r.Fatalf("the first of %d sources is %v, %v", len(model), first, ok)
				}
				for _, s := range model {
					if (*s)[0] < (*first)[0] {
						r.Fatalf("the first value is %d, but another source has %d", (*first)[0], (*s)[0])
					}
				}
			},
		})
	})
}
