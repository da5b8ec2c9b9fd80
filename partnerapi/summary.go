package partnerapi

import (
	"context"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// summaryJSON is the answer of summarizeEvents. With a bucket, each list of counts has one number for each of Buckets.
type summaryJSON struct {
	Bucket   store.Bucket       `json:"bucket,omitzero"`
	Timezone string             `json:"timezone"`
	By       store.SummaryGroup `json:"by,omitzero"`
	Total    int                `json:"total"`
	Buckets  []string           `json:"buckets,omitzero"` // when each begins; texts, because Reply shows the zero time, at which a bucket may begin, as null
	Counts   []int              `json:"counts,omitzero"`
	Groups   []groupJSON        `json:"groups,omitzero"`
	Other    *groupJSON         `json:"other,omitzero"` // the events that are in no group
}

type groupJSON struct {
	Name   string      `json:"event_name,omitzero"`
	Tag    store.TagID `json:"tagId,omitzero"`
	Total  int         `json:"total"`
	Counts []int       `json:"counts,omitzero"`
}

// summarizeEvents answers with the number of events of one or several merchants, by time and by name or tag.
func (a *api) summarizeEvents(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	p := params{args: r.QueryArgs()}
	p.zone = p.timezone("timezone")
	ids := p.list("merchantId")
	switch {
	case len(ids) == 0:
		p.reject("merchantId", "is required")
	case len(ids) > store.MaxSummaryMerchants:
		p.reject("merchantId", "must have at most %d ids", store.MaxSummaryMerchants)
	}
	q := store.SummaryQuery{
		Tag:    store.TagID(p.id("tagId")),
		Names:  p.list("events"),
		Bot:    p.flag("isBot"),
		Bucket: store.Bucket(p.optional("bucket", string(store.Hourly), string(store.Daily), string(store.Monthly))),
		By:     store.SummaryGroup(p.optional("by", string(store.GroupByName), string(store.GroupByTag))),
		Zone:   p.zone,
		Now:    a.Now(),
	}
	q.From, q.To = p.timeRange("startDate", "endDate")
	if p.err != nil {
		return p.err
	}
	tags := 0
	for _, id := range ids {
		m, err := a.merchant(ctx, partner, id)
		if err != nil {
			return err
		}
		tags += len(m.Tags)
		q.Merchants = append(q.Merchants, m.ID)
	}
	if tags == 0 {
		return errNoTagYet
	}
	size, err := summaryMemory(q, tags)
	if err != nil {
		return err
	}
	memory, err := a.listings.reserve(ctx, partner.ID, size)
	if err != nil {
		return err
	}
	defer a.releaseWhenAnswered(r, memory)()
	sum, err := a.Engine.Summary(ctx, q)
	if err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, showSummary(&q, sum))
}

// summaryMemory returns how many bytes a summary of merchants that have tags tags takes at most, with its answer. It fails
// when there are too many buckets.
func summaryMemory(q store.SummaryQuery, tags int) (int64, error) {
	buckets, groups := store.MaxSummaryBuckets, 1
	if q.From != nil {
		starts, _, err := q.Starts(nil, nil)
		if err != nil {
			return 0, err
		}
		buckets = len(starts) + 1 // the last event may be after now
	}
	switch q.By {
	case store.GroupByName:
		groups = max(len(q.Names), store.MaxSummaryGroups) + 1
	case store.GroupByTag:
		groups = min(tags, store.MaxSummaryGroups) + 1
	}
	const perCount, perGroup = 3 * 8, 1 << 10 // a count is in the engine's table, in its result, and in the JSON
	return int64(groups) * (perGroup + perCount*int64(buckets)), nil
}

func showSummary(q *store.SummaryQuery, sum store.Summary) summaryJSON {
	shown := summaryJSON{Bucket: q.Bucket, Timezone: q.Zone.String(), By: q.By, Total: sum.All.Total, Counts: showCounts(q, sum.All)}
	if q.Bucket != store.NoBucket {
		shown.Buckets = each(sum.Starts, store.FormatTime)
	}
	if q.By == store.Ungrouped {
		return shown
	}
	shown.Groups = each(sum.Groups, func(g store.GroupCounts) groupJSON {
		group := groupJSON{Total: g.Total, Counts: showCounts(q, g.Counts)}
		if q.By == store.GroupByTag {
			group.Tag = store.TagID(g.Key)
		} else {
			group.Name = g.Key
		}
		return group
	})
	shown.Other = &groupJSON{Total: sum.Other.Total, Counts: showCounts(q, sum.Other)}
	return shown
}

// showCounts returns the counts by bucket; nil without buckets.
func showCounts(q *store.SummaryQuery, c store.Counts) []int {
	if q.Bucket == store.NoBucket {
		return nil
	}
	return append([]int{}, c.ByBuckets...)
}
