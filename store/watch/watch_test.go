package watch

import (
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"mtagd/store"
)

// Whoever watches a merchant is woken by its events, and by nobody else's, until it stops. Nothing is kept of those who have stopped.
func TestWatchersAreWoken(t *testing.T) {
	merchants := make([]uuid.UUID, 4)
	for i := range merchants {
		merchants[i] = uuid.New()
	}
	some := rapid.SliceOfNDistinct(rapid.SampledFrom(merchants), 0, 3, rapid.ID[uuid.UUID])
	type watcher struct {
		news  <-chan struct{}
		stop  func()
		of    map[uuid.UUID]bool
		awake bool
	}
	rapid.Check(t, func(r *rapid.T) {
		var w Watchers
		var model []*watcher
		r.Repeat(map[string]func(*rapid.T){
			"watch": func(r *rapid.T) {
				one := &watcher{of: map[uuid.UUID]bool{}}
				ids := []store.MerchantID{"none"}
				for _, m := range some.Draw(r, "merchants") {
					one.of[m] = true
					ids = append(ids, store.MerchantID(m.String()), store.MerchantID(m.String()))
				}
				one.news, one.stop = w.Watch(ids)
				model = append(model, one)
			},
			"wake": func(r *rapid.T) {
				woken := some.Draw(r, "merchants")
				w.Wake(woken)
				for _, one := range model {
					for _, m := range woken {
						one.awake = one.awake || one.of[m]
					}
				}
			},
			"take": func(r *rapid.T) {
				for i, one := range model {
					select {
					case <-one.news:
						if !one.awake {
							r.Fatalf("watcher %d is woken by others", i)
						}
					default:
						if one.awake {
							r.Fatalf("watcher %d is not woken", i)
						}
					}
					one.awake = false
				}
			},
			"stop": func(r *rapid.T) {
				if len(model) > 0 {
					i := rapid.IntRange(0, len(model)-1).Draw(r, "watcher")
					model[i].stop()
					model = append(model[:i], model[i+1:]...)
				}
			},
			"": func(r *rapid.T) {
				of := map[uuid.UUID]bool{}
				for _, one := range model {
					of[uuid.Nil] = true // stands for "none"
					for m := range one.of {
						of[m] = true
					}
				}
				if w.Any() != (len(of) > 0) || len(w.of) != len(of) {
					r.Fatalf("%d merchants are watched, want %d", len(w.of), len(of))
				}
			},
		})
	})
}
