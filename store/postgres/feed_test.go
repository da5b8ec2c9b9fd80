package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

// A follower of many merchants, most of which have few events and one has many, sees all events in their order: from the
// beginning, from cursors in between, and when the flushes that say where to look are forgotten.
func TestTheFeedOfManyMerchants(t *testing.T) {
	s := newShop(t, Options{})
	merchants := []store.MerchantID{s.id}
	for range 40 { // many more than Feed reads without looking which have events
		m, err := s.AddMerchant(t.Context(), s.partner, store.NewMerchant{Name: "Shop"})
		testenv.Check(t, err)
		merchants = append(merchants, m.ID)
	}
	var want []string
	for range 40 {
		var marks []store.Mark
		for range 1 + rand.IntN(120) {
			m := merchants[0] // has most events
			if rand.IntN(10) == 0 {
				m = merchants[rand.IntN(len(merchants))]
			}
			raw := fmt.Sprintf(`{"n":%d}`, len(want))
			want = append(want, raw)
			marks = append(marks, store.Mark{Merchant: m, Tag: s.tag, Identity: store.Identity{MUID: "user-1"}, Name: "Visit", Time: time.Now(), Raw: []byte(raw)})
		}
		s.record(marks...)
	}
	for _, when := range []string{"with flushes", "without the first flushes", "without flushes"} {
		var got []string
		q := store.FeedQuery{Merchants: merchants}
		for more := true; more; {
			left := 1 + rand.IntN(300)
			end, err := s.Feed(t.Context(), q, func(r *store.Received) bool {
				got = append(got, string(r.Raw))
				left--
				return left > 0
			})
			testenv.Check(t, err)
			q.After, more = end.Cursor, end.More
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d events, want %d in their order", when, len(got), len(want))
		}
		forget := "DELETE FROM flush WHERE seq < (SELECT max(seq) FROM flush)"
		if when == "with flushes" {
			forget = "DELETE FROM flush WHERE seq IN (SELECT seq FROM flush ORDER BY seq LIMIT 20)"
		}
		if _, err := s.db.Pool.Exec(context.Background(), forget); err != nil {
			t.Fatal(err)
		}
	}
}
