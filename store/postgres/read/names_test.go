package read

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/count"
)

// The events of one name at an end of a range are counted one by one, if those of all names are few.
func TestSpansOfOneName(t *testing.T) {
	at := time.Date(2026, 11, 20, 10, 20, 30, 0, time.UTC).UnixMicro()
	const hour = int64(time.Hour / time.Microsecond)
	whole := func(lo, hi int64, inMinutes int) (nodes []node) {
		for _, s := range slices.Backward(cover(lo, hi)) {
			n := node{span: s, n: 100 * fewMinutes}
			if s.level == count.ByMinute {
				n.n = inMinutes
			}
			nodes = append(nodes, n)
		}
		return nodes
	}
	levels := func(spans []span) (levels []int) {
		for i, s := range spans {
			if i > 0 && spans[i-1].lo != s.hi {
				t.Errorf("%+v: there is a gap", spans)
			}
			levels = append(levels, s.level)
		}
		return levels
	}
	for _, tt := range []struct {
		name      string
		lo, hi    int64
		inMinutes int
		of        listing
		want      []int
	}{
		{"few events", at, at + 5*hour + 1, fewMinutes, listing{}, []int{rawLevel, count.ByHour, rawLevel}},
		{"few events, within an hour", at, at + hour/3, fewMinutes, listing{}, []int{rawLevel}},
		{"many events", at, at + 5*hour + 1, fewMinutes + 1, listing{}, []int{rawLevel, count.ByMinute, count.ByHour, count.ByMinute, rawLevel}},
		{"a filter, which leaves out events that would be read", at, at + 5*hour + 1, 0, listing{selection: selection{bot: new(true)}},
			[]int{rawLevel, count.ByMinute, count.ByHour, count.ByMinute, rawLevel}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spans := tt.of.spansOfName(whole(tt.lo, tt.hi, tt.inMinutes))
			if got := levels(spans); !slices.Equal(got, tt.want) || spans[0].hi != tt.hi || spans[len(spans)-1].lo != tt.lo {
				t.Errorf("%+v, want the levels %v", spans, tt.want)
			}
		})
	}
}

// A page by name that is far from both ends does not keep the names before it.
func TestAPageKeepsFewNames(t *testing.T) {
	db := openDB(t)
	r := readerOf(t, db)
	const names, limit = 6 * namesAtOnce, 20
	merchant, at := uuid.New(), time.Now().Add(-time.Hour)
	name := func(n int) string { return fmt.Sprintf("Name%05d", n) }
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `INSERT INTO event (merchant, seq, idx, at, bot, tag, name, muid, raw)
			SELECT $1, n + 1, 0, $2, false, 'tag', 'Name' || lpad(n::text, 5, '0'), '', '{}' FROM generate_series(0, $3 - 1) AS n`, merchant, at.UnixMicro(), names); err != nil {
			return err
		}
		counted, pending := count.Deltas{}, count.Deltas{}
		for n := range names {
			to := counted
			if n >= names/2 {
				to = pending
			}
			to.Add(merchant, at.UnixMicro(), "tag", name(n), false, 10, 1)
		}
		if _, err := tx.Exec(t.Context(), "SELECT nextval('receipt')"); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), count.WriteDeltas, pending.Columns()...); err != nil {
			return err
		}
		return counted.AddTo(t.Context(), tx, nil)
	}); err != nil {
		t.Fatal(err)
	}
	from, to := at.Add(-time.Minute), at.Add(time.Minute)
	for _, asc := range []bool{true, false} {
		for _, offset := range []int{names/2 - 500, names/2 + 500} {
			q := store.Query{Merchant: store.MerchantID(merchant.String()), SortBy: store.ByName, Asc: asc, From: &from, To: &to, Offset: offset, Limit: limit}
			sel, _ := newSelection(merchant, "", nil, nil)
			if err := db.Read(t.Context(), func(tx pgx.Tx) (err error) {
				page, err := r.ListIn(t.Context(), tx, q)
				if err != nil {
					return err
				}
				first := name(offset)
				if !asc {
					first = name(names - 1 - offset)
				}
				if page.Total != names || len(page.Events) != limit || page.Events[0].Name != first {
					return fmt.Errorf("%d events of %d from %v, want %d of %d from %s", len(page.Events), page.Total, page.Events[:1], limit, names, first)
				}
				if sel.open, err = count.ReadPending(t.Context(), tx, merchant); err != nil {
					return err
				}
				l := listing{selection: sel, tx: tx, nameDesc: !asc}
				whole, lifetime, err := l.spans(t.Context(), from.UnixMicro(), to.UnixMicro()+1)
				if err != nil {
					return err
				}
				nodes, _, err := l.nearbyNames(t.Context(), whole, lifetime, offset, limit)
				if most := 2 * namesAtOnce; len(nodes) > most {
					t.Errorf("%+v: %d nodes were kept, want at most %d", q, len(nodes), most)
				}
				return err
			}); err != nil {
				t.Fatalf("%+v: %v", q, err)
			}
		}
	}
}
