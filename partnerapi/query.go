package partnerapi

import (
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// pathParam returns a parameter of the path, percent-decoded. When its encoding is malformed, it returns "", which is
// the id of no resource.
func pathParam(r *fasthttp.RequestCtx, name string) string {
	raw, _ := r.UserValue(name).(string)
	value, err := url.PathUnescape(raw)
	if err != nil {
		return ""
	}
	return value
}

// checkNames refuses query parameters that the operation does not have: if a misspelt filter were ignored, the answer
// would be wrong.
func checkNames(args *fasthttp.Args, known []string) error {
	for key := range args.All() {
		name := string(key)
		switch {
		case name == "":
			return store.Invalid("query", "has a parameter without a name")
		case !slices.Contains(known, name):
			return store.Invalid(name, "is not a query parameter of this request")
		}
	}
	return nil
}

// params reads query parameters. It keeps the first error in err, which the caller checks after it has read all
// parameters.
type params struct {
	args *fasthttp.Args
	zone *time.Location // of dates without a time; nil for UTC
	err  error
}

// reject sets err, unless there is an earlier error.
func (p *params) reject(name, format string, args ...any) {
	if p.err == nil {
		p.err = store.Invalid(name, format, args...)
	}
}

// text returns the value of a parameter, and whether it is given. A parameter that is given twice is an error: the
// service cannot know which value is meant.
func (p *params) text(name string) (value string, given bool) {
	values := p.args.PeekMulti(name)
	switch len(values) {
	case 0:
		return "", false
	case 1:
		return string(values[0]), true
	}
	p.reject(name, "is given more than once")
	return "", false
}

// id returns the value of a parameter that must not be empty. It is "" when the parameter is not given.
func (p *params) id(name string) string {
	value, given := p.text(name)
	if given && value == "" {
		p.reject(name, "must not be empty")
	}
	return value
}

// required is id for a parameter that must be given.
func (p *params) required(name string) string {
	value := p.id(name)
	if value == "" {
		p.reject(name, "is required")
	}
	return value
}

// maxPart is the longest part of a name or a domain that is searched for, in characters. No name is longer.
const maxPart = 256

// part returns the value of a parameter that must have 1 to maxPart characters. It is "" when the parameter is not given.
func (p *params) part(name string) string {
	value := p.id(name)
	if utf8.RuneCountInString(value) > maxPart {
		p.reject(name, "must have at most %d characters", maxPart)
	}
	return value
}

// number returns the value of a parameter that must be a whole number from 1 to most, in plain digits. It is absent when the
// parameter is not given.
func (p *params) number(name string, absent, most int) int {
	value, given := p.text(name)
	if !given {
		return absent
	}
	n, _ := strconv.ParseUint(value, 10, 64) // n is 0 after a syntax error, the largest uint64 when out of range
	if n == 0 || strings.Trim(value, "0123456789") != "" {
		p.reject(name, "must be a whole number, 1 or more")
		return absent
	}
	number := int(min(n, math.MaxInt))
	if number > most {
		p.reject(name, "must be at most %d", most)
	}
	return number
}

// word returns the value of a parameter that must be one of words. It is the first of them when the parameter is not
// given.
func (p *params) word(name string, words ...string) string {
	value, given := p.text(name)
	if !given {
		return words[0]
	}
	if !slices.Contains(words, value) {
		p.reject(name, "must be one of %s", strings.Join(words, ", "))
	}
	return value
}

// optional returns the value of a parameter that must be one of words. It is "" when the parameter is not given.
func (p *params) optional(name string, words ...string) string {
	if !p.args.Has(name) {
		return ""
	}
	return p.word(name, words...)
}

// flag returns the value of a parameter that must be true or false; nil when the parameter is not given.
func (p *params) flag(name string) *bool {
	if value := p.optional(name, "true", "false"); value != "" {
		return new(value == "true")
	}
	return nil
}

// list returns the comma-separated values of a parameter, without empty ones. It is nil when there are none.
func (p *params) list(name string) []string {
	value, _ := p.text(name)
	var parts []string
	for part := range strings.SplitSeq(value, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// timeRange returns the inclusive range between two parameters. A bound is nil when its parameter is not given.
//
// A date as the end means the end of that day. An end time without a fraction means the end of that second.
// Times are stored in microseconds but listed in whole seconds: a range that ends at the listed time of an event must
// include that event.
func (p *params) timeRange(startName, endName string) (from, to *time.Time) {
	from, _ = p.instant(startName)
	to, end := p.instant(endName)
	if to != nil && end.After(*to) {
		to = new(end.Add(-time.Microsecond))
	}
	if from != nil && to != nil && from.After(*to) {
		p.reject(startName, "must not be after %s", endName)
	}
	return from, to
}

// instant returns the value of a parameter that must be a date or an RFC 3339 time; a date is its first moment. It returns
// nil when the parameter is not given. end is the end of the day for a date, and the end of the second for a time without a
// fraction; for a time with a fraction it is the time itself.
func (p *params) instant(name string) (at *time.Time, end time.Time) {
	value, given := p.text(name)
	if !given {
		return nil, end
	}
	if day, err := time.Parse(time.DateOnly, value); err == nil {
		return new(store.StartOfDay(day, 0, p.zone)), store.StartOfDay(day, 1, p.zone)
	}
	value = strings.Replace(value, " ", "+", 1) // an offset's + that the client did not percent-encode
	value = strings.Replace(value, ",", ".", 1) // ISO 8601 also allows a comma before the fraction
	t, ok := store.ParseTime(value)
	if !ok {
		p.reject(name, "must be an ISO 8601 date or time, such as 2026-11-20 or 2026-11-20T08:30:00Z")
		return nil, end
	}
	if !strings.Contains(value, ".") {
		return &t, t.Add(time.Second)
	}
	return &t, t
}

// timezone returns the value of a parameter that must be the name of a time zone; UTC when the parameter is not given.
func (p *params) timezone(name string) *time.Location {
	value, given := p.text(name)
	if !given {
		return time.UTC
	}
	zone, err := time.LoadLocation(value)
	// Local is Go's name for the server's own zone. Every name that IANA gives begins with a capital: localtime and
	// posixrules are files of the server.
	if err != nil || value == "" || value == "Local" || value[0] < 'A' || value[0] > 'Z' {
		p.reject(name, "must be the name of a time zone, such as Europe/Berlin")
		return time.UTC
	}
	return zone
}

// Items of a page (spec: limit of List merchants and List events).
const (
	merchantsPerPage = 10 // unless the request has a limit
	eventsPerPage    = 12
	maxLimit         = 100

	maxPage = math.MaxInt / maxLimit // page × limit must fit an int; no list is that long
)

// window is the page that a request asks for.
type window struct{ page, limit int }

// window reads the parameters page and limit.
func (p *params) window(defaultLimit int) window {
	w := window{
		page:  p.number("page", 1, math.MaxInt), // any larger number is read as this one
		limit: p.number("limit", defaultLimit, maxLimit),
	}
	if w.page > maxPage {
		p.reject("page", "is too large")
	}
	return w
}

// offset returns the number of items before the page.
func (w window) offset() int { return (w.page - 1) * w.limit }

// pagination is the JSON that says where a page is in its list (spec, Resources: Pagination object).
type pagination struct {
	CurrentPage     int  `json:"currentPage"`
	ItemsPerPage    int  `json:"itemsPerPage"`
	TotalItems      int  `json:"totalItems"`
	TotalPages      int  `json:"totalPages"`
	HasNextPage     bool `json:"hasNextPage"`
	HasPreviousPage bool `json:"hasPreviousPage"`
}

// of returns the pagination of the page in a list of total items.
func (w window) of(total int) pagination {
	pages := (total + w.limit - 1) / w.limit
	return pagination{
		CurrentPage:     w.page,
		ItemsPerPage:    w.limit,
		TotalItems:      total,
		TotalPages:      pages,
		HasNextPage:     w.page < pages,
		HasPreviousPage: w.page > 1 && total > 0,
	}
}

const (
	idempotencyHeader = "Idempotency-Key"
	maxIdempotencyKey = 255 // characters
)

// idempotencyKey returns the Idempotency-Key of a request, "" when it has none. With a key, a client can safely repeat a
// request that creates something: see store.OnceWindow.
func idempotencyKey(r *fasthttp.RequestCtx) (string, error) {
	values := r.Request.Header.PeekAll(idempotencyHeader)
	if len(values) == 0 {
		return "", nil
	}
	key := string(values[0])
	unprintable := func(c rune) bool { return c < ' ' || c > '~' }
	if len(values) > 1 || key == "" || len(key) > maxIdempotencyKey || strings.ContainsFunc(key, unprintable) {
		return "", store.Invalid(idempotencyHeader, "must be one header of 1 to %d printable ASCII characters", maxIdempotencyKey)
	}
	return key, nil
}
