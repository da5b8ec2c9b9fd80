package removal

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/testenv"
)

// fake is an engine in memory. Its steps return the error of their name, and are noted.
type fake struct {
	now      time.Time
	erasures map[store.ErasureID]store.Erasure
	removals map[store.MerchantID]store.Removal
	errs     map[string]error
	steps    []string
	metrics  *prometheus.Registry
}

// measure returns the metrics, by name and kind.
func (f *fake) measure(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := f.metrics.Gather()
	testenv.Check(t, err)
	all := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			name := family.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			all[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

func (f *fake) Tasks(context.Context) (open []store.Erasure, removals []store.Removal, err error) {
	for _, id := range slices.Sorted(maps.Keys(f.erasures)) {
		if e := f.erasures[id]; e.State != store.ErasureDone {
			open = append(open, e)
		}
	}
	for _, m := range slices.Sorted(maps.Keys(f.removals)) {
		removals = append(removals, f.removals[m])
	}
	return open, removals, nil
}

func (f *fake) Now(context.Context) (time.Time, error) { return f.now, nil }

func (f *fake) UpdateErasures(_ context.Context, ids []store.ErasureID, change func(*store.Erasure) []store.IdentityKey) error {
	for _, id := range ids {
		e := f.erasures[id]
		change(&e)
		f.erasures[id] = e
	}
	return nil
}

func (f *fake) SaveRemovals(_ context.Context, removals []store.Removal) error {
	for _, r := range removals {
		if f.removals[r.Merchant] = r; r.State == store.ErasureDone {
			delete(f.removals, r.Merchant)
		}
	}
	return nil
}

func (f *fake) step(name string) error {
	f.steps = append(f.steps, name)
	return f.errs[name]
}

func (f *fake) EraseOf(ctx context.Context, m store.MerchantID, erasures []store.Erasure) error {
	for _, e := range erasures {
		e.State = store.ErasureRemoving
		f.erasures[e.ID] = e
	}
	return f.step("erase " + string(m))
}

func (f *fake) Drop(_ context.Context, m store.MerchantID) error { return f.step("drop " + string(m)) }
func (f *fake) Purge(context.Context) error                      { return f.step("purge") }
func (f *fake) ExpiredBefore(store.MerchantID, time.Time) int64  { return 0 }

func (f *fake) ExpireOf(_ context.Context, m store.MerchantID, _ int64) (bool, error) {
	return true, f.step("expire " + string(m))
}

// newFake has the erasures 1 and 2 at merchant a, 3 at b, and 4 at c, which was deleted.
func newFake() (*fake, *Runner) {
	f := &fake{now: time.Unix(1e9, 0), erasures: map[store.ErasureID]store.Erasure{}, errs: map[string]error{}, metrics: prometheus.NewRegistry(),
		removals: map[store.MerchantID]store.Removal{"c": {Kind: store.OfDeletion, Merchant: "c", At: time.Unix(1e9-60, 0)}}}
	for id, m := range map[store.ErasureID]store.MerchantID{"1": "a", "2": "a", "3": "b", "4": "c"} {
		f.erasures[id] = store.Erasure{ID: id, Merchant: m, At: f.now, State: store.ErasurePending}
	}
	return f, &Runner{engine: f, metrics: newMetrics(f.metrics), delay: time.Minute, Reclaim: func(context.Context) error { return f.step("reclaim") }}
}

// run runs a round, and expects its steps.
func (f *fake) run(t *testing.T, r *Runner, want ...string) {
	t.Helper()
	f.steps = nil
	err := r.Run(t.Context())
	if !slices.Equal(f.steps, want) || (err != nil) != slices.ContainsFunc(want, func(s string) bool { return f.errs[s] != nil }) {
		t.Errorf("the steps are %q, %v; want %q", f.steps, err, want)
	}
}

// expect expects the state of each erasure, and how many attempts have failed, of which the last one has.
func (f *fake) expect(t *testing.T, want map[store.ErasureID]store.Tries, state store.ErasureState) {
	t.Helper()
	for id, tries := range want {
		e := f.erasures[id]
		if e.State != state || e.Attempts != tries.Attempts || (e.LastError != "") != (tries.LastError != "") || (state == store.ErasureDone) == e.FinishedAt.IsZero() {
			t.Errorf("erasure %s is %+v, want %s and %+v", id, e, state, tries)
		}
	}
}

var failing = store.Tries{Attempts: 1, LastError: "some"}

func TestAnAttemptThatFailsIsNotedAndHoldsUpNoOther(t *testing.T) {
	f, r := newFake()
	f.errs["erase a"], f.errs["drop c"] = errors.New("a bad block"), errors.New("a bad block")
	f.run(t, r, "drop c", "erase a", "erase b", "purge")
	f.expect(t, map[store.ErasureID]store.Tries{"1": failing, "2": failing}, store.ErasureRemoving)
	f.expect(t, map[store.ErasureID]store.Tries{"4": failing}, store.ErasurePending)
	f.expect(t, map[store.ErasureID]store.Tries{"3": {}}, store.ErasureDone)
	if c := f.removals["c"]; c.Attempts != 1 || c.LastError == "" {
		t.Errorf("the deletion is %+v", c)
	}
	want := map[string]float64{"mtagd_removals_failing deletion": 1, "mtagd_removals_failing erasure": 3, "mtagd_removals_failing retention": 0,
		"mtagd_removal_failures_total": 2, "mtagd_erasures_open": 3, "mtagd_erasure_oldest_timestamp_seconds": 1e9}
	if got := f.measure(t); !maps.Equal(got, want) {
		t.Errorf("the metrics are %v, want %v", got, want)
	}
	f.run(t, r) // none is due
	f.erasures["5"] = store.Erasure{ID: "5", Merchant: "a", State: store.ErasurePending}
	f.run(t, r, "erase a")
	f.expect(t, map[store.ErasureID]store.Tries{"1": failing, "5": failing}, store.ErasureRemoving)
	f.errs = nil
	f.now = f.now.Add(5 * time.Second)
	f.run(t, r, "drop c", "erase a", "purge")
	f.expect(t, map[store.ErasureID]store.Tries{"1": {Attempts: 1}, "2": {Attempts: 1}, "4": {Attempts: 1}, "5": {Attempts: 1}}, store.ErasureDone)
	if len(f.removals) > 0 {
		t.Errorf("left are %+v", f.removals)
	}
}

func TestAPurgeThatFailsIsNoted(t *testing.T) {
	f, r := newFake()
	f.errs["purge"] = ErrWaits
	f.run(t, r, "drop c", "erase a", "erase b", "purge")
	all := func(tries store.Tries) map[store.ErasureID]store.Tries {
		return map[store.ErasureID]store.Tries{"1": tries, "2": tries, "3": tries, "4": tries}
	}
	f.expect(t, all(store.Tries{}), store.ErasurePurging)
	f.errs["purge"] = errors.New("no room")
	f.run(t, r, "drop c", "purge")
	f.expect(t, all(failing), store.ErasurePurging)
	if c := f.removals["c"]; c.State != store.ErasurePurging || c.Attempts != 1 || c.LastError == "" {
		t.Errorf("the deletion is %+v", c)
	}
	f.run(t, r)
	f.errs = nil
	f.now = f.now.Add(5 * time.Second)
	f.run(t, r, "purge")
	f.expect(t, all(store.Tries{Attempts: 1}), store.ErasureDone)
}

func TestTheRetentionOfAMerchantFails(t *testing.T) {
	f, r := newFake()
	f.removals = map[store.MerchantID]store.Removal{}
	expire := func(want string, merchants ...store.MerchantID) {
		t.Helper()
		f.steps = nil
		err := r.Expire(t.Context(), merchants, false)
		failed := slices.ContainsFunc(f.steps, func(s string) bool { return f.errs[s] != nil })
		if got := strings.Join(f.steps, ", "); got != want || (err != nil) != failed {
			t.Errorf("the steps are %s, %v; want %s", got, err, want)
		}
	}
	f.errs["expire a"] = errors.New("a bad block")
	expire("expire a, expire b, reclaim", "a", "b")
	if a := f.removals["a"]; len(f.removals) != 1 || a.Kind != store.OfRetention || a.State != store.ErasureRemoving || a.Attempts != 1 || a.LastError == "" {
		t.Errorf("the tasks are %+v", f.removals)
	}
	expire("expire b, reclaim", "a", "b")
	f.errs = map[string]error{"reclaim": errors.New("no room")}
	f.now = f.now.Add(5 * time.Second)
	expire("expire a, expire b, reclaim", "a", "b")
	if a, b := f.removals["a"], f.removals["b"]; a.State != store.ErasurePurging || a.Attempts != 2 || b.State != store.ErasurePurging || b.Attempts != 1 {
		t.Errorf("the tasks are %+v", f.removals)
	}
	f.errs = nil
	f.now = f.now.Add(5 * time.Second)
	expire("expire b, reclaim", "b") // a was deleted
	if len(f.removals) > 0 {
		t.Errorf("left are %+v", f.removals)
	}
	f.errs = map[string]error{"expire a": errors.New("a bad block")}
	expire("expire a, expire b, reclaim", "a", "b")
	f.now = f.now.Add(5 * time.Second)
	f.steps = nil
	if err := r.Expire(t.Context(), []store.MerchantID{"a", "b"}, true); err == nil || !slices.Equal(f.steps, []string{"expire a"}) {
		t.Errorf("the steps of another attempt are %q, %v; want only that of the merchant whose last one has failed", f.steps, err)
	}
}

func TestPauses(t *testing.T) {
	now := time.Unix(1e9, 0)
	var tries store.Tries
	for _, pause := range []time.Duration{5, 10, 20, 40, 80, 160, 320, 640, 640} {
		tries = tries.Failed(now, errors.New("no room"))
		pause *= time.Second
		if tries.IsDue(now.Add(pause-1)) || !tries.IsDue(now.Add(pause)) || !tries.IsDue(now.Add(-time.Second)) {
			t.Errorf("after %d attempts the next one is not due after %v", tries.Attempts, pause)
		}
	}
}

// Rounds follow soon after an error, else once a minute; after Wake at once, also when that came during a round.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(nil, nil, false)
		ctx, end := context.WithCancel(t.Context())
		began, ended := time.Now(), make(chan struct{})
		var rounds []time.Duration
		go func() {
			defer close(ended)
			r.Keep(ctx, func(context.Context) error {
				switch rounds = append(rounds, time.Since(began)); len(rounds) {
				case 1:
					return errors.New("a bad block")
				case 4:
					r.Wake()
					r.Wake()
				}
				return nil
			})
		}()
		time.Sleep(70 * time.Second)
		r.Wake()
		time.Sleep(10 * time.Second)
		end()
		<-ended
		if want := []time.Duration{0, 5 * time.Second, 65 * time.Second, 70 * time.Second, 70 * time.Second}; !slices.Equal(rounds, want) {
			t.Errorf("the rounds began after %v, want %v", rounds, want)
		}
	})
}

// An erasure that fails is tried again when its pause ends, and not at the next minute.
func TestKeepTriesWhatHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := newFake()
		f.removals, f.errs["erase a"] = nil, errors.New("a bad block")
		ctx, end := context.WithCancel(t.Context())
		began, ended := time.Now(), make(chan struct{})
		var tries []time.Duration
		go func() {
			defer close(ended)
			r.Keep(ctx, func(ctx context.Context) error {
				f.now, f.steps = time.Now(), nil
				err := r.Run(ctx)
				if slices.Contains(f.steps, "erase a") {
					tries = append(tries, time.Since(began))
				}
				return err
			})
		}()
		time.Sleep(time.Minute)
		end()
		<-ended
		if want := []time.Duration{0, 5 * time.Second, 15 * time.Second, 35 * time.Second}; !slices.Equal(tries, want) {
			t.Errorf("the attempts began after %v, want %v", tries, want)
		}
	})
}
