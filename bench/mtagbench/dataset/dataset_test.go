package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/load"
)

func testDataset(tags, events int) *Dataset {
	d := &Dataset{Merchant: "m", Events: events, Start: time.Date(2025, 10, 1, 0, 0, 0, 0, time.UTC), Step: 1234567 * time.Microsecond}
	for i := range tags {
		d.Tags = append(d.Tags, Tag{ID: fmt.Sprintf("tag%d", i), Host: fmt.Sprintf("host%d", i)})
	}
	return d
}

// count gives the same as counting one by one.
func TestDatasetCount(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, tags := range []int{1, 2} {
		d := testDataset(tags, 400)
		for range 200 {
			lo := random.IntN(d.Events)
			hi := lo + random.IntN(d.Events-lo)
			tag := random.IntN(tags+1) - 1
			selected := map[string]bool{bench.Names[random.IntN(len(bench.Names))]: true, bench.Names[random.IntN(len(bench.Names))]: true}
			if random.IntN(3) == 0 {
				selected = nil
			}
			want := 0
			for i := lo; i < hi; i++ {
				if (selected == nil || selected[d.name(i)]) && (tag < 0 || i%tags == tag) {
					want++
				}
			}
			if got := d.count(lo, hi, selected, tag); got != want {
				t.Fatalf("%d tags, events %d to %d, names %v, tag %d: %d, want %d", tags, lo, hi, selected, tag, got, want)
			}
		}
	}
}

// A filler sends every event once, to its tag, and each tag's in their order.
func TestFillerSendsEachEventOnce(t *testing.T) {
	d := testDataset(2, 5000)
	f := newFiller(d, load.Target{})
	seen, last := map[string]int{}, [2]string{} // tag by time; the last time of each tag
	for request, events := f.next(nil); events > 0; request, events = f.next(nil) {
		head, body, _ := bytes.Cut(request, []byte("\r\n\r\n"))
		tag := 0
		if bytes.Contains(head, []byte("POST /mark/tag1 HTTP/1.1\r\nHost: host1\r\n")) {
			tag = 1
		}
		var batch []struct {
			Event string
			Time  string `json:"event_time"`
		}
		if err := json.Unmarshal(body, &batch); err != nil || len(batch) != events {
			t.Fatalf("%d of %d events: %v", len(batch), events, err)
		}
		for _, e := range batch {
			if _, twice := seen[e.Time]; twice || last[tag] >= e.Time {
				t.Fatalf("the event of %s is sent twice, or after that of %s", e.Time, last[tag])
			}
			seen[e.Time], last[tag] = tag, e.Time
		}
	}
	if len(seen) != d.Events {
		t.Errorf("%d events", len(seen))
	}
	for i := range d.Events {
		at := d.at(i).Format("2006-01-02T15:04:05.000000Z")
		if tag, sent := seen[at]; !sent || tag != i%2 {
			t.Fatalf("event %d was sent %v, to tag %d", i, sent, tag)
		}
	}
}

// A query requests a page that exists, with the filters of its kind.
func TestQueries(t *testing.T) {
	d := testDataset(2, 4000)
	for _, k := range kinds {
		for i := range 100 {
			q := k.query(d, rand.New(rand.NewPCG(7, uint64(i))))
			if q.total > 0 && q.returned == 0 || q.returned > 100 || q.total > d.Events {
				t.Errorf("%s: %d of %d: %s", k.name, q.returned, q.total, q.path)
			}
			if strings.Contains(q.path, "events=") != k.filter || strings.Contains(q.path, "startDate=") != k.ranged || strings.Contains(q.path, "tagId=") != k.tagged {
				t.Errorf("%s: %s", k.name, q.path)
			}
		}
	}
}

// check accepts an answer only with the right total, length, order and names.
func TestCheckOfAnswers(t *testing.T) {
	const at = `{"id":"%s","event_name":"%s","event_time":"2026-01-01T00:00:0%dZ"}`
	page := func(total int, events ...string) string {
		return fmt.Sprintf(`{"events":[%s],"pagination":{"totalItems":%d}}`, strings.Join(events, ","), total)
	}
	event := func(id, name string, second int) string { return fmt.Sprintf(at, id, name, second) }
	down := query{total: 9, returned: 2}
	up := query{total: 9, returned: 2, asc: true}
	byName := query{total: 9, returned: 2, byName: true, asc: true}
	logins := query{total: 9, returned: 2, names: map[string]bool{"Login": true}}
	for _, c := range []struct {
		what string
		q    query
		body string
		good bool
	}{
		{"newest first", down, page(9, event("1", "Login", 5), event("2", "Login", 4)), true},
		{"equal times", down, page(9, event("1", "Login", 5), event("2", "Login", 5)), true},
		{"oldest first where newest was asked for", down, page(9, event("1", "Login", 4), event("2", "Login", 5)), false},
		{"oldest first", up, page(9, event("1", "Login", 4), event("2", "Login", 5)), true},
		{"newest first where oldest was asked for", up, page(9, event("1", "Login", 5), event("2", "Login", 4)), false},
		{"names in order", byName, page(9, event("1", "Login", 4), event("2", "Refund", 5)), true},
		{"names out of order", byName, page(9, event("1", "Refund", 5), event("2", "Login", 4)), false},
		{"equal names, newest first", byName, page(9, event("1", "Login", 5), event("2", "Login", 4)), true},
		{"equal names, oldest first", byName, page(9, event("1", "Login", 4), event("2", "Login", 5)), false},
		{"a wrong total", down, page(8, event("1", "Login", 5), event("2", "Login", 4)), false},
		{"a short page", down, page(9, event("1", "Login", 5)), false},
		{"an event twice", down, page(9, event("1", "Login", 5), event("1", "Login", 5)), false},
		{"a name not asked for", logins, page(9, event("1", "Login", 5), event("2", "Refund", 4)), false},
		{"no JSON", down, "<html>", false},
	} {
		if err := c.q.check([]byte(c.body)); (err == nil) != c.good {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// check accepts a summary only with the right total, buckets and groups.
func TestCheckOfSummaries(t *testing.T) {
	d := testDataset(1, 4*len(bench.Names))
	groups := func(n int) string {
		var all []string
		for _, name := range bench.Names[:n] {
			all = append(all, fmt.Sprintf(`{"event_name":%q,"total":4,"counts":[1,3]}`, name))
		}
		return strings.Join(all, ",")
	}
	days, plain := summaryKind{bucket: "day", byName: true}, summaryKind{}
	for _, c := range []struct {
		what string
		kind summaryKind
		body string
		good bool
	}{
		{"a total", plain, `{"total":80}`, true},
		{"a wrong total", plain, `{"total":79}`, false},
		{"days by name", days, `{"total":80,"counts":[20,60],"groups":[` + groups(20) + `]}`, true},
		{"a bucket is missing", days, `{"total":80,"counts":[20],"groups":[` + groups(20) + `]}`, false},
		{"a name is missing", days, `{"total":80,"counts":[20,60],"groups":[` + groups(19) + `]}`, false},
		{"a name has too few", days, `{"total":80,"counts":[20,60],"groups":[` + strings.Replace(groups(20), "4", "3", 1) + `]}`, false},
		{"a name's buckets are wrong", days, `{"total":80,"counts":[20,60],"groups":[` + strings.Replace(groups(20), "[1,3]", "[1,2]", 1) + `]}`, false},
		{"no JSON", plain, "<html>", false},
	} {
		if err := c.kind.check(d, 0, d.Events, []byte(c.body)); (err == nil) != c.good {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
