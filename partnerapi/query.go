package partnerapi

import (
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// pathParam is a parameter of the path; "", which is no resource's id, where its percent-encoding is
// broken.
func pathParam(r *fasthttp.RequestCtx, name string) string {
	raw, _ := r.UserValue(name).(string)
	value, err := url.PathUnescape(raw)
	if err != nil {
		return ""
	}
	return value
}

// params reads query parameters. The first one that is wrong is kept in err, which the caller looks
// at when it has read them all.
type params struct {
	args *fasthttp.Args
	err  error
}

// reject keeps the first error.
func (p *params) reject(name, format string, args ...any) {
	if p.err == nil {
		p.err = store.Invalid(name, format, args...)
	}
}

// text is a parameter's value, and whether it is given. Given twice, it has none: taking either
// would be a guess.
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

// id is the value of a parameter that is not empty where it is given.
func (p *params) id(name string) string {
	value, given := p.text(name)
	if given && value == "" {
		p.reject(name, "must not be empty")
	}
	return value
}

// number is a parameter's value from 1 to max, in plain digits; absent where it is not given.
func (p *params) number(name string, absent, max int) int {
	value, given := p.text(name)
	if !given {
		return absent
	}
	n, err := strconv.ParseUint(value, 10, 64) // too large a number becomes the largest there is
	switch {
	case n > uint64(max):
		p.reject(name, "must be at most %d", max)
	case err != nil || n == 0:
		p.reject(name, "must be a whole number, 1 or more")
	default:
		return int(n)
	}
	return absent
}

// word is a parameter's value, one of words; the first of them where it is not given.
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

// list is a parameter's comma-separated values; nil where there is none.
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

// start is the beginning of a range of time, zero where it is not given. A date is the start of
// that day in UTC.
func (p *params) start(name string) time.Time {
	t, _ := p.instant(name)
	return t
}

// end is the inclusive end of a range of time, zero where it is not given. A date is the end of
// that day in UTC, and a time without a fraction the end of that second: times are shown in whole
// seconds and kept in microseconds, so that the time of a listed event would end before that event.
func (p *params) end(name string) time.Time {
	t, unit := p.instant(name)
	if unit == 0 {
		return t
	}
	return t.Add(unit - time.Microsecond)
}

// instant is a parameter's RFC 3339 time or its date, and the length of its last unit: a day, a
// second, or 0 where the time has a fraction.
func (p *params) instant(name string) (at time.Time, unit time.Duration) {
	value, given := p.text(name)
	if !given {
		return time.Time{}, 0
	}
	if day, err := time.Parse(time.DateOnly, value); err == nil {
		return day, 24 * time.Hour
	}
	// The + of an offset, not percent-encoded, arrives as a space.
	value = strings.Replace(value, " ", "+", 1)
	at, err := time.Parse(time.RFC3339, value)
	if err != nil {
		p.reject(name, "must be an ISO 8601 date or time, such as 2026-11-20 or 2026-11-20T08:30:00Z")
		return time.Time{}, 0
	}
	if !strings.ContainsAny(value, ".,") { // ISO 8601 has both
		unit = time.Second
	}
	return at.UTC(), unit
}

// maxLimit is the most items of one page.
const maxLimit = 100

// window is the page that a request asks for.
type window struct{ page, limit int }

// window reads page and limit.
func (p *params) window(defaultLimit int) window {
	return window{
		// So that page × limit is still a number.
		page:  p.number("page", 1, math.MaxInt/maxLimit),
		limit: p.number("limit", defaultLimit, maxLimit),
	}
}

// offset is how many items come before the page.
func (w window) offset() int { return (w.page - 1) * w.limit }

// pagination tells where a page is among all items (spec, Resources: Pagination object).
type pagination struct {
	CurrentPage     int  `json:"currentPage"`
	ItemsPerPage    int  `json:"itemsPerPage"`
	TotalItems      int  `json:"totalItems"`
	TotalPages      int  `json:"totalPages"`
	HasNextPage     bool `json:"hasNextPage"`
	HasPreviousPage bool `json:"hasPreviousPage"`
}

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
