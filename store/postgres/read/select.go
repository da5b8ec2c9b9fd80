package read

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
)

// selection is which events of a merchant a query asks for.
type selection struct {
	merchant uuid.UUID
	tag      *string // nil: all
	names    []string
	allNames bool
	bot      *bool         // nil: all
	open     count.Pending // must be set before counting
}

// newSelection returns the selection of a query's filters; false when they can select nothing.
func newSelection(merchant uuid.UUID, tag store.TagID, names []string, bot *bool) (s selection, ok bool) {
	s = selection{merchant: merchant, bot: bot, allNames: names == nil}
	if tag != "" {
		if !conn.IsStorable(tag) {
			return s, false
		}
		s.tag = new(string(tag))
	}
	for _, name := range names {
		if store.IsEventName(name) { // no event has another name
			s.names = append(s.names, name)
		}
	}
	slices.Sort(s.names)
	s.names = slices.Compact(s.names)
	return s, s.allNames || len(s.names) > 0
}

// isFiltered reports whether events beside each other in time may be left out, other than by their names.
func (s *selection) isFiltered() bool { return s.tag != nil || s.bot != nil }

// node is a span, or the events of one name in it, and how many events of the selection it has.
type node struct {
	span
	name    string // "": all names of the selection
	n       int
	outside bool // of a summary: its events are not in it
}

// namesOf returns the names that the counters of a node are under.
func (s *selection) namesOf(n node) []string {
	switch {
	case n.name != "":
		return []string{n.name}
	case s.allNames:
		return []string{""}
	}
	return s.names
}

// The filters of statements that have the selection's merchant, tag and bot as their first parameters.
const (
	filter = `merchant = $1 AND ($2::text IS NULL OR tag = $2) AND ($3::boolean IS NULL OR bot = $3)`

	eachCounter = ` FROM unnest($4::int[], $5::smallint[], $6::text[], $7::bigint[], $8::bigint[]) AS r(i, level, name, first, until) CROSS JOIN LATERAL `
	ofCounter   = ` FROM counter WHERE ` + filter + ` AND level = r.level AND name = r.name AND bucket >= r.first AND bucket < r.until`

	countEvents = `SELECT r.i, 0::bigint, x.n FROM unnest($4::int[], $5::text[], $6::bigint[], $7::bigint[]) AS r(i, name, lo, hi)
		CROSS JOIN LATERAL (SELECT r.name) AS n CROSS JOIN LATERAL (SELECT count(*) AS n`

	countCounters = `SELECT r.i, 0::bigint, x.n` + eachCounter + `(SELECT sum(n)::bigint AS n` + ofCounter + `) AS x WHERE x.n <> 0`
	listCounters  = `SELECT r.i, x.bucket, x.n` + eachCounter + `(SELECT bucket, sum(n)::bigint AS n` + ofCounter + ` GROUP BY bucket) AS x`
)

// inSpan selects the events of a span r from the index by time.
func (s *selection) inSpan() string {
	return ` FROM event WHERE ` + s.eventFilter() + ` AND at >= r.lo AND at < r.hi`
}

// ofName selects the events of a span r and a name n from the index by name. The comparison of rows is true for every event
// of the name: it only makes the planner prefer this index to the index by time. If it compared with lo, a scan would read
// past lo, or begin with the name's first event.
func (s *selection) ofName() string {
	return ` FROM event WHERE ` + s.eventFilter() + ` AND name = n.name AND at >= r.lo AND at < r.hi AND (name, at) >= (n.name, -9223372036854775808)`
}

// eventFilter is filter. Without a filter it names no columns that are only in the table, so that the index is enough.
func (s *selection) eventFilter() string {
	if s.isFiltered() {
		return filter
	}
	return `merchant = $1 AND $2::text IS NULL AND $3::boolean IS NULL`
}

// counted is a number of events in a bucket of a node.
type counted struct {
	node   int
	bucket int64
	n      int
}

// countNodes passes the numbers of events of nodes: with listCounters those of each bucket, with countCounters not.
func (s *selection) countNodes(ctx context.Context, tx pgx.Tx, sql string, nodes []node, use func(c counted)) error {
	var at []int32
	var levels []int16
	var names []string
	var first, until []int64
	for i, n := range nodes {
		if n.level == rawLevel {
			continue
		}
		from, end := n.buckets()
		for _, name := range s.namesOf(n) {
			at, levels, names = append(at, int32(i)), append(levels, int16(n.level)), append(names, name)
			first, until = append(first, from), append(until, end)
		}
	}
	if len(at) > 0 {
		s.openIn(nodes, use)
		if err := s.scanCounts(ctx, tx, use, sql, s.merchant, s.tag, s.bot, at, levels, names, first, until); err != nil {
			return err
		}
	}
	return s.raw(ctx, tx, nodes, use)
}

// openIn passes the pending deltas of nodes, except nodes at rawLevel, whose events are counted one by one.
func (s *selection) openIn(nodes []node, use func(c counted)) {
	if len(s.open) == 0 {
		return
	}
	for i, n := range nodes {
		if n.level == rawLevel {
			continue
		}
		for _, name := range s.namesOf(n) {
			for _, t := range s.open.Of(name) {
				at := t.Minute * count.BucketSize[count.ByMinute]
				if at >= n.lo && at < n.hi && s.selectsDelta(t) {
					use(counted{i, count.BucketOf(n.level, at), t.N})
				}
			}
		}
	}
}

// selectsDelta reports whether the filters select a row of the tally, whatever its name.
func (s *selection) selectsDelta(t count.PendingCount) bool {
	return (s.tag == nil || t.Tag == *s.tag) && (s.bot == nil || t.Bot == *s.bot)
}

// raw counts the events of nodes whose level is rawLevel.
func (s *selection) raw(ctx context.Context, tx pgx.Tx, nodes []node, use func(c counted)) error {
	var at []int32
	var names []string
	var lo, hi []int64
	of := s.ofName()
	for i, n := range nodes {
		if n.level != rawLevel {
			continue
		}
		for _, name := range s.namesOf(n) {
			if name == "" {
				of = s.inSpan()
			}
			at, names, lo, hi = append(at, int32(i)), append(names, name), append(lo, n.lo), append(hi, n.hi)
		}
	}
	if len(at) == 0 {
		return nil
	}
	return s.scanCounts(ctx, tx, use, countEvents+of+`) AS x`, s.merchant, s.tag, s.bot, at, names, lo, hi)
}

func (s *selection) scanCounts(ctx context.Context, tx pgx.Tx, use func(c counted), sql string, args ...any) error {
	var c counted
	return conn.Query(ctx, tx, []any{&c.node, &c.bucket, &c.n}, func() error {
		use(c)
		return nil
	}, sql, args...)
}

// countAll sets each node's number of events.
func (s *selection) countAll(ctx context.Context, tx pgx.Tx, nodes []node) error {
	return s.countNodes(ctx, tx, countCounters, nodes, func(c counted) { nodes[c.node].n += c.n })
}

// expand returns, for each node, its buckets that have events, in the order of time. A node with one bucket is split into
// those of the level below. A node with many is not yet: 100 days would mean 2,400 hours.
func (s *selection) expand(ctx context.Context, tx pgx.Tx, nodes []node) (children [][]node, err error) {
	below := slices.Clone(nodes)
	for i := range below {
		if below[i].isBucket() {
			below[i].level--
		}
	}
	found := make([]map[int64]int, len(nodes))
	if err := s.countNodes(ctx, tx, listCounters, below, func(c counted) {
		if found[c.node] == nil {
			found[c.node] = map[int64]int{}
		}
		found[c.node][c.bucket] += c.n
	}); err != nil {
		return nil, err
	}
	children = make([][]node, len(nodes))
	for i, buckets := range found {
		for number, n := range buckets {
			size := count.BucketSize[below[i].level]
			children[i] = append(children[i], node{span: span{below[i].level, number * size, (number + 1) * size}, name: below[i].name, n: n})
		}
		slices.SortFunc(children[i], func(a, b node) int { return int(min(max(a.lo-b.lo, -1), 1)) })
	}
	return children, nil
}
