package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/count"
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
	if _, err := s.db.Pool.Exec(t.Context(), "VACUUM ANALYZE event, counter"); err != nil {
		t.Fatal(err)
	}
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
	sel, _ := newSelection(s.key(), q.Tag, q.Names, q.Bot)
	var before, after int
	if err := s.engine.db.Read(s.t.Context(), func(tx pgx.Tx) (err error) {
		if err := tx.QueryRow(s.t.Context(), rowsRead).Scan(&before); err != nil {
			return err
		}
		if page, err = s.list(s.t.Context(), tx, sel, q); err != nil {
			return err
		}
		return tx.QueryRow(s.t.Context(), rowsRead).Scan(&after)
	}); err != nil {
		s.t.Fatalf("%+v: %v", q, err)
	}
	return page, after - before
}

// A page by name in a range reads the counters of the names up to it, from the nearer end, and of few others. How many names that are is
// only guessed: here some names have all their events in the range, some have none.
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
	s.folded(s.key())
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
			// The days of all names together, of the names up to the page, and of its own name again; the hours and minutes of one day; all
			// names' numbers of all times.
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
			if err := s.engine.db.Read(t.Context(), func(tx pgx.Tx) (err error) {
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
				if sel.open, err = count.ReadPending(t.Context(), tx, s.key()); err != nil {
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
