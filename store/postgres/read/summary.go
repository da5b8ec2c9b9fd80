package read

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/postgres/count"
)

// Summary implements store.Events. Each bucket of the summary is split into spans; spans of the same level that follow each
// other are read together (nodes).
func (r *Reader) Summary(ctx context.Context, q store.SummaryQuery) (summary store.Summary, err error) {
	var merchants []uuid.UUID
	for _, id := range q.Merchants {
		key, ok := conn.KeyOf(id)
		if !ok {
			return summary, store.NotFound("merchant")
		}
		if !slices.Contains(merchants, key) {
			merchants = append(merchants, key)
		}
	}
	err = r.db.Read(ctx, func(tx pgx.Tx) error {
		summary = store.Summary{}
		scopes, err := r.control.Scopes(ctx, tx, merchants...)
		if err != nil {
			return err
		}
		kept := map[uuid.UUID]int64{}
		for i, s := range scopes {
			if !s.Removed {
				kept[merchants[i]] = s.From
			}
		}
		first, last, err := timesOf(ctx, tx, kept)
		if err != nil {
			return err
		}
		starts, end, err := q.Starts(first, last)
		if err != nil || len(starts) == 0 {
			return err
		}
		s := &summing{tx: tx, q: &q, kept: kept, starts: starts, end: end.UnixMicro()}
		summary, err = s.sumUp(ctx)
		return err
	})
	return summary, err
}

// timesOf returns the times of the first and the last event of merchants; nil when there are none.
func timesOf(ctx context.Context, tx pgx.Tx, kept map[uuid.UUID]int64) (first, last *time.Time, err error) {
	b := &pgx.Batch{}
	for m, from := range kept {
		b.Queue("SELECT min(at), max(at) FROM event WHERE merchant = $1 AND at >= $2", m, from).QueryRow(func(row pgx.Row) error {
			var lo, hi *int64
			if err := row.Scan(&lo, &hi); err != nil || lo == nil {
				return err
			}
			if first == nil || TimeAt(*lo).Before(*first) {
				first = new(TimeAt(*lo))
			}
			if last == nil || TimeAt(*hi).After(*last) {
				last = new(TimeAt(*hi))
			}
			return nil
		})
	}
	err = tx.SendBatch(ctx, b).Close()
	return first, last, err
}

// summing makes one summary.
type summing struct {
	tx     pgx.Tx
	q      *store.SummaryQuery
	kept   map[uuid.UUID]int64
	starts []time.Time
	end    int64 // of the last bucket
}

func (s *summing) sumUp(ctx context.Context) (sum store.Summary, err error) {
	sum.Starts, sum.All.ByBuckets = s.starts, make([]int, len(s.starts))
	var names []string // the groups, by name
	if s.q.By == store.GroupByName {
		if names, err = s.groupNames(ctx); err != nil {
			return sum, err
		}
	}
	groups := map[string]*store.Counts{}
	for merchant, from := range s.kept {
		of, ok := newSelection(merchant, s.q.Tag, s.q.Names, s.q.Bot)
		if !ok {
			break
		}
		if of.open, err = count.ReadPending(ctx, s.tx, merchant); err != nil {
			return sum, err
		}
		nodes := s.nodes(from)
		tags := []*string{of.tag}
		if s.q.By == store.GroupByTag && of.tag == nil {
			if tags, err = of.tags(ctx, s.tx); err != nil {
				return sum, err
			}
		}
		for _, tag := range tags { // a merchant has at most three
			of.tag = tag
			if err := of.countNodes(ctx, s.tx, listCounters, nodes, func(c counted) {
				s.addToBucket(&sum.All, nodes[c.node], c)
				if s.q.By == store.GroupByTag {
					s.addToBucket(groupOf(groups, *tag, len(s.starts)), nodes[c.node], c)
				}
			}); err != nil {
				return sum, err
			}
		}
		if len(names) == 0 {
			continue
		}
		named := make([]node, 0, len(names)*len(nodes))
		for _, name := range names {
			for _, n := range nodes {
				n.name = name
				named = append(named, n)
			}
		}
		if err := of.countNodes(ctx, s.tx, listCounters, named, func(c counted) {
			s.addToBucket(groupOf(groups, named[c.node].name, len(s.starts)), named[c.node], c)
		}); err != nil {
			return sum, err
		}
	}
	if s.q.By != store.Ungrouped {
		sum.Groups, sum.Other = largest(groups, sum.All)
	}
	return sum, nil
}

// nodes returns what is to be counted of a merchant's events from a time on.
//
// Without From, the first bucket is what is left of all events: so it costs nothing that there are events of many years, or
// of one long ago. Those that are not in the summary are subtracted, too.
func (s *summing) nodes(from int64) (nodes []node) {
	lo, hi := rangeOf(s.q.From, s.q.To)
	add := func(outside bool, spans ...span) {
		for _, sp := range spans {
			if n := len(nodes); n > 0 && nodes[n-1].level == sp.level && nodes[n-1].hi == sp.lo && nodes[n-1].outside == outside && sp.level != rawLevel {
				nodes[n-1].hi = sp.hi
				continue
			}
			nodes = append(nodes, node{span: sp, outside: outside})
		}
	}
	first := 0
	if s.q.From == nil {
		first = 1
		add(false, life)
		add(true, cover(control.Earliest, from)...)
		add(true, cover(max(hi, from), control.Latest)...)
	}
	if s.q.To == nil {
		hi = s.end
	}
	for i := first; i < len(s.starts); i++ {
		until := s.end
		if i+1 < len(s.starts) {
			until = s.starts[i+1].UnixMicro()
		}
		add(false, cover(max(lo, from, s.starts[i].UnixMicro()), min(hi, until))...)
	}
	return nodes
}

// addToBucket adds a number to the bucket of the summary that it belongs to.
func (s *summing) addToBucket(to *store.Counts, n node, c counted) {
	rest := 0 // what it adds to the first bucket
	switch {
	case n.level == count.ByLife:
		to.Total += c.n
		rest = c.n
	case n.outside:
		to.Total -= c.n
		rest = -c.n
	default:
		at := n.lo
		if n.level != rawLevel {
			at = max(c.bucket*count.BucketSize[n.level], n.lo)
		}
		i, found := slices.BinarySearchFunc(s.starts, at, func(start time.Time, at int64) int { return cmp.Compare(start.UnixMicro(), at) })
		if !found {
			i = max(i-1, 0)
		}
		to.ByBuckets[i] += c.n
		if s.q.From == nil {
			rest = -c.n
		} else {
			to.Total += c.n
		}
	}
	to.ByBuckets[0] += rest
}

// tags returns the tags that events of the selection name.
func (s *selection) tags(ctx context.Context, tx pgx.Tx) ([]*string, error) {
	tags, err := conn.Column[string](ctx, tx, `SELECT DISTINCT tag FROM counter WHERE merchant = $1 AND level = $2 AND name = ''`, s.merchant, count.ByLife)
	for _, t := range s.open {
		if !slices.Contains(tags, t.Tag) {
			tags = append(tags, t.Tag)
		}
	}
	return conn.Map(tags, func(t *string) *string { return t }), err
}

// maxNamesRead bounds how many names of a merchant are compared to find the largest ones.
const maxNamesRead = 1000

// groupNames returns the names that become groups: those of the query, or the names with the most events of all time.
func (s *summing) groupNames(ctx context.Context) ([]string, error) {
	totals := map[string]int{}
	for merchant := range s.kept {
		of, ok := newSelection(merchant, s.q.Tag, s.q.Names, s.q.Bot)
		if !ok {
			return nil, nil
		}
		if !of.allNames {
			return of.names, nil
		}
		var name string
		var n int
		if err := conn.Query(ctx, s.tx, []any{&name, &n}, func() error {
			totals[name] += n
			return nil
		}, `SELECT name, sum(n)::bigint FROM (SELECT name, n FROM counter WHERE `+filter+` AND level = $4 AND name <> ''
				UNION ALL SELECT name, n FROM tally WHERE `+filter+` AND `+count.IsPending+`) AS x
			GROUP BY name ORDER BY sum(n) DESC, name LIMIT $5`, merchant, of.tag, of.bot, count.ByLife, maxNamesRead); err != nil {
			return nil, err
		}
	}
	names := slices.SortedFunc(maps.Keys(totals), func(a, b string) int { return cmp.Or(totals[b]-totals[a], cmp.Compare(a, b)) })
	return names[:min(len(names), store.MaxSummaryGroups)], nil
}

// groupOf returns the counts of a group.
func groupOf(groups map[string]*store.Counts, key string, buckets int) *store.Counts {
	c := groups[key]
	if c == nil {
		c = &store.Counts{ByBuckets: make([]int, buckets)}
		groups[key] = c
	}
	return c
}

// largest returns the largest groups, and what is in no group.
func largest(groups map[string]*store.Counts, all store.Counts) (list []store.GroupCounts, other store.Counts) {
	for key, c := range groups {
		if c.Total > 0 {
			list = append(list, store.GroupCounts{Key: key, Counts: *c})
		}
	}
	slices.SortFunc(list, func(a, b store.GroupCounts) int { return cmp.Or(b.Total-a.Total, cmp.Compare(a.Key, b.Key)) })
	list = list[:min(len(list), store.MaxSummaryGroups)]
	other = store.Counts{Total: all.Total, ByBuckets: slices.Clone(all.ByBuckets)}
	for _, g := range list {
		other.Total -= g.Total
		for i, n := range g.ByBuckets {
			other.ByBuckets[i] -= n
		}
	}
	return list, other
}
