package store

import "time"

// SummaryQuery asks how many events there are, by time and by group. The first fields filter as those of a Query do.
type SummaryQuery struct {
	Merchants []MerchantID // their events are counted together; one that is given twice counts once
	Tag       TagID
	Names     []string
	From, To  *time.Time
	Bot       *bool

	Bucket Bucket
	Zone   *time.Location // whose hours, days and months the buckets are; nil for UTC
	Now    time.Time      // without To, the buckets go on to this moment, or to the last event if that is later
	By     SummaryGroup
}

// Bucket is the length of the buckets of a summary.
type Bucket string

// The buckets. NoBucket makes one bucket of the whole range.
const (
	NoBucket Bucket = ""
	Hourly   Bucket = "hour"
	Daily    Bucket = "day"
	Monthly  Bucket = "month"
)

// SummaryGroup is what the events of a summary are grouped by.
type SummaryGroup string

// The groups.
const (
	Ungrouped   SummaryGroup = ""
	GroupByName SummaryGroup = "event_name"
	GroupByTag  SummaryGroup = "tag"
)

// Limits of a summary.
const (
	MaxSummaryBuckets   = 10_000 // hours of 416 days
	MaxSummaryGroups    = 100    // besides Other
	MaxSummaryMerchants = 100
)

// Summary is the exact number of events in each bucket, all as of one moment. The buckets follow each other without a gap:
// those without events are among them. Without From, the first one is that of the merchants' first event, whatever else the
// query filters by. Without events there is none then.
type Summary struct {
	Starts []time.Time // when each bucket begins; UTC
	All    Counts
	Groups []GroupCounts // the largest first, equal ones by Key; nil when Ungrouped

	// Other is the events that are in no group. A summary has at most MaxSummaryGroups groups. Visitors can make up any
	// number of names, so an engine need not know the largest ones when there are very many: the counts of a group are exact,
	// but a name may be in Other that has more events. With SummaryQuery.Names, only these names are counted, and each that
	// has events is a group, as long as there are no more than MaxSummaryGroups.
	Other Counts
}

// GroupCounts is the counts of one group.
type GroupCounts struct {
	Key string // the name or the tag
	Counts
}

// Counts is the numbers of events by bucket.
type Counts struct {
	Total     int
	ByBuckets []int
}

// Starts returns when the buckets of the query begin, and when the last one ends; nil when there is none. first and last
// are the times of the merchants' first and last event, both nil when there are no events. KindInvalid: there are more than
// MaxSummaryBuckets.
func (q *SummaryQuery) Starts(first, last *time.Time) (starts []time.Time, end time.Time, err error) {
	from, to := q.From, q.To
	if from == nil {
		from = first
	}
	if to == nil {
		to = &q.Now
		if last != nil && last.After(*to) {
			to = last
		}
	}
	if from == nil || from.After(*to) {
		return nil, time.Time{}, nil
	}
	if q.Bucket == NoBucket {
		return []time.Time{from.UTC()}, to.UTC().Add(time.Microsecond), nil
	}
	zone := q.Zone
	if zone == nil {
		zone = time.UTC
	}
	for i := 0; ; i++ {
		at := q.Bucket.start(from.In(zone), i).UTC()
		if n := len(starts); n > 0 && !at.After(starts[n-1]) {
			continue // a day that a zone has left out
		}
		if at.After(*to) {
			return starts, at, nil
		}
		if len(starts) == MaxSummaryBuckets {
			return nil, time.Time{}, Invalid("bucket", "makes more than %d buckets of the range from %s to %s: choose a longer bucket or a shorter range",
				MaxSummaryBuckets, FormatTime(*from), FormatTime(*to))
		}
		starts = append(starts, at)
	}
}

// start returns when the i-th bucket after that of a time begins, in the time's zone.
func (b Bucket) start(of time.Time, i int) time.Time {
	year, month, day := of.Date()
	switch b {
	case Monthly:
		return midnight(year, month+time.Month(i), 1, of.Location())
	case Daily:
		return midnight(year, month, day+i, of.Location())
	}
	of = of.Add(time.Duration(i) * time.Hour)
	_, offset := of.Zone()
	sinceHour := (of.Unix() + int64(offset)) % 3600
	if sinceHour < 0 { // before 1970
		sinceHour += 3600
	}
	return of.Add(-time.Duration(sinceHour)*time.Second - time.Duration(of.Nanosecond()))
}

// midnight returns the first moment of a day. Where clocks are put forward at midnight, that is an hour later; time.Date may
// return a moment of the day before then.
func midnight(year int, month time.Month, day int, zone *time.Location) time.Time {
	at := time.Date(year, month, day, 0, 0, 0, 0, zone)
	if noon := time.Date(year, month, day, 12, 0, 0, 0, zone); at.Day() != noon.Day() {
		_, offset := noon.Zone()
		_, before := at.Zone()
		at = at.Add(time.Duration(offset-before) * time.Second)
	}
	return at
}

// StartOfDay returns, in UTC, when a day begins in a zone: the one so many days after the date of a time. A nil zone is UTC.
func StartOfDay(date time.Time, days int, zone *time.Location) time.Time {
	if zone == nil {
		zone = time.UTC
	}
	year, month, day := date.Date()
	return midnight(year, month, day+days, zone).UTC()
}
