package read

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
)

// Events implements store.Events. All of it is as of one moment:
//
//  1. The range is split into spans, whose events the counters know. Their sum is the total. With ByName, each name has
//     nodes of its own: those of the names near the page.
//  2. The nodes that the page is in are known now. Where the page begins deep in a node, the node is replaced by the buckets
//     of the level below, again and again, down to minutes. So is a node whose events are filtered: the page's events may be
//     rare.
//  3. The events of these nodes are read.
func (r *Reader) Events(ctx context.Context, q store.Query) (page store.Page, err error) {
	err = r.db.Read(ctx, func(tx pgx.Tx) error {
		page, err = r.ListIn(ctx, tx, q)
		return err
	})
	return page, err
}

// ListIn is Events in a transaction.
func (r *Reader) ListIn(ctx context.Context, tx pgx.Tx, q store.Query) (page store.Page, err error) {
	merchant, ok := conn.KeyOf(q.Merchant)
	if !ok {
		return page, store.NotFound("merchant")
	}
	s, ok := newSelection(merchant, q.Tag, q.Names, q.Bot)
	if !ok {
		return page, ctx.Err()
	}
	scopes, err := r.control.Scopes(ctx, tx, s.merchant)
	if err != nil || scopes[0].Removed {
		return page, err
	}
	lo, hi := rangeOf(q.From, q.To)
	lo = max(lo, scopes[0].From)
	if s.open, err = count.ReadPending(ctx, tx, s.merchant); err != nil {
		return page, err
	}
	byName := q.SortBy != store.ByTime
	l := listing{selection: s, tx: tx, asc: q.Asc && !byName, nameDesc: !q.Asc}
	offset := q.Offset
	var nodes []node
	var lifetime int
	if byName && !l.allNames {
		nodes, err = l.nodesOfNames(ctx, lo, hi, l.names)
	} else {
		nodes, lifetime, err = l.spans(ctx, lo, hi)
	}
	if err != nil {
		return page, err
	}
	if page.Total = totalOf(nodes); offset >= page.Total {
		return page, nil
	}
	if byName && l.allNames {
		if nodes, offset, err = l.nearbyNames(ctx, nodes, lifetime, offset, q.Limit); err != nil {
			return page, err
		}
	}
	page.Events, err = l.eventsFrom(ctx, nodes, offset, q.Limit)
	return page, err
}

// listing reads one page.
type listing struct {
	selection
	tx  pgx.Tx
	asc bool // the events of a node are read oldest first

	nameDesc bool // with ByName: the last name comes first
}

func totalOf(nodes []node) (total int) {
	for _, n := range nodes {
		total += n.n
	}
	return total
}

// spans returns the nodes of a range, in the order of time, and the number of all events, in the range or not.
func (l *listing) spans(ctx context.Context, lo, hi int64) (nodes []node, lifetime int, err error) {
	for _, s := range cover(lo, hi) {
		nodes = append(nodes, node{span: s})
	}
	if !l.asc {
		slices.Reverse(nodes)
	}
	all := append(nodes, node{span: life})
	err = l.countAll(ctx, l.tx, all)
	return all[:len(nodes)], all[len(nodes)].n, err
}

// pick is what a page has of a node.
type pick struct {
	node
	skip, take int
}

// picksOf returns the picks from nodes for a page. The nodes must have more than offset events.
func picksOf(nodes []node, offset, limit int) (picks []pick) {
	for _, n := range nodes {
		if offset >= n.n {
			offset -= n.n
			continue
		}
		take := min(n.n-offset, limit)
		picks = append(picks, pick{n, offset, take})
		if limit -= take; limit == 0 {
			break
		}
		offset = 0
	}
	return picks
}

// How much of a node is read one by one. Above that, its buckets are read from the counters, which costs about as much.
const (
	maxSkipped      = 1000   // how many events of all names together may be skipped
	maxNamedSkipped = 150    // how many events of single names may be skipped
	maxNamedTaken   = 10_000 // how many events of single names may be read to merge them for a page
)

// isDeep reports whether a node is replaced by its buckets, or by those of the level below.
func (l *listing) isDeep(p pick) bool {
	switch names := len(l.namesOf(p.node)); {
	case p.level == rawLevel, p.level == count.ByMinute && p.isBucket():
		return false
	case l.allNames && p.name == "":
		return l.isFiltered() || p.skip > maxSkipped
	default:
		return l.isFiltered() || p.skip*names > maxNamedSkipped || p.take*names > maxNamedTaken
	}
}

// eventsFrom returns the events of a page, of which there is at least one.
func (l *listing) eventsFrom(ctx context.Context, nodes []node, offset, limit int) ([]store.Event, error) {
	picks := picksOf(nodes, offset, limit)
	for {
		var deep []node
		for _, p := range picks {
			if l.isDeep(p) {
				deep = append(deep, p.node)
			}
		}
		if len(deep) == 0 {
			return l.readPicks(ctx, picks)
		}
		children, err := l.expand(ctx, l.tx, deep)
		if err != nil {
			return nil, err
		}
		nodes = nodes[:0:0]
		for _, p := range picks {
			if !l.isDeep(p) {
				nodes = append(nodes, p.node)
				continue
			}
			if !l.asc {
				slices.Reverse(children[0])
			}
			nodes = append(nodes, children[0]...)
			children = children[1:]
		}
		picks = picksOf(nodes, picks[0].skip, limit)
	}
}

const (
	eachPick    = `SELECT r.i, x.* FROM unnest($4::int[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[]) AS r(i, name, lo, hi, skip, take) CROSS JOIN LATERAL `
	eachName    = `unnest(CASE r.name WHEN '' THEN $10::text[] ELSE ARRAY[r.name] END) AS n(name) CROSS JOIN LATERAL `
	newestFirst = `at DESC, seq DESC, idx DESC`
	oldestFirst = `at, seq, idx`
)

// The columns of every index that y has are among these, so that the planner finds the event at once with any of them.
var eventAt = ` CROSS JOIN LATERAL (SELECT bot, tag, name, muid, ` + detailColumns + `, raw FROM event WHERE merchant = $1 AND at = y.at AND seq = y.seq AND idx = y.idx`

// statement returns the statement that reads picks, some of which have names.
//
// It finds the events in the index by time, or in that by name, and reads only those on the page from the table. Of a pick
// with several names, it merges the first ones of each name.
func (l *listing) statement(named bool) string {
	order := newestFirst
	if l.asc {
		order = oldestFirst
	}
	found, event := `SELECT seq, idx, at`+l.inSpan(), eventAt
	if named {
		found = `SELECT z.* FROM ` + eachName + `(SELECT seq, idx, at, name` + l.ofName() + ` ORDER BY ` + order + ` LIMIT r.skip + r.take) AS z`
		event += ` AND name = y.name`
	}
	return eachPick + `(SELECT y.seq, y.idx, y.at, e.* FROM (` + found + ` ORDER BY ` + order + ` OFFSET r.skip LIMIT r.take) AS y` +
		event + ` OFFSET 0) AS e) AS x ORDER BY r.i, ` + order
}

// readPicks reads the events of picks.
func (l *listing) readPicks(ctx context.Context, picks []pick) (events []store.Event, err error) {
	var at []int32
	var names []string
	var lo, hi, skip, take []int64
	named := !l.allNames
	for i, p := range picks {
		named = named || p.name != ""
		at, names, lo, hi = append(at, int32(i)), append(names, p.name), append(lo, p.lo), append(hi, p.hi)
		skip, take = append(skip, int64(p.skip)), append(take, int64(p.take))
	}
	args := []any{l.merchant, l.tag, l.bot, at, names, lo, hi, skip, take}
	if named {
		args = append(args, l.names)
	}
	var pick int
	var e eventRow
	err = conn.Query(ctx, l.tx, append([]any{&pick}, e.fields()...), func() error {
		events = append(events, e.assembled())
		return nil
	}, l.statement(named), args...)
	return events, err
}

// readUsage reads merchants' usage and, in separate rows, their pending deltas. It starts after usage.folded, as
// count.TakeRows does. Without GROUP BY, the planner could read the whole tally to join it, and Citus would reject the
// statement.
const readUsage = `WITH w AS (SELECT m.id AS merchant, coalesce(u.events, 0) AS events, coalesce(u.bytes, 0) AS bytes, coalesce(u.folded, 0) AS folded
		FROM (SELECT id::uuid AS id FROM record WHERE kind = 'merchants' AND id = ANY($1) AND body IS NOT NULL) m LEFT JOIN usage u ON u.merchant = m.id)
	SELECT merchant::text, events, bytes FROM w
	UNION ALL SELECT w.merchant::text, t.n, t.bytes FROM w CROSS JOIN LATERAL (SELECT sum(n)::bigint AS n, sum(bytes)::bigint AS bytes FROM tally
		WHERE tally.merchant = w.merchant AND seq > w.folded GROUP BY tally.merchant) AS t`

// Usage implements store.Events.
func (r *Reader) Usage(ctx context.Context, merchants []store.MerchantID) (usage []store.Usage, err error) {
	err = r.db.Read(ctx, func(tx pgx.Tx) error {
		usage = make([]store.Usage, len(merchants))
		keys := make([]string, 0, len(merchants))
		of := map[string][]int{}
		for i, id := range merchants {
			if _, ok := conn.KeyOf(id); !ok {
				return store.NotFound("merchant")
			}
			keys, of[string(id)] = append(keys, string(id)), append(of[string(id)], i)
		}
		var id string
		var u store.Usage
		return conn.Query(ctx, tx, []any{&id, &u.Events, &u.Bytes}, func() error {
			for _, i := range of[id] {
				usage[i].Events += u.Events
				usage[i].Bytes += u.Bytes
			}
			return nil
		}, readUsage, keys)
	})
	return usage, err
}
