package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local"
)

// BenchmarkMadeUpNames lists pages of a merchant without made-up names (plain), of the same merchant after a flood of them
// (flooded), and of the same merchant when 2,000 of them had come before everything else (flooded first). It prints the
// median of each kind of page, and the ratio to the plain one. A fourth merchant has a flood of the same size, but with
// common names (shuffled). It shows what a flood costs whatever its names are: its events come in random order of time, so
// each event of a page is in another chunk of the journal. The defaults take seconds. For the sizes that count:
//
//	BENCH_EVENTS=10000000 BENCH_NAMES=1000000 go test -run '^$' -bench MadeUpNames -benchtime 1x -timeout 2h ./bench
func BenchmarkMadeUpNames(b *testing.B) {
	size, names := fromEnvironment(b, "BENCH_EVENTS", 100_000), fromEnvironment(b, "BENCH_NAMES", 20_000)
	var shops []*shop
	for _, kind := range []string{"plain", "flooded", "flooded first", "shuffled"} {
		s := openShop(b, kind, size)
		if kind == "flooded first" {
			s.flood(b, 2000, madeUpName)
		}
		s.fill(b)
		switch kind {
		case "flooded":
			s.flood(b, names, madeUpName)
		case "shuffled":
			s.flood(b, names, func(n int) string { return Names[n%len(Names)] })
		}
		shops = append(shops, s)
		s.settle(b)
	}
	for range b.N {
		fmt.Println("\n" + comparePages(b, shops)) // b.Log would cut it off
	}
}

func fromEnvironment(b *testing.B, name string, fallback int) int {
	v := os.Getenv(name)
	if v == "" {
		return fallback
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	return n
}

// shop is a merchant in an engine of its own.
type shop struct {
	store.Engine
	kind   string
	dir    string
	tags   []*store.Tag
	size   int // events with common names
	madeUp int // names
	start  time.Time
	step   time.Duration
	events int
	memory uint64 // the most that this process has used, in MiB, without files
}

func openShop(b *testing.B, kind string, size int) *shop {
	dir := b.TempDir()
	s := &shop{kind: kind, dir: dir, size: size, start: time.Now().AddDate(0, 0, -400).Truncate(time.Second), step: 400 * 24 * time.Hour / time.Duration(size)}
	e, err := local.Open(dir, local.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s.Engine = e
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	first := addTag(b, e)
	second, _, err := e.GenerateTag(b.Context(), first.Merchant, store.ServerSide, "shop.example")
	if err != nil {
		b.Fatal(err)
	}
	s.tags = []*store.Tag{first, &second}
	return s
}

// fill records the events with common names. Of these, 20 % are backdated, and 25 % are of the second tag.
func (s *shop) fill(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	s.record(b, s.size, func(n int) store.Mark {
		at := n
		if n%5 == 0 {
			at = rng.IntN(n + 1)
		}
		return mark(s.tags[min(1, n/20%4/3)], n, s.start.Add(time.Duration(at)*s.step))
	})
}

// flood records 1 to 10 events of each of so many names, at any time, in random order.
func (s *shop) flood(b *testing.B, names int, name func(n int) string) {
	rng := rand.New(rand.NewPCG(3, 4))
	s.madeUp = names
	s.record(b, 11*names/2, func(n int) store.Mark {
		m := mark(s.tags[rng.IntN(2)], n, s.start.Add(time.Duration(rng.IntN(s.size))*s.step))
		m.Name = name(n * 2 / 11)
		if rng.IntN(2) == 0 {
			m.Name = name(rng.IntN(names))
		}
		m.Raw = AppendEvent(nil, uint64(n), m.Name, time.Time{}, false)
		return m
	})
}

// madeUpName returns the n-th made-up name. They are spread over the alphabet.
func madeUpName(n int) string {
	random := mix(uint64(n))
	return fmt.Sprintf("%c%c%c%dX%d", 'A'+random%26, 'a'+random>>8%26, 'a'+random>>16%26, random>>24%1000, n)
}

func (s *shop) record(b *testing.B, n int, mark func(n int) store.Mark) {
	began, written := time.Now(), writtenBytes()
	for i := 0; i < n; {
		marks := make([]store.Mark, 0, store.MaxBatchEvents)
		for range min(store.MaxBatchEvents, n-i) {
			marks = append(marks, mark(i))
			i++
		}
		if err := s.Record(b.Context(), marks); err != nil {
			b.Fatal(err)
		}
		s.memory = max(s.memory, procValue("/proc/self/status", "RssAnon:")>>10)
	}
	s.events += n
	fmt.Printf("%s: %d events recorded in %v, %.0f bytes written an event, at most %d MiB of memory\n",
		s.kind, n, time.Since(began).Round(time.Millisecond), float64(writtenBytes()-written)/float64(n), s.memory)
}

// settle reopens the engine, so that the index is merged, and waits until it is compacted.
func (s *shop) settle(b *testing.B) {
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	began, written := time.Now(), writtenBytes()
	e, err := local.Open(s.dir, local.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s.Engine = e
	opened := time.Since(began)
	quiet := 2 * time.Second
	for last, before := time.Now(), written; time.Since(last) < quiet; time.Sleep(quiet / 20) {
		if now := writtenBytes(); now != before {
			before, last = now, time.Now()
		}
	}
	info, err := os.Stat(filepath.Join(s.dir, "index.db"))
	if err != nil {
		b.Fatal(err)
	}
	fmt.Printf("%s: opened in %v, compacted after %v with %d MiB; index.db has %.1f bytes an event\n", s.kind, opened.Round(time.Millisecond),
		(time.Since(began) - quiet).Round(time.Second), (writtenBytes()-written)>>20, float64(info.Size())/float64(s.events))
}

// writtenBytes returns how many bytes this process has written to disk.
func writtenBytes() uint64 { return procValue("/proc/self/io", "write_bytes:") }

func procValue(path, name string) (v uint64) {
	text, _ := os.ReadFile(path) // only in Linux
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			v, _ = strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
		}
	}
	return v
}

// pageKind is a kind of page. plain is the query whose page is compared, when it is another one.
type pageKind struct {
	name  string
	query store.Query
	plain *store.Query
}

// comparePages times each kind of page in turns, and returns a table: medians, and their ratios to the plain ones.
func comparePages(b *testing.B, shops []*shop) string {
	const rounds, limit = 15, 100
	var table strings.Builder
	fmt.Fprintf(&table, "%-60s", "p50 of a page")
	for i, s := range shops {
		fmt.Fprintf(&table, " %14s", s.kind)
		if i > 0 {
			fmt.Fprintf(&table, "  ratio     (CPU)")
		}
	}
	worst := make([]float64, len(shops))
	for _, kind := range pageKinds(shops[1]) {
		fmt.Fprintf(&table, "\n%-60s", kind.name)
		wall, cpu := make([][]time.Duration, len(shops)), make([][]time.Duration, len(shops))
		for round := range rounds {
			for i, s := range shops {
				q := kind.query
				if i != 1 && kind.plain != nil {
					q = *kind.plain
				}
				took := s.list(b, q, limit, round)
				wall[i], cpu[i] = append(wall[i], took.wall), append(cpu[i], took.cpu)
			}
		}
		for i := range shops {
			slices.Sort(wall[i])
			slices.Sort(cpu[i])
			fmt.Fprintf(&table, " %14v", wall[i][rounds/2].Round(time.Microsecond))
			if i > 0 {
				ratio := float64(wall[i][rounds/2]) / float64(wall[0][rounds/2])
				worst[i] = max(worst[i], ratio)
				fmt.Fprintf(&table, " %6.2f %9.2f", ratio, float64(cpu[i][rounds/2])/float64(cpu[0][rounds/2]))
			}
		}
	}
	for i, s := range shops[1:] {
		b.ReportMetric(worst[i+1], "worst-"+strings.ReplaceAll(s.kind, " ", "-")+"-ratio")
	}
	return table.String()
}

// list lists a page, and returns how long that took. A negative offset counts from the end, -1 is the last page, and an
// offset of 1 is the middle. Rounds list neighbouring pages, so that not all have the same events.
func (s *shop) list(b *testing.B, q store.Query, limit, round int) pageTime {
	q.Merchant, q.Limit = s.tags[0].Merchant, limit
	if q.Tag != "" {
		q.Tag = s.tags[1].ID
	}
	if q.Offset != 0 {
		count := q
		count.Offset, count.Limit = 0, 1
		page, err := s.Events(b.Context(), count)
		if err != nil {
			b.Fatal(err)
		}
		if q.Offset < 0 {
			q.Offset = max(0, page.Total-limit)
		} else {
			q.Offset = page.Total / 2
		}
		q.Offset = max(0, q.Offset-round*limit)
	}
	var page store.Page
	took, err := timed(func() (err error) {
		page, err = s.Events(b.Context(), q)
		return err
	})
	if err != nil || len(page.Events) == 0 {
		b.Fatalf("%s: %+v: %d events, %v", s.kind, q, len(page.Events), err)
	}
	return took
}

// timed calls do and returns how long that took.
func timed(do func() error) (took pageTime, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Timespec
	err = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before)
	began := time.Now()
	failed := do()
	took.wall = time.Since(began)
	err = errors.Join(err, failed, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after))
	took.cpu = time.Duration(after.Nano() - before.Nano())
	return took, err
}

// pageTime is how long a page took. The CPU time depends less on what else the machine does.
type pageTime struct{ wall, cpu time.Duration }

// pageKinds returns every combination of order, place and filter.
func pageKinds(s *shop) (kinds []pageKind) {
	quarter := s.start.AddDate(0, 0, 100)
	common := []string{"Purchase", "Refund", "Login"}
	var madeUp []string
	for i := range 20 {
		madeUp = append(madeUp, madeUpName(i*s.madeUp/20))
	}
	for _, filter := range []struct {
		name  string
		query store.Query
		plain *store.Query
	}{
		{"", store.Query{}, nil},
		{" tag", store.Query{Tag: "second"}, nil},
		{" range", store.Query{From: &quarter, To: new(quarter.AddDate(0, 0, 100))}, nil},
		{" hour", store.Query{From: &quarter, To: new(quarter.Add(time.Hour))}, nil},
		{" tag range", store.Query{Tag: "second", From: &quarter, To: new(quarter.AddDate(0, 0, 100))}, nil},
		{" names", store.Query{Names: common}, nil},
		{" tag names range", store.Query{Tag: "second", Names: common, From: &quarter, To: new(quarter.AddDate(0, 0, 100))}, nil},
		{" made-up names", store.Query{Names: madeUp}, &store.Query{Names: common}},
		{" common and made-up names, tag, range",
			store.Query{Tag: "second", Names: slices.Concat(common, madeUp), From: &quarter, To: new(quarter.AddDate(0, 0, 100))},
			&store.Query{Tag: "second", Names: common, From: &quarter, To: new(quarter.AddDate(0, 0, 100))}},
	} {
		for _, by := range []store.SortKey{store.ByTime, store.ByName} {
			for _, asc := range []bool{true, false} {
				for place, offset := range map[string]int{"first": 0, "middle": 1, "last": -1} {
					k := pageKind{name: fmt.Sprintf("%s asc=%v %s%s", strings.TrimPrefix(string(by), "event_"), asc, place, filter.name)}
					set := func(q store.Query) store.Query {
						q.SortBy, q.Asc, q.Offset = by, asc, offset
						return q
					}
					k.query = set(filter.query)
					if filter.plain != nil {
						k.plain = new(set(*filter.plain))
					}
					kinds = append(kinds, k)
				}
			}
		}
	}
	slices.SortStableFunc(kinds, func(a, b pageKind) int { return strings.Compare(a.name[:4], b.name[:4]) })
	return kinds
}
