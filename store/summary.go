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

// Summary is the exact number of events in each bucket, all as of one moment. The buckets follow each other without a gap,
// so some may have no events. Without From, the first bucket is that of the merchants' first event, whatever else the query
// filters by, or a later bucket that has all earlier events too (Starts); if they have no events, there are no buckets.
type Summary struct {
	Starts []time.Time // when each bucket begins; UTC
	All    Counts
	Groups []GroupCounts // the largest first, equal ones by Key; nil when Ungrouped

	// Other is the events that are in no group. A summary has at most MaxSummaryGroups groups. Their counts are exact. But
	// they need not be the largest ones, because visitors can make up any number of names: Other may have a name with more
	// events than a group has. With SummaryQuery.Names, only these names are counted, and each that has events is a group,
	// unless that makes more than MaxSummaryGroups.
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
// are the times of the merchants' first and last event, both nil when there are no events.
//
// KindInvalid: there are more than MaxSummaryBuckets, or the engine would read more than maxSummaryCost. Without From, there
// are fewer buckets instead, and the first one has all earlier events too: anybody who knows a tag id can send an event of
// the year 1. Then only a range that ended long ago can be too much.
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
	upTo := q.Now // the counters end about here
	if last != nil && last.After(upTo) {
		upTo = *last
	}
	if q.Bucket == NoBucket {
		starts, end = []time.Time{from.UTC()}, to.UTC().Add(time.Microsecond)
		return starts, end, q.checkCost(starts, end, upTo)
	}
	zone := q.Zone
	if zone == nil {
		zone = time.UTC
	}
	at := from.In(zone)
	if earliest := q.Bucket.back(to.In(zone), MaxSummaryBuckets); q.From == nil && at.Before(earliest) {
		at = earliest
	}
	for at = q.Bucket.start(at); !at.After(*to); at = q.Bucket.next(at) {
		if q.From != nil && len(starts) == MaxSummaryBuckets {
			return nil, time.Time{}, Invalid("bucket", "makes more than %d buckets of the range from %s to %s: choose a longer bucket or a shorter range",
				MaxSummaryBuckets, FormatTime(*from), FormatTime(*to))
		}
		starts = append(starts, at.UTC())
	}
	end = at.UTC()
	starts = starts[max(0, len(starts)-MaxSummaryBuckets):]
	for q.From == nil && len(starts) > 1 && q.checkCost(starts, end, upTo) != nil {
		starts = starts[len(starts)/2:]
	}
	return starts, end, q.checkCost(starts, end, upTo)
}

// maxSummaryCost is how many counters a summary may read, about. A database reads a million in a second.
const maxSummaryCost = 5_000_000

// checkCost returns an error when a summary with these buckets would read too much. A bucket that begins within an hour
// costs more than one of whole hours, and days of UTC cost least: engines count the events of those.
//
// Without From, the first bucket has what the others leave of all events. So its own counters are not read, but those after
// the range are, up to upTo.
func (q *SummaryQuery) checkCost(starts []time.Time, end, upTo time.Time) error {
	const (
		perPart  = 40                        // for the two ends of a bucket
		mostTime = 30 * 365 * 24 * time.Hour // events are hardly older
		day      = 24 * time.Hour
	)
	unit, parts := day, 0
	for _, at := range starts[1:] {
		switch {
		case at.Unix()%3600 != 0 || at.Nanosecond() != 0:
			parts++
			unit = time.Hour
		case at.Unix()%86400 != 0:
			unit = time.Hour
		}
	}
	begin, after := starts[0], time.Duration(0)
	if q.From == nil {
		begin, after = end, max(0, upTo.Sub(end))
		if len(starts) > 1 {
			begin = starts[1]
		}
	}
	names := max(1, len(q.Names))
	if q.By == GroupByName && q.Names == nil {
		names = MaxSummaryGroups / 2 // most merchants have fewer
	}
	counters := 1 + int(min(end.Sub(begin), mostTime)/unit) + perPart*parts + int(min(after, mostTime)/day)
	if cost := max(1, len(q.Merchants)) * names * counters; cost > maxSummaryCost {
		return Invalid("bucket", "asks for too many counts: choose fewer names or merchants, a shorter range, a longer bucket, or the time zone UTC")
	}
	return nil
}

// start returns when the bucket begins that a time is in, in the time's zone.
func (b Bucket) start(of time.Time) time.Time {
	year, month, day := of.Date()
	switch b {
	case Monthly:
		return midnight(year, month, 1, of.Location())
	case Daily:
		return midnight(year, month, day, of.Location())
	}
	at := of.Add(-sinceHour(of))
	if changed, _ := of.ZoneBounds(); !changed.IsZero() && at.Before(changed) {
		return changed.In(of.Location()) // clocks were put forward or back within an hour
	}
	return at
}

// next returns when the bucket after the one ends that begins at a time.
func (b Bucket) next(at time.Time) time.Time {
	year, month, day := at.Date()
	if b == Hourly {
		next := at.Add(time.Hour - sinceHour(at))
		if _, changes := at.ZoneBounds(); !changes.IsZero() && changes.Before(next) {
			return changes.In(at.Location())
		}
		return next
	}
	for i := 1; ; i++ {
		next := midnight(year, month, day+i, at.Location())
		if b == Monthly {
			next = midnight(year, month+time.Month(i), 1, at.Location())
		}
		if next.After(at) { // a zone may have left out a day
			return next
		}
	}
}

// back returns about when the bucket began that is n buckets before a time, not later.
func (b Bucket) back(from time.Time, n int) time.Time {
	switch b {
	case Monthly:
		return from.AddDate(0, -n, 0)
	case Daily:
		return from.AddDate(0, 0, -n)
	}
	return from.Add(-time.Duration(n) * time.Hour)
}

// sinceHour returns how much of its hour has passed at a time, in the time's zone.
func sinceHour(at time.Time) time.Duration {
	_, offset := at.Zone()
	seconds := (at.Unix() + int64(offset)) % 3600
	if seconds < 0 { // before 1970
		seconds += 3600
	}
	return time.Duration(seconds)*time.Second + time.Duration(at.Nanosecond())
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
