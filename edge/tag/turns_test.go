package tag

import (
	"slices"
	"testing"
	"testing/synctest"

	"mtagd/store"
)

// One merchant's batches wait when another merchant's arrives. It has the next turn but one, and each merchant's turns are
// in the order of arrival.
func TestMerchantsTakeTurnsToBeParsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1)
		turns.begin("heavy")
		var begun []string
		for _, c := range []struct {
			merchant store.MerchantID
			batch    string
		}{
			{"heavy", "heavy 1"}, {"heavy", "heavy 2"}, {"heavy", "heavy 3"}, {"other", "other 1"}, {"other", "other 2"},
		} {
			go func() {
				turns.begin(c.merchant)
				begun = append(begun, c.batch)
				turns.end()
			}()
			synctest.Wait()
		}
		if len(begun) > 0 {
			t.Errorf("%v are parsed at the same time as another batch", begun)
		}
		turns.end()
		synctest.Wait()
		if want := []string{"heavy 1", "other 1", "heavy 2", "other 2", "heavy 3"}; !slices.Equal(begun, want) {
			t.Errorf("the turns were %v, want %v", begun, want)
		}
		if turns.free != 1 || len(turns.waiting) != 0 {
			t.Errorf("%d turns are free and %d merchants wait, want 1 and 0", turns.free, len(turns.waiting))
		}
	})
}
