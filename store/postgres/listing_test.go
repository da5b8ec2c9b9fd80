package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/testenv"
)

// A page reads its own events, and the counters of some days, of one day and of one hour. It does not read the hours of many
// days, the events that it skips or that a filter leaves out, nor the counters of all names.
func TestAPageReadsFewRows(t *testing.T) {
	s := newShop(t, Options{})
	const days, names, perName = 40, 12, 1000
	const step = days * 24 * time.Hour / perName
	const rareEvery = 40 // each name has few events with the rare tag, and few of bots
	rare, _, err := s.GenerateTag(t.Context(), s.id, store.ServerSide, "")
	testenv.Check(t, err)
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
	s.rollUp(s.key())
	exec(t, s.db.Pool, "VACUUM ANALYZE event, counter")
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
			page, rows := s.pageAndRows(q)
			if len(page.Events) != q.Limit {
				t.Fatalf("%+v: %d events of %d", q, len(page.Events), page.Total)
			}
			most := 3*(days+2*24+2*60) + 5*q.Limit
			if rows > most {
				t.Errorf("%+v: %d rows were read, want at most %d", q, rows, most)
			}
		}
	}
}

// pageAndRows returns a page, and how many events and counters were read for it.
func (s *shop) pageAndRows(q store.Query) (page store.Page, rows int) {
	s.t.Helper()
	const rowsRead = "SELECT sum(idx_tup_fetch + seq_tup_read)::bigint FROM pg_stat_xact_user_tables WHERE relname IN ('event', 'counter')"
	var before, after int
	if err := s.engine.db.Read(s.t.Context(), func(tx pgx.Tx) (err error) {
		if err := tx.QueryRow(s.t.Context(), rowsRead).Scan(&before); err != nil {
			return err
		}
		if page, err = s.ListIn(s.t.Context(), tx, q); err != nil {
			return err
		}
		return tx.QueryRow(s.t.Context(), rowsRead).Scan(&after)
	}); err != nil {
		s.t.Fatalf("%+v: %v", q, err)
	}
	return page, after - before
}

// A page by name in a range reads the counters of the names up to it, from the nearer end, and of few others. How many names
// that are is only guessed: here some names have all their events in the range, some have none.
func TestAPageByNameInARangeReadsFewNames(t *testing.T) {
	s := newShop(t, Options{})
	const days, names, perDay = 40, 24, 2
	end := time.Now().UTC().Truncate(24 * time.Hour)
	from, to := end.AddDate(0, 0, -days), end.Add(-time.Microsecond)
	record := func(name string, last time.Time) {
		var marks []store.Mark
		for i := range days * perDay {
			m := s.mark(name, "anna")
			m.Time = last.Add(-time.Duration(i)*24*time.Hour/perDay - time.Hour)
			marks = append(marks, m)
		}
		s.record(marks...)
	}
	for n := range names {
		record(fmt.Sprintf("Even%02d", n), end)
	}
	s.rollUp(s.key())
	q := store.Query{Merchant: s.id, SortBy: store.ByName, From: &from, To: &to, Limit: 10}
	// rowsOf returns how many rows are read for a page that begins within the n-th name.
	rowsOf := func(n int, asc bool) int {
		t.Helper()
		q.Offset, q.Asc = n*days*perDay+30, asc
		page, rows := s.pageAndRows(q)
		if !asc {
			n = names - 1 - n
		}
		if name := fmt.Sprintf("Even%02d", n); page.Total != names*days*perDay || page.Events[0].Name != name {
			t.Fatalf("%+v: %d events from %s, want %d from %s", q, page.Total, page.Events[0].Name, names*days*perDay, name)
		}
		return rows
	}
	for n := range names {
		for _, asc := range []bool{true, false} {
			// The days of all names together, of the names up to the page, and of its own name again; the hours and minutes
			// of one day; all names' numbers of all times.
			most := days*(1+min(n+1, names-n)+1) + 2*perDay + names + 5*q.Limit
			if rows := rowsOf(n, asc); rows > most {
				t.Errorf("%+v: %d rows were read, want at most %d", q, rows, most)
			}
		}
	}
	for n := range names {
		if n%3 == 0 {
			record(fmt.Sprintf("Earlier%02d", n), from.AddDate(0, 0, -n))
		}
		if n%5 == 0 {
			record(fmt.Sprintf("Even%02d", n), from) // as many again, before the range
		}
	}
	for n := range names {
		rowsOf(n, n%2 == 0)
	}
}
