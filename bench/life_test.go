package bench

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local"
)

// BenchmarkLife records the events of one merchant, reads them back in the order of receipt, reads and erases persons, and then
// lets half of the events expire. It prints how long each takes, and the space on the disk. The defaults take seconds. For
// the size that counts:
//
//	BENCH_EVENTS=10000000 go test -run '^$' -bench Life -benchtime 1x -timeout 1h ./bench
func BenchmarkLife(b *testing.B) {
	size := fromEnvironment(b, "BENCH_EVENTS", 200_000)
	for range b.N {
		s := openShop(b, "life", size)
		m := s.tags[0].Merchant
		s.record(b, size, func(n int) store.Mark {
			mark := mark(s.tags[0], n, s.start.Add(time.Duration(n)*s.step))
			mark.Raw = AppendEvent(nil, uint64(n), mark.Name, time.Time{}, true)
			mark.Identity = store.Identity{MUID: store.MUID(fmt.Sprintf("4be0643f-1d98-473b-97cd-ca98%08d", mix(uint64(n))%users))}
			mark.Identity.Add(store.Email, emailOf(uint64(n)))
			return mark
		})
		s.settle(b)
		s.printSpace(b)
		s.readFeed(b, m)
		for _, person := range []struct {
			name string
			id   store.Identity
		}{
			{"a muid", store.Identity{MUID: store.MUID(fmt.Sprintf("4be0643f-1d98-473b-97cd-ca98%08d", mix(7)%users))}},
			{"an email", identityOf(emailOf(8))},
		} {
			s.readPerson(b, m, person.name, person.id)
		}
		s.erase(b, m, "a muid", store.Identity{MUID: store.MUID(fmt.Sprintf("4be0643f-1d98-473b-97cd-ca98%08d", mix(7)%users))}, emailOf(7))
		s.erase(b, m, "an email", identityOf(emailOf(8)), emailOf(8))
		s.expire(b, m)
	}
}

func emailOf(n uint64) string { return fmt.Sprintf("user%08d@example.com", mix(n)%users) }

func identityOf(email string) (id store.Identity) {
	id.Add(store.Email, email)
	return id
}

// space returns the bytes of all files.
func (s *shop) space(b *testing.B) (all int64) {
	for _, path := range s.files(b) {
		if info, err := os.Stat(path); err == nil {
			all += info.Size()
		}
	}
	return all
}

// tables returns the bytes of the archive's tables.
func (s *shop) tables(b *testing.B) (all int64) {
	paths, err := filepath.Glob(filepath.Join(s.dir, "archive", "*.sst"))
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			all += info.Size()
		}
	}
	return all
}

func (s *shop) files(b *testing.B) (paths []string) {
	if err := filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && filepath.Base(path) != "spare" {
			paths = append(paths, path)
		}
		return nil // a file may go at any time
	}); err != nil {
		b.Fatal(err)
	}
	return paths
}

func (s *shop) printSpace(b *testing.B) {
	fmt.Printf("%s: %.1f bytes of the disk for each of %d events\n", s.kind, float64(s.space(b))/float64(s.events), s.events)
}

// readFeed reads all events in the order of receipt.
func (s *shop) readFeed(b *testing.B, m store.MerchantID) {
	events, began := 0, time.Now()
	for q := (store.FeedQuery{Merchants: []store.MerchantID{m}}); ; {
		end, err := s.Feed(b.Context(), q, func(*store.Received) bool { events++; return true })
		if err != nil {
			b.Fatal(err)
		}
		if q.After = end.Cursor; !end.More {
			break
		}
	}
	if events != s.events {
		b.Fatalf("the feed has %d events, want %d", events, s.events)
	}
	fmt.Printf("%s: the feed is read at %.0f events/s\n", s.kind, float64(events)/time.Since(began).Seconds())
}

func (s *shop) readPerson(b *testing.B, m store.MerchantID, name string, id store.Identity) {
	records := 0
	took, err := timed(func() error {
		_, err := s.PersonalData(b.Context(), m, id, false, func(*store.PersonalRecord) error { records++; return nil })
		return err
	})
	if err != nil || records == 0 {
		b.Fatal(records, err)
	}
	fmt.Printf("%s: personal data of %s: %d records in %v (CPU %v)\n", s.kind, name, records, took.wall, took.cpu)
}

// erase erases a person and looks for an email in all files.
func (s *shop) erase(b *testing.B, m store.MerchantID, name string, id store.Identity, email string) {
	var erasure store.Erasure
	took, err := timed(func() (err error) {
		if erasure, err = s.Erase(b.Context(), m, id, store.ErasureOptions{}); err != nil {
			return err
		}
		for state := erasure.State; erasure.State != store.ErasureDone && err == nil; time.Sleep(10 * time.Millisecond) {
			began := time.Since(erasure.At)
			if erasure, err = s.Erasure(b.Context(), erasure.ID); erasure.State != state {
				state = erasure.State
				fmt.Printf("%s: erasure of %s: %s after %v\n", s.kind, name, state, began.Round(time.Millisecond))
			}
		}
		return err
	})
	if err != nil || erasure.Events == 0 {
		b.Fatal(erasure, err)
	}
	s.events -= erasure.Events
	fmt.Printf("%s: erasure of %s: %d events and %d links in %v (CPU %v)\n", s.kind, name, erasure.Events, erasure.Links, took.wall, took.cpu)
	for _, path := range s.files(b) {
		if content, err := os.ReadFile(path); err == nil && bytes.Contains(content, []byte(email)) {
			b.Errorf("%s still has the email", path)
		}
	}
}

// expire opens the engine with a retention of half the time, and times pages and records while the other half is removed.
func (s *shop) expire(b *testing.B, m store.MerchantID) {
	before := s.pages(b, m, func() bool { return true })
	tables := s.tables(b)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	e, err := local.Open(s.dir, local.Options{Retention: 200})
	if err != nil {
		b.Fatal(err)
	}
	s.Engine = e
	opened := time.Since(began)
	during := s.pages(b, m, func() bool {
		return s.tables(b) < tables*6/10 || time.Since(began) > 30*time.Minute
	})
	fmt.Printf("%s: half of the events expired: opened in %v, %.0f MB of tables became %.0f MB after %v\n", s.kind, opened, float64(tables)/1e6, float64(s.tables(b))/1e6, time.Since(began))
	for i, name := range []string{"a page", "100 events recorded"} {
		fmt.Printf("%s: %s: p50 %v p99 %v before, p50 %v p99 %v meanwhile (%d and %d times)\n", s.kind, name,
			before[i][len(before[i])/2], before[i][len(before[i])*99/100], during[i][len(during[i])/2], during[i][len(during[i])*99/100], len(before[i]), len(during[i]))
	}
}

// pages lists and records by turns, 500 times and until done says so, and returns how long each took, sorted.
func (s *shop) pages(b *testing.B, m store.MerchantID, done func() bool) (took [2][]time.Duration) {
	for i := 0; i < 500 || !done(); i++ {
		page, err := timed(func() error {
			_, err := s.Events(b.Context(), store.Query{Merchant: m, SortBy: store.ByTime, Limit: 50, Offset: i * 97 % 5000})
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		marks := make([]store.Mark, 100)
		for n := range marks {
			marks[n] = mark(s.tags[0], n, time.Now())
		}
		recorded, err := timed(func() error { return s.Record(b.Context(), marks) })
		if err != nil {
			b.Fatal(err)
		}
		took[0], took[1] = append(took[0], page.wall), append(took[1], recorded.wall)
		time.Sleep(5 * time.Millisecond)
	}
	slices.Sort(took[0])
	slices.Sort(took[1])
	return took
}
