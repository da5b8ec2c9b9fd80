package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
	"mtagd/store/testenv"
)

func TestVerifyFindsWhatDiffers(t *testing.T) {
	for name, c := range map[string]struct {
		damage string
		part   store.Part
	}{
		"a counter that is too high":   {"UPDATE counter SET n = n + 1 WHERE level = 1 AND name = ''", store.PartIndex},
		"a missing counter":            {"DELETE FROM counter WHERE level = 3 AND name = 'Visit'", store.PartIndex},
		"an event that is missing":     {"DELETE FROM event", store.PartIndex},
		"a record that is no JSON":     {"UPDATE record SET body = '[]' WHERE kind = 'merchants'", store.PartControl},
		"a tag that no merchant has":   {"DELETE FROM record WHERE kind = 'tags'", store.PartTags},
		"a usage that was not counted": {"UPDATE usage SET bytes = 0", store.PartIndex},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, Options{})
			s.record(s.visit(0, 0))
			s.rollUp(s.key())
			if _, err := s.db.Pool.Exec(t.Context(), c.damage); err != nil {
				t.Fatal(err)
			}
			found := map[store.Part]int{}
			if _, err := s.Verify(t.Context(), store.Verification{
				Found: func(f store.Finding) { found[f.Part]++ },
				Read:  func(store.Part, uint64, uint64) {},
			}); err != nil || found[c.part] == 0 {
				t.Errorf("found %v, %v; want something in %s", found, err, c.part)
			}
		})
	}
}

// The events of a large merchant are counted in pieces. Meanwhile events are recorded, rolled up and removed. A finding has
// the range of time.
func TestVerifyInPieces(t *testing.T) {
	s := newShop(t, Options{verifyPiece: 5})
	hour := time.Now().Truncate(time.Hour).Add(-72 * time.Hour)
	at := func(h, i int) store.Mark {
		m := s.visit(0, i)
		m.DedupeID, m.Time = "", hour.Add(time.Duration(h)*time.Hour+time.Duration(i)*time.Minute)
		return m
	}
	for h := range 20 {
		s.record(at(h, 1), at(h, 2), at(h, 3))
	}
	s.rollUp(s.key())
	reads, n := 0, uint64(0)
	verify := func(read func()) (found []store.Finding) {
		t.Helper()
		reads = 0
		counts, err := s.Verify(t.Context(), store.Verification{
			Found: func(f store.Finding) { found = append(found, f) },
			Read: func(part store.Part, done, total uint64) {
				if part == store.PartEvents {
					reads++
					read()
				}
				if done > total {
					t.Errorf("%d of %d %s are read", done, total, part)
				}
			},
		})
		testenv.Check(t, err)
		n = counts.Events
		return found
	}
	if found := verify(func() {}); len(found) > 0 || reads < 10 || n != 60 {
		t.Errorf("%d events are read in %d pieces, found %+v", n, reads, found)
	}
	if found := verify(func() {
		switch reads {
		case 2:
			// The last ones are counted in later pieces: from the tally, and from the counters.
			s.record(at(1, 4), at(4, 4), at(19, 4))
		case 4:
			s.rollUp(s.key())
		case 5:
			var r store.Position
			testenv.Check(t, s.db.Pool.QueryRow(t.Context(), "SELECT seq, idx FROM event WHERE merchant = $1 ORDER BY seq LIMIT 1", s.key()).Scan(&r.Seq, &r.Index))
			testenv.Check(t, s.RemoveEvents(t.Context(), s.key(), []store.Position{r}))
		}
	}); len(found) > 0 {
		t.Errorf("found %+v in what changes", found)
	}
	if _, err := s.db.Pool.Exec(t.Context(), "UPDATE counter SET n = n + 2 WHERE level = 0 AND name = '' AND bucket = $1", count.BucketOf(count.ByMinute, at(7, 2).Time.UnixMicro())); err != nil {
		t.Fatal(err)
	}
	found := verify(func() {})
	if len(found) != 1 || found[0].Events != 2 || !found[0].From.Equal(at(7, 2).Time) || !found[0].To.Equal(at(7, 3).Time) || len(found[0].Merchants) != 1 {
		t.Errorf("found %+v, want a counter of %v", found, at(7, 2).Time)
	}
}

// Each piece looks for the counters of all names. So a merchant with many names has few pieces.
func TestVerifyOfManyNames(t *testing.T) {
	s := newShop(t, Options{verifyPiece: 5})
	var marks []store.Mark
	for i := range 20 {
		m := s.visit(0, i)
		m.Name, m.DedupeID = fmt.Sprint("Name", i), ""
		marks = append(marks, m)
	}
	s.record(marks...)
	s.rollUp(s.key())
	reads := 0
	if counts, err := s.Verify(t.Context(), store.Verification{
		Found: func(f store.Finding) { t.Errorf("found %+v", f) },
		Read: func(part store.Part, _, _ uint64) {
			if part == store.PartEvents {
				reads++
			}
		},
	}); err != nil || counts.Events != 20 || reads != 2 { // one for the piece, one for the merchant
		t.Errorf("%d events of 20 names are read in %d pieces, %v", counts.Events, reads-1, err)
	}
}

// Damaged pages are found in each table, even where an index, or the length of a body, is enough to count.
func TestVerifyReadsAllPages(t *testing.T) {
	server := pgtest.NewServer(t)
	s := newShopOn(t, server.URL("postgres"), Options{})
	large := s.visit(0, 0)
	large.Raw = make([]byte, 32<<10)
	_, _ = rand.Read(large.Raw) // never fails, and cannot be compressed
	s.record(large)
	s.rollUp(s.key())
	exec := func(sql string) {
		t.Helper()
		if _, err := s.db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "an index cannot be read alone", func() (can bool) {
		exec("VACUUM link")
		exec("VACUUM dedup")
		testenv.Check(t, s.db.Pool.QueryRow(t.Context(), "SELECT bool_and(relallvisible = relpages) FROM pg_class WHERE oid IN ('link'::regclass, 'dedup'::regclass)").Scan(&can))
		return can
	})
	exec("CHECKPOINT")
	s.expect(1)
	files := map[string]string{}
	for name, relation := range map[string]string{"bodies": "(SELECT reltoastrelid FROM pg_class WHERE oid = 'event'::regclass)", "links": "'link'", "event_ids": "'dedup'"} {
		var path string
		testenv.Check(t, s.db.Pool.QueryRow(t.Context(), "SELECT pg_relation_filepath("+relation+")").Scan(&path))
		files[name] = filepath.Join(server.DataDir(), path)
	}
	mend := func() {}
	for name, file := range files {
		testenv.Check(t, server.Kill())
		mend()
		sound, err := os.ReadFile(file)
		testenv.Check(t, err)
		damaged := slices.Clone(sound)
		copy(damaged, bytes.Repeat([]byte{0xff}, 8192))
		testenv.Check(t, errors.Join(os.WriteFile(file, damaged, 0), server.Start()))
		mend = func() { testenv.Check(t, os.WriteFile(file, sound, 0)) }
		if _, err := s.Verify(t.Context(), store.Verification{
			Found: func(store.Finding) {},
			Read:  func(store.Part, uint64, uint64) {},
		}); err == nil || !strings.Contains(err.Error(), "invalid page") {
			t.Errorf("%s that are damaged: %v", name, err)
		}
	}
	testenv.Check(t, server.Kill())
	mend()
	testenv.Check(t, server.Start())
	s.expect(1)
}

// A merchant may be deleted, and removed portion by portion, before or while it is verified.
func TestVerifyPassesOverDeletedMerchants(t *testing.T) {
	s := newShop(t, Options{})
	m, err := s.AddMerchant(t.Context(), s.partner, store.NewMerchant{Name: "Other"})
	testenv.Check(t, err)
	other := s.visit(0, 0)
	other.Merchant = m.ID
	s.record(s.visit(0, 0), other)
	otherKey, _ := conn.KeyOf(m.ID)
	s.rollUp(s.key(), otherKey)
	verify := func(read func()) {
		t.Helper()
		if _, err := s.Verify(t.Context(), store.Verification{
			Found: func(f store.Finding) {
				if f.Part != store.PartTags { // the other merchant has no tag of its own
					t.Errorf("found %+v", f)
				}
			},
			Read: func(part store.Part, _, _ uint64) {
				if part == store.PartEvents {
					read()
				}
			},
		}); err != nil {
			t.Error(err)
		}
	}
	remover, err := pgx.Connect(t.Context(), s.url)
	testenv.Check(t, err)
	defer func() {
		if err := remover.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	remove := func(sql string) {
		if _, err := remover.Exec(t.Context(), sql); err != nil {
			t.Error(err)
		}
	}
	remove(`INSERT INTO record (kind, id, version, body) SELECT 'removals', merchant::text, 0, '{"merchantId":"' || merchant || '"}' FROM usage; DELETE FROM event`)
	verify(func() {})
	remove("DELETE FROM record WHERE kind = 'removals'; DELETE FROM counter; UPDATE usage SET events = 0, bytes = 0")
	verify(func() { remove("DELETE FROM usage") }) // of the next merchant
}
