package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// A page reads its own events, and the counters of some days, of one day and of one hour. It does not read the hours of many days, the
// events that it skips or that a filter leaves out, nor the counters of all names.
func TestAPageReadsFewRows(t *testing.T) {
	s := newShop(t, Options{})
	const days, names, perName = 40, 12, 1000
	const step = days * 24 * time.Hour / perName
	const rareEvery = 40 // each name has few events with the rare tag, and few of bots
	rare, _, err := s.GenerateTag(t.Context(), s.id, store.ServerSide, "")
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Truncate(24 * time.Hour)
	for n := range names {
		var marks []store.Mark
		for i := range perName {
			m := s.mark(fmt.Sprintf("Name%02d", n), "anna")
			m.DedupeID = ""
			m.Time = end.Add(-time.Duration(i) * step)
			switch i % rareEvery {
			case 0:
				m.Tag = rare.ID
			case 1:
				m.Bot = true
			}
			marks = append(marks, m)
		}
		s.record(marks...)
	}
	s.folded(s.key())
	if _, err := s.pool.Exec(t.Context(), "VACUUM ANALYZE event, counter"); err != nil {
		t.Fatal(err)
	}
	const rowsRead = "SELECT sum(idx_tup_fetch + seq_tup_read)::bigint FROM pg_stat_xact_user_tables WHERE relname IN ('event', 'counter')"
	from, to := end.Add(-(days-2)*24*time.Hour-90*time.Minute), end.Add(-25*time.Hour-30*time.Minute)
	for _, q := range []store.Query{
		{SortBy: store.ByTime},
		{SortBy: store.ByTime, Names: []string{"Name00", "Name02"}},
		{SortBy: store.ByTime, From: &from, To: &to},
		{SortBy: store.ByTime, From: &from, To: &to, Tag: s.tag, Names: []string{"Name01", "Name02"}},
		{SortBy: store.ByName},
		{SortBy: store.ByName, From: &from, To: &to},
		{SortBy: store.ByName, From: &from, To: &to, Tag: s.tag, Names: []string{"Name01", "Name02"}},
		{SortBy: store.ByTime, From: &from, To: &to, Tag: rare.ID},
		{SortBy: store.ByTime, From: &from, To: &to, Bot: new(true)},
		{SortBy: store.ByName, From: &from, To: &to, Tag: rare.ID},
		{SortBy: store.ByName, From: &from, To: &to, Bot: new(true)},
	} {
		q.Merchant, q.Limit = s.id, 20
		for _, place := range []int{0, 1, 2, 3, 4, 5} {
			q.Offset = place * perName * max(len(q.Names), 1) / 7
			if q.Tag == rare.ID || q.Bot != nil {
				q.Offset = place * names * perName / rareEvery / 7
			}
			sel, _ := newSelection(s.key(), q.Tag, q.Names, q.Bot)
			var before, after int
			if err := s.engine.read(t.Context(), func(tx pgx.Tx) error {
				if err := tx.QueryRow(t.Context(), rowsRead).Scan(&before); err != nil {
					return err
				}
				page, err := s.list(t.Context(), tx, sel, q)
				if err != nil || len(page.Events) != q.Limit {
					return fmt.Errorf("%d events of %d, %w", len(page.Events), page.Total, err)
				}
				return tx.QueryRow(t.Context(), rowsRead).Scan(&after)
			}); err != nil {
				t.Fatalf("%+v: %v", q, err)
			}
			rows := after - before
			most := 3*(days+2*24+2*60) + 5*q.Limit
			if q.SortBy == store.ByTime && q.Names == nil {
				most += maxSkipped
			}
			if rows > most {
				t.Errorf("%+v: %d rows were read, want at most %d", q, rows, most)
			}
		}
	}
}

// A page by name that is far from both ends does not keep the names before it.
func TestAPageKeepsFewNames(t *testing.T) {
	s := newShop(t, Options{})
	const names, limit = 6 * namesAtOnce, 20
	var marks []store.Mark
	at := time.Now().Add(-time.Hour)
	for n := range names {
		m := s.mark(fmt.Sprintf("Name%05d", n), "anna")
		m.Time = at
		marks = append(marks, m)
	}
	for some := range slices.Chunk(marks[:names/2], store.MaxBatchEvents) {
		s.record(some...)
	}
	s.folded(s.key())
	for some := range slices.Chunk(marks[names/2:], store.MaxBatchEvents) { // these may be in the open tally
		s.record(some...)
	}
	from, to := at.Add(-time.Minute), at.Add(time.Minute)
	for _, asc := range []bool{true, false} {
		for _, offset := range []int{names/2 - 500, names/2 + 500} {
			q := store.Query{Merchant: s.id, SortBy: store.ByName, Asc: asc, From: &from, To: &to, Offset: offset, Limit: limit}
			sel, _ := newSelection(s.key(), "", nil, nil)
			if err := s.engine.read(t.Context(), func(tx pgx.Tx) (err error) {
				page, err := s.list(t.Context(), tx, sel, q)
				if err != nil {
					return err
				}
				first := fmt.Sprintf("Name%05d", offset)
				if !asc {
					first = fmt.Sprintf("Name%05d", names-1-offset)
				}
				if page.Total != names || len(page.Events) != limit || page.Events[0].Name != first {
					return fmt.Errorf("%d events of %d from %v, want %d of %d from %s", len(page.Events), page.Total, page.Events[:1], limit, names, first)
				}
				if sel.open, err = readOpen(t.Context(), tx, s.key()); err != nil {
					return err
				}
				l := listing{selection: sel, tx: tx, nameDesc: !asc}
				lo, hi := rangeOf(q.From, q.To)
				nodes, _, err := l.nearbyNames(t.Context(), lo, hi, names, offset, limit)
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
