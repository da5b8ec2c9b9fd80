package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// Events implements store.Events. All of it is as of one moment:
//
//  1. The range is split into spans, whose events the counters know. Their sum is the total. With ByName, each name has nodes of
//     its own: those of the names near the page.
//  2. The nodes that the page is in are known now. Where the page begins deep in a node, the node is replaced by the buckets of
//     the level below, again and again, down to minutes. So is a node whose events are filtered: the page's events may be rare.
//  3. The events of these nodes are read.
func (e *engine) Events(ctx context.Context, q store.Query) (page store.Page, err error) {
	merchant, ok := keyOf(q.Merchant)
	if !ok {
		return page, store.NotFound("merchant")
	}
	s, ok := newSelection(merchant, q.Tag, q.Names, q.Bot)
	if !ok {
		return page, ctx.Err()
	}
	err = e.read(ctx, func(tx pgx.Tx) error {
		page, err = e.list(ctx, tx, s, q)
		return err
	})
	return page, err
}

// list is Events in one transaction.
func (e *engine) list(ctx context.Context, tx pgx.Tx, s selection, q store.Query) (page store.Page, err error) {
	scopes, _, err := e.scopes(ctx, tx, s.merchant)
	if err != nil || scopes[0].removed {
		return page, err
	}
	lo, hi := rangeOf(q.From, q.To)
	lo = max(lo, scopes[0].from)
	if s.open, err = readOpen(ctx, tx, s.merchant); err != nil {
		return page, err
	}
	l := listing{selection: s, tx: tx, asc: q.Asc && q.SortBy == store.ByTime, nameDesc: !q.Asc}
	offset := q.Offset
	var nodes []node
	switch {
	case q.SortBy == store.ByTime:
		nodes, err = l.spans(ctx, lo, hi)
	case l.allNames:
		nodes, page.Total, offset, err = l.nearbyNames(ctx, lo, hi, q.Offset, q.Limit)
	default:
		nodes, err = l.named(ctx, lo, hi, l.names)
	}
	if err != nil {
		return page, err
	}
	if page.Total == 0 {
		page.Total = totalOf(nodes)
	}
	if q.Offset < page.Total {
		page.Events, err = l.page(ctx, nodes, offset, q.Limit)
	}
	return page, err
}

// listing reads one page.
type listing struct {
	selection
	tx  pgx.Tx
	asc bool // the events of a node are read oldest first

	nameDesc bool // with ByName: the last name comes first
}

// fewEvents is how many events of a name are counted one by one: visitors can make up thousands of names. With a filter none are: the
// events that it leaves out, which may be many, would be read too.
const fewEvents = 50

func totalOf(nodes []node) (total int) {
	for _, n := range nodes {
		total += n.n
	}
	return total
}

// spans returns the nodes of a range, in the order of time.
func (l *listing) spans(ctx context.Context, lo, hi int64) (nodes []node, err error) {
	for _, s := range cover(lo, hi) {
		nodes = append(nodes, node{span: s})
	}
	if !l.asc {
		slices.Reverse(nodes)
	}
	return nodes, l.count(ctx, l.tx, nodes)
}

// named returns the nodes of a range of these names, which are sorted, in the order of the query.
func (l *listing) named(ctx context.Context, lo, hi int64, names []string) ([]node, error) {
	all, err := l.readNames(ctx, "AND name = ANY($5) GROUP BY name", names)
	if err != nil {
		return nil, err
	}
	all = l.addOpen(all, l.nameDesc, func(name string) bool { return slices.Contains(names, name) })
	return l.inRange(ctx, lo, hi, all)
}

// nearbyNames returns the nodes of a page by name, and of the names before or after it, and the total. The page begins at the
// returned offset. A merchant can have hundreds of thousands of names: they are read in portions, from the beginning or from the
// end, whichever is nearer, until they have the page. In a range, those of a portion are counted few by few.
func (l *listing) nearbyNames(ctx context.Context, lo, hi int64, offset, limit int) (nodes []node, total, from int, err error) {
	spans, err := l.spans(ctx, lo, hi)
	total = totalOf(spans)
	if err != nil || offset >= total {
		return nil, total, 0, err
	}
	end := min(offset+limit, total)
	fromEnd := total-offset < end
	wanted := end
	if fromEnd {
		wanted = total - offset
	}
	const portion = 1000
	order, last := "AND name > $5 GROUP BY name ORDER BY name LIMIT 1000", ""
	desc := l.nameDesc != fromEnd
	if desc {
		order, last = "AND name < $5 AND name <> '' GROUP BY name ORDER BY name DESC LIMIT 1000", afterAllNames
	}
	follows := func(a, b string) bool { return a > b && !desc || a < b && desc }
	var portions [][]node
	read := 0
	few := 4 // each name has hundreds of counters in a range
	for more := true; read < wanted; {
		if !more {
			return nil, 0, 0, errors.New("the counters of names have fewer events than those of all names together")
		}
		names, err := l.readNames(ctx, order, last)
		if err != nil {
			return nil, 0, 0, err
		}
		before := last
		if more = len(names) == portion; more {
			last = names[portion-1].name
		}
		names = l.addOpen(names, desc, func(name string) bool { return follows(name, before) && (!more || !follows(name, last)) })
		for ; len(names) > 0 && read < wanted; few = min(2*few, portion) {
			some := names[:min(few, len(names))]
			names = names[len(some):]
			if fromEnd {
				slices.Reverse(some)
			}
			counted, err := l.inRange(ctx, lo, hi, some)
			if err != nil {
				return nil, 0, 0, err
			}
			portions = append(portions, counted)
			read += totalOf(counted)
		}
	}
	from = offset
	if fromEnd {
		slices.Reverse(portions)
		from = offset - (total - read)
	}
	return slices.Concat(portions...), total, from, nil
}

// afterAllNames is greater than the name of any event.
const afterAllNames = "~"

// readNames returns nodes with all events of each name, of those that a condition with one parameter selects.
func (l *listing) readNames(ctx context.Context, condition string, parameter any) (nodes []node, err error) {
	err = query(ctx, l.tx, func(rows pgx.Rows) error {
		n := node{span: bucket(byLife, 0)}
		err := rows.Scan(&n.name, &n.n)
		nodes = append(nodes, n)
		return err
	}, `SELECT name, sum(n)::bigint FROM counter WHERE `+filter+` AND level = $4 `+condition, l.merchant, l.tag, l.bot, byLife, parameter)
	return nodes, err
}

// addOpen adds what the open tally has of names that are wanted to nodes with all events of each name, and sorts them.
func (l *listing) addOpen(nodes []node, desc bool, wanted func(name string) bool) []node {
	at := map[string]int{}
	for i, n := range nodes {
		at[n.name] = i
	}
	for _, t := range l.open {
		if !l.has(t) || !wanted(t.name) {
			continue
		}
		i, known := at[t.name]
		if !known {
			i, at[t.name] = len(nodes), len(nodes)
			nodes = append(nodes, node{span: bucket(byLife, 0), name: t.name})
		}
		nodes[i].n += t.n
	}
	slices.SortFunc(nodes, func(a, b node) int {
		if desc {
			a, b = b, a
		}
		return cmp.Compare(a.name, b.name)
	})
	return nodes
}

// inRange splits nodes with all events of each name into nodes of a range, and counts their events.
func (l *listing) inRange(ctx context.Context, lo, hi int64, names []node) (nodes []node, err error) {
	spans := cover(lo, hi)
	if len(spans) == 0 || len(spans) == 1 && spans[0].level == byLife {
		return names[:len(names)*len(spans)], nil
	}
	slices.Reverse(spans)
	for _, n := range names {
		if n.n <= fewEvents && !l.isFiltered() {
			nodes = append(nodes, node{span: span{rawLevel, lo, hi}, name: n.name})
			continue
		}
		for _, s := range spans {
			nodes = append(nodes, node{span: s, name: n.name})
		}
	}
	return nodes, l.count(ctx, l.tx, nodes)
}

// pick is what a page has of a node.
type pick struct {
	node
	skip, take int
}

// cut returns what a page has of nodes. There are more than offset events.
func cut(nodes []node, offset, limit int) (picks []pick) {
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

// How many events of a node may be skipped one by one: of all names, and of one. Reading the counters of the level below costs about
// as much.
const (
	maxSkipped      = 1000
	maxNamedSkipped = 150
)

// isDeep reports whether a node is replaced by its buckets, or by those of the level below.
func (l *listing) isDeep(p pick) bool {
	switch names := len(l.namesOf(p.node)); {
	case p.level == rawLevel, p.level == byMinute && p.isBucket():
		return false
	case l.allNames && p.name == "":
		return l.isFiltered() || p.skip > maxSkipped || p.take > 10*maxSkipped
	default:
		return l.isFiltered() || p.skip*names > maxNamedSkipped || p.take*names > 10*maxSkipped
	}
}

// page returns the events of a page, of which there is at least one.
func (l *listing) page(ctx context.Context, nodes []node, offset, limit int) ([]store.Event, error) {
	picks := cut(nodes, offset, limit)
	for {
		var deep []node
		for _, p := range picks {
			if l.isDeep(p) {
				deep = append(deep, p.node)
			}
		}
		if len(deep) == 0 {
			return l.read(ctx, picks)
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
		picks = cut(nodes, picks[0].skip, limit)
	}
}

const (
	eachPick    = `SELECT r.i, x.* FROM unnest($4::int[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[]) AS r(i, name, lo, hi, skip, take) CROSS JOIN LATERAL `
	eachName    = `unnest(CASE r.name WHEN '' THEN $10::text[] ELSE ARRAY[r.name] END) AS n(name) CROSS JOIN LATERAL `
	newestFirst = `at DESC, seq DESC, idx DESC`
	oldestFirst = `at, seq, idx`

	// Each index begins with these columns, so that whichever the planner takes finds the event at once.
	eventAt = ` CROSS JOIN LATERAL (SELECT bot, muid, raw FROM event
		WHERE merchant = $1 AND name = y.name AND at = y.at AND seq = y.seq AND idx = y.idx OFFSET 0) AS e) AS x`
)

// statement returns the statement that reads picks, some of which have names.
//
// The events of all names are beside each other in the table. Those of one name are not: they are found in the index by name, and only
// those on the page are read from the table. Of a pick with several names, the first ones of each name are merged.
func (l *listing) statement(named bool) string {
	order := newestFirst
	if l.asc {
		order = oldestFirst
	}
	cut := ` ORDER BY ` + order + ` OFFSET r.skip LIMIT r.take) AS `
	each := `(SELECT seq, idx, at, name, bot, muid, raw` + l.inSpan() + cut + `x`
	if named {
		each = `(SELECT y.*, e.* FROM (SELECT z.* FROM ` + eachName + `(SELECT seq, idx, at, name` + l.ofName() + ` ORDER BY ` + order +
			` LIMIT r.skip + r.take) AS z` + cut + `y` + eventAt
	}
	return eachPick + each + ` ORDER BY r.i, ` + order
}

// read reads the events of picks.
func (l *listing) read(ctx context.Context, picks []pick) (events []store.Event, err error) {
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
	err = query(ctx, l.tx, func(rows pgx.Rows) error {
		var i int
		var seq, at int64
		var idx int16
		var e store.Event
		var muid []byte
		if err := rows.Scan(&i, &seq, &idx, &at, &e.Name, &e.Bot, &muid, &e.Raw); err != nil {
			return err
		}
		e.ID, e.MUID, e.Time = positionOf(seq, idx).EventID(), store.MUID(muid), timeAt(at)
		events = append(events, e)
		return nil
	}, l.statement(named), args...)
	return events, err
}

// Usage implements store.Events.
func (e *engine) Usage(ctx context.Context, merchants []store.MerchantID) (usage []store.Usage, err error) {
	err = e.read(ctx, func(tx pgx.Tx) error {
		usage = make([]store.Usage, len(merchants))
		keys := make([]string, 0, len(merchants))
		of := map[string][]int{}
		for i, id := range merchants {
			if _, ok := keyOf(id); !ok {
				return store.NotFound("merchant")
			}
			keys, of[string(id)] = append(keys, string(id)), append(of[string(id)], i)
		}
		return query(ctx, tx, func(rows pgx.Rows) error {
			var id string
			var u store.Usage
			if err := rows.Scan(&id, &u.Events, &u.Bytes); err != nil {
				return err
			}
			for _, i := range of[id] {
				usage[i] = u
			}
			return nil
		}, `SELECT merchant::text, sum(events)::bigint, sum(bytes)::bigint FROM (SELECT merchant, events, bytes FROM usage
				UNION ALL SELECT t.merchant, t.n, t.bytes FROM tally t LEFT JOIN usage u ON u.merchant = t.merchant WHERE t.seq > coalesce(u.folded, 0)) AS x
			WHERE merchant = ANY($1) AND NOT EXISTS (SELECT FROM removal r WHERE r.merchant = x.merchant) GROUP BY merchant`, keys)
	})
	return usage, err
}
