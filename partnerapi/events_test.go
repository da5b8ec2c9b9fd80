package partnerapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi/export"
)

// names returns the names of the listed events, in their order.
func (a answer) names() string {
	a.t.Helper()
	list, ok := a.at("events").([]any)
	if !ok {
		a.t.Fatalf("no events in %s", a.body)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.(map[string]any)["event_name"].(string))
	}
	return strings.Join(names, " ")
}

func TestEventsFilters(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	id := p.merchant("Shop")
	client := p.generate(id, "client-side", "").str("tagId")
	server := p.generate(id, "server-side", "example.com").str("tagId")
	theirs := other.merchant("Theirs")
	theirTag := other.generate(theirs, "client-side", "").str("tagId")
	s.record(theirs, theirTag, event{at: "2026-11-03T12:00:00Z", name: "Theirs"})
	s.record(id, client,
		event{at: "2026-11-01T00:00:00Z", name: "B"},
		event{at: "2026-11-02T10:00:00.5Z", name: "C"},
		event{at: "2026-11-02T10:00:00.25Z", name: "A"})
	s.record(id, server,
		event{at: "2026-11-02T23:59:59.999999Z", name: "E"},
		event{at: "2026-11-03T00:00:00Z", name: "D"})

	for _, c := range []struct{ is, query, names string }{
		{"newest first", "", "D E C A B"},
		{"oldest first", "&sortOrder=asc", "B A C E D"},
		{"newest first in words", "&sortOrder=desc&sortBy=event_time", "D E C A B"},
		{"by name", "&sortBy=event_name&sortOrder=asc", "A B C D E"},
		{"by name from the end", "&sortBy=event_name", "E D C B A"},
		{"of some names", "&events=A,D", "D A"},
		{"of names with spaces around and commas between", "&events=%20A%20,,%20D,", "D A"},
		{"of a name given twice", "&events=A,A", "A"},
		{"of unknown names", "&events=Nothing,a", ""},
		{"an empty list of names is no filter", "&events=", "D E C A B"},
		{"a list of empty names is no filter", "&events=,%20,", "D E C A B"},
		{"of one tag", "&tagId=" + server, "D E"},
		{"of another merchant's tag", "&tagId=" + theirTag, ""},
		{"of an unknown tag", "&tagId=cs_unknown", ""},
		{"from a day on", "&startDate=2026-11-02", "D E C A"},
		{"to the end of a day", "&endDate=2026-11-02", "E C A B"},
		{"of one day", "&startDate=2026-11-02&endDate=2026-11-02", "E C A"},
		{"from a second on", "&startDate=2026-11-02T10:00:00Z", "D E C A"},
		{"to the end of a second", "&endDate=2026-11-02T10:00:00Z", "C A B"},
		{"of one second", "&startDate=2026-11-02T10:00:00Z&endDate=2026-11-02T10:00:00Z", "C A"},
		{"to a fraction of a second, inclusive", "&endDate=2026-11-02T10:00:00.25Z", "A B"},
		{"to a fraction with a comma", "&endDate=2026-11-02T10:00:00,25Z", "A B"},
		{"from a fraction of a second, inclusive", "&startDate=2026-11-02T10:00:00.5Z", "D E C"},
		{"to a time in another zone", "&endDate=2026-11-02T12:00:00%2B02:00", "C A B"},
		{"to a time in a zone whose + was not encoded", "&endDate=2026-11-02T12:00:00+02:00", "C A B"},
		{"to a time in a zone to the west", "&endDate=2026-11-02T05:00:00-05:00", "C A B"},
		{"to a time in lower case", "&endDate=2026-11-02t10:00:00z", "C A B"},
		{"to a leap second", "&endDate=2016-12-31T23:59:60Z", ""},
		{"from a leap second on", "&startDate=2016-12-31T23:59:60.5Z", "D E C A B"},
		{"from year 1 on", "&startDate=0001-01-01T00:00:00.000Z", "D E C A B"},
		{"to year 1", "&endDate=0001-01-01T00:00:00.000Z", ""},
		{"to the first day of year 1", "&endDate=0001-01-01", ""},
		{"to year 0", "&endDate=0000-12-31T23:59:59.5Z", ""},
		{"before anything happened", "&endDate=1999-12-31", ""},
		{"after all", "&startDate=2026-11-04", ""},
		{"all at once", "&tagId=" + client + "&events=A,B,C&startDate=2026-11-02&endDate=2026-11-02&sortBy=event_name&sortOrder=asc", "A C"},
	} {
		t.Run(c.is, func(t *testing.T) {
			a := p.get(events + "?merchantId=" + id + c.query).in(t)
			a.is(200).has("pagination.total", len(strings.Fields(c.names)))
			if got := a.names(); got != c.names {
				t.Errorf("got %q, want %q", got, c.names)
			}
		})
	}
}

// Year 1 begins with Go's zero time, which means "no bound" in a store.Query.
func TestABoundAtTheStartOfYear1IsABound(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	tag := p.generate(id, "client-side", "").str("tagId")
	s.record(id, tag,
		event{at: "0000-06-01T00:00:00Z", name: "Year0"},
		event{at: "0000-12-31T23:59:59.999999Z", name: "JustBefore"},
		event{at: "0001-01-01T00:00:00Z", name: "At"},
		event{at: "0001-01-01T00:00:00.000001Z", name: "JustAfter"},
		event{at: "2026-11-01T00:00:00Z", name: "Now"})
	for query, want := range map[string]string{
		"":                                       "Year0 JustBefore At JustAfter Now",
		"&startDate=0001-01-01T00:00:00.000Z":    "At JustAfter Now",
		"&startDate=0001-01-01":                  "At JustAfter Now",
		"&startDate=0001-01-01T02:00:00%2B02:00": "At JustAfter Now",
		"&endDate=0001-01-01T00:00:00.000Z":      "Year0 JustBefore At",
		"&endDate=0000-12-31":                    "Year0 JustBefore",
		"&startDate=0000-12-31&endDate=0001-01-01T00:00:00.0Z":                     "JustBefore At",
		"&startDate=0001-01-01T00:00:00Z&endDate=0001-01-01T00:00:00.000Z":         "At",
		"&startDate=0001-01-01T00:00:00.000000500Z&endDate=0001-01-01T00:00:00.1Z": "JustAfter",
	} {
		if got := p.get(events + "?sortOrder=asc&merchantId=" + id + query).is(200).names(); got != want {
			t.Errorf("%q: got %q, want %q", query, got, want)
		}
	}
}

func TestEventsRefuse(t *testing.T) {
	const (
		date  = "must be an ISO 8601 date or time, such as 2026-11-20 or 2026-11-20T08:30:00Z"
		twice = "is given more than once"
	)
	p := newService(t).partner("Agency")
	for _, c := range []struct{ query, field, why string }{
		{"", "merchantId", "is required"},
		{"page=1", "merchantId", "is required"},
		{"merchantId=", "merchantId", "must not be empty"},
		{"merchantId=a&merchantId=a", "merchantId", twice},
		{"merchantId=a&sortOrder=up", "sortOrder", "must be one of desc, asc"},
		{"merchantId=a&sortOrder=ASC", "sortOrder", "must be one of desc, asc"},
		{"merchantId=a&sortOrder=", "sortOrder", "must be one of desc, asc"},
		{"merchantId=a&sortOrder=asc&sortOrder=asc", "sortOrder", twice},
		{"merchantId=a&sortBy=id", "sortBy", "must be one of event_time, event_name"},
		{"merchantId=a&sortBy=", "sortBy", "must be one of event_time, event_name"},
		{"merchantId=a&events=A&events=B", "events", twice},
		{"merchantId=a&tagId=", "tagId", "must not be empty"},
		{"merchantId=a&tagId=x&tagId=x", "tagId", twice},
		{"merchantId=a&startDate=", "startDate", date},
		{"merchantId=a&startDate=yesterday", "startDate", date},
		{"merchantId=a&startDate=2026-02-30", "startDate", date},
		{"merchantId=a&startDate=2026-13-01", "startDate", date},
		{"merchantId=a&startDate=2026-1-1", "startDate", date},
		{"merchantId=a&startDate=20261101", "startDate", date},
		{"merchantId=a&startDate=1793491200", "startDate", date},
		{"merchantId=a&startDate=01/11/2026", "startDate", date},
		{"merchantId=a&startDate=2026-11-01T10:00:00", "startDate", date},
		{"merchantId=a&startDate=2026-11-01T24:00:00Z", "startDate", date},
		{"merchantId=a&startDate=2026-11-01T10:00:00Z%00", "startDate", date},
		{"merchantId=a&startDate=2026-11-01&startDate=2026-11-01", "startDate", twice},
		{"merchantId=a&endDate=tomorrow", "endDate", date},
		{"merchantId=a&endDate=2026-11-01T10:00:00%2B25:00", "endDate", date},
		{"merchantId=a&startDate=2026-11-01T10:00:00%2B24:00", "startDate", date},
		{"merchantId=a&endDate=2026-11-01T10:00:00-24:00", "endDate", date},
		{"merchantId=a&endDate=2026-11-01T10:00:00%2B02:60", "endDate", date},
		{"merchantId=a&endDate=2026-11-01T10:00:60Z", "endDate", date},
		{"merchantId=a&endDate=2026-11-01T1:00:00Z", "endDate", date},
		{"merchantId=a&startDate=0001-01-01T00:00:00Z&endDate=0000-12-31", "startDate", "must not be after endDate"},
		{"merchantId=a&startDate=0001-01-01T00:00:00.000000001Z&endDate=0001-01-01T00:00:00.000Z", "startDate", "must not be after endDate"},
		{"merchantId=a&startDate=2026-11-02&endDate=2026-11-01", "startDate", "must not be after endDate"},
		{"merchantId=a&startDate=2026-11-02T00:00:01Z&endDate=2026-11-02T00:00:00Z", "startDate", "must not be after endDate"},
		{"merchantId=a&startDate=2026-11-02T10:00:00Z&endDate=2026-11-02T10:00:00%2B02:00", "startDate", "must not be after endDate"},
	} {
		t.Run(c.query, func(t *testing.T) {
			a := p.get(events + "?" + c.query).in(t)
			a.invalid(c.field, c.why)
		})
	}
}

func TestAListParameterSkipsEmptyValues(t *testing.T) {
	var args fasthttp.Args
	args.Parse("events=B, A,,B,%20A%20,C")
	p := params{args: &args}
	if got := p.list("events"); !slices.Equal(got, []string{"B", "A", "B", "A", "C"}) || p.err != nil {
		t.Errorf("got %q, %v", got, p.err)
	}
}

func TestEventsChecksTheMerchant(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	theirs := other.merchant("Theirs")
	other.generate(theirs, "client-side", "")
	bare := p.merchant("No tags")

	p.get(events+"?merchantId="+nobody).fails(404, "NOT_FOUND", missing)
	p.get(events+"?merchantId=anything").fails(404, "NOT_FOUND", missing)
	p.get(events+"?merchantId=%00").fails(404, "NOT_FOUND", missing)
	p.get(events+"?merchantId="+strings.Repeat("x", 40000)).fails(404, "NOT_FOUND", missing)
	p.get(events+"?merchantId="+bare).fails(404, "NOT_FOUND", missing+": the merchant has no tag yet")
	p.get(events+"?merchantId="+theirs).fails(403, "FORBIDDEN", denied)

	p.generate(bare, "client-side", "")
	a := p.get(events+"?merchantId="+bare).is(200).
		has("pagination.total", 0).has("pagination.totalItems", 0).has("pagination.totalPages", 0).
		has("pagination.hasNextPage", false).has("pagination.hasPreviousPage", false)
	if !strings.HasPrefix(a.body, `{"events":[],`) {
		t.Errorf("without events, events must be an empty list: %s", a.body)
	}
	p.get(events+"?page=7&merchantId="+bare).is(200).has("pagination.hasPreviousPage", false)
}

func TestEventsPages(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	tag := p.generate(id, "client-side", "").str("tagId")
	for i := range 30 {
		s.record(id, tag, event{at: fmt.Sprintf("2026-11-01T00:00:%02dZ", i), name: fmt.Sprintf("E%02d", i)})
	}
	for _, c := range []struct {
		is, query          string
		page, limit, pages int
		next, previous     bool
		first              any
		count              int
	}{
		{"twelve to a page", "", 1, 12, 3, true, false, "E29", 12},
		{"the last page is what remains", "&page=3", 3, 12, 3, false, true, "E05", 6},
		{"a page past the end is empty", "&page=4", 4, 12, 3, false, true, nil, 0},
		{"a page far past the end is empty", "&page=92233720368547758&limit=100", 92233720368547758, 100, 1, false, true, nil, 0},
		{"a hundred to a page", "&limit=100", 1, 100, 1, false, false, "E29", 30},
		{"one to a page", "&limit=1&page=30", 30, 1, 30, false, true, "E00", 1},
	} {
		t.Run(c.is, func(t *testing.T) {
			a := p.get(events + "?merchantId=" + id + c.query).in(t)
			a.is(200).keys("", "events", "pagination").
				keys("pagination", "currentPage", "itemsPerPage", "totalItems", "total", "totalPages", "hasNextPage", "hasPreviousPage").
				has("pagination.currentPage", c.page).has("pagination.itemsPerPage", c.limit).
				has("pagination.totalItems", 30).has("pagination.total", 30).has("pagination.totalPages", c.pages).
				has("pagination.hasNextPage", c.next).has("pagination.hasPreviousPage", c.previous).
				has("events.0.event_name", c.first)
			if got := len(a.at("events").([]any)); got != c.count {
				t.Errorf("%d events, want %d", got, c.count)
			}
		})
	}
}

func TestAnEventIsShownAsItWasSent(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	tag := p.generate(id, "client-side", "").str("tagId")
	const raw = `{ "event" : "Purchase", "value":1.50, "big":12345678901234567890, "html":"<b>", "event":"again" }`
	s.record(id, tag, event{at: "2026-11-02T12:00:00.987654+02:00", name: "Purchase", muid: "a \"b\"\xff<", raw: raw})

	a := p.get(events+"?merchantId="+id).is(200).
		keys("events.0", fieldsIn(export.Listing)...).
		has("events.0.muid", "a \"b\"\uFFFD<").
		has("events.0.event_name", "Purchase").
		has("events.0.event_time", "2026-11-02T10:00:00Z")
	if a.str("events.0.id") == "" {
		t.Error("the event has no id")
	}
	if !strings.Contains(a.body, `"raw_data":`+raw+`}`) {
		t.Errorf("raw_data is not what was sent: %s", a.body)
	}
}
