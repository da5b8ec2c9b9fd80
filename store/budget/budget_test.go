package budget

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func newBudget(total, share int64) *Budget[string] {
	return New(total, func(string) int64 { return share })
}

// wants checks what a reservation that does not wait returns.
func wants(t *testing.T, b *Budget[string], key string, bytes int64, want error) {
	t.Helper()
	if err := b.TryReserve(key, bytes); !errors.Is(err, want) {
		t.Errorf("%d bytes for %s: got %v, want %v", bytes, key, err, want)
	}
}

func TestAHolderGetsItsShareAndAllTogetherTheTotal(t *testing.T) {
	b := newBudget(100, 40)
	wants(t, b, "a", 40, nil)
	wants(t, b, "a", 1, ErrShare)
	wants(t, b, "b", 40, nil)
	wants(t, b, "c", 30, ErrTotal)
	wants(t, b, "c", 20, nil)
	b.Release("a", 10)
	wants(t, b, "a", 11, ErrShare)
	wants(t, b, "a", 10, nil)
	b.Overdraw("c", 5)
	wants(t, b, "d", 1, ErrTotal)
	b.Release("c", 5)
	if b.Reserved() != 100 || b.Held("a") != 40 || b.Held("nobody") != 0 {
		t.Errorf("reserved %d, of a %d", b.Reserved(), b.Held("a"))
	}
}

// Whoever takes all they may leave room for the next.
func TestHoldersLeaveRoomForEachOther(t *testing.T) {
	b := newBudget(256, 64).Fair()
	for i, want := range []int64{64, 64, 64, 32, 16, 8, 4, 2, 1} {
		key := string(rune('a' + i))
		for b.TryReserve(key, 1) == nil {
		}
		if got := b.Held(key); got != want {
			t.Errorf("holder %s has %d, want %d", key, got, want)
		}
	}
	wants(t, b, "z", 1, nil)
	wants(t, b, "y", 1, ErrTotal)
}

// "many" waits first, but has more than is free. It gets more when others have released enough.
func TestWhoHasMostWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10, 8).Fair()
		wants(t, b, "many", 5, nil)
		wants(t, b, "some", 2, nil)
		got := map[string]*atomic.Bool{"many": {}, "few": {}, "some": {}}
		wait := func(key string) {
			go func() {
				if err := b.Reserve(t.Context(), key, 1); err != nil {
					t.Error(err)
				}
				got[key].Store(true)
			}()
			synctest.Wait()
		}
		wait("many")
		if got["many"].Load() {
			t.Error("who has more than is free got more")
		}
		wait("few")
		wait("some")
		if !got["few"].Load() || got["some"].Load() {
			t.Errorf("few got one: %t, some: %t", got["few"].Load(), got["some"].Load())
		}
		b.Release("many", 4)
		synctest.Wait()
		if !got["some"].Load() || !got["many"].Load() {
			t.Errorf("after a release, some got one: %t, many: %t", got["some"].Load(), got["many"].Load())
		}
	})
}

// An item that is larger than the share, or than the total, would otherwise never be reserved.
func TestAHolderWithoutAReservationGetsOneThatExceedsItsShare(t *testing.T) {
	b := newBudget(100, 40)
	wants(t, b, "a", 50, nil)
	wants(t, b, "a", 1, ErrShare)
	b.Release("a", 50)
	wants(t, b, "a", 200, nil)
	wants(t, b, "b", 1, ErrTotal)
}

// "many" asks first and most. "few" waits for one reservation of "many", not for all of them.
func TestFreedMemoryGoesToTheHoldersInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(2, 2)
		wants(t, b, "x", 2, nil)
		var order []string
		wait := func(key string) {
			go func() {
				if err := b.Reserve(t.Context(), key, 1); err != nil {
					t.Error(err)
				}
				order = append(order, key)
			}()
			synctest.Wait()
		}
		for _, key := range []string{"many", "many", "many", "few"} {
			wait(key)
		}
		for range 2 {
			b.Release("x", 1)
			synctest.Wait()
		}
		for range 2 {
			b.Release("many", 1)
			synctest.Wait()
		}
		if want := []string{"many", "few", "many", "many"}; !slices.Equal(order, want) {
			t.Errorf("granted to %v, want %v", order, want)
		}
	})
}

// A holder that has nothing goes before those that wait for more.
func TestAHolderWithNothingGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(4, 4)
		var order []string
		for _, key := range []string{"a", "b", "c", "d"} {
			wants(t, b, key, 1, nil)
		}
		for _, key := range []string{"a", "b", "new"} {
			go func() {
				if err := b.Reserve(t.Context(), key, 1); err != nil {
					t.Error(err)
				}
				order = append(order, key)
			}()
			synctest.Wait()
		}
		for _, key := range []string{"d", "c", "new"} {
			b.Release(key, 1)
			synctest.Wait()
		}
		if want := []string{"new", "a", "b"}; !slices.Equal(order, want) {
			t.Errorf("granted to %v, want %v", order, want)
		}
	})
}

// A holder whose share is used up does not stand in the way of another.
func TestAHolderOverItsShareDoesNotHoldUpTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10, 5)
		wants(t, b, "a", 5, nil)
		wants(t, b, "b", 5, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		failed := make(chan error, 1)
		go func() { failed <- b.Reserve(ctx, "a", 1) }()
		synctest.Wait()
		granted := make(chan error, 1)
		go func() { granted <- b.Reserve(t.Context(), "c", 3) }()
		synctest.Wait()
		b.Release("b", 5)
		if err := <-granted; err != nil {
			t.Error(err)
		}
		if err := <-failed; !errors.Is(err, ErrShare) {
			t.Errorf("got %v, want %v", err, ErrShare)
		}
		wants(t, b, "d", 2, nil)
		wants(t, b, "d", 1, ErrTotal)
	})
}

// The request that gives up was the first in line, and too large for what was free. The next one fits.
func TestAWaiterThatGivesUpLetsTheNextOneIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10, 10)
		wants(t, b, "x", 8, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		large, small := make(chan error, 1), make(chan error, 1)
		go func() { large <- b.Reserve(ctx, "a", 5) }()
		synctest.Wait()
		go func() { small <- b.Reserve(t.Context(), "a", 2) }()
		if err := <-large; !errors.Is(err, ErrTotal) {
			t.Errorf("got %v, want %v", err, ErrTotal)
		}
		if err := <-small; err != nil {
			t.Error(err)
		}
	})
}

func TestIdleHoldersAreForgotten(t *testing.T) {
	b := newBudget(10, 5)
	wants(t, b, "a", 5, nil)
	wants(t, b, "a", 1, ErrShare)
	wants(t, b, "b", 5, nil)
	wants(t, b, "c", 1, ErrTotal)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Reserve(ended, "d", 1); !errors.Is(err, ErrTotal) {
		t.Errorf("got %v, want %v", err, ErrTotal)
	}
	b.Release("a", 5)
	b.Release("b", 5)
	if len(b.holders) != 0 || len(b.turns) != 0 || b.Reserved() != 0 {
		t.Errorf("%d holders, %d turns, %d bytes are left", len(b.holders), len(b.turns), b.Reserved())
	}
}
