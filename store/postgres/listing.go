package postgres

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// Events implements store.Events. All of it is as of one moment:
//
//  1. The range is split into spans, whose events the counters know. With ByName, each name has nodes of its own. Their sum is
//     the total.
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
		page = store.Page{}
		scopes, _, err := e.scopes(ctx, tx, merchant)
		if err != nil || scopes[0].removed {
			return err
		}
		lo, hi := rangeOf(q.From, q.To)
		l := listing{selection: s, tx: tx, asc: q.Asc && q.SortBy == store.ByTime, nameDesc: !q.Asc}
		nodes, err := l.nodes(ctx, q, max(lo, scopes[0].from), hi)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			page.Total += n.n
		}
		if q.Offset >= page.Total {
			return nil
		}
		page.Events, err = l.page(ctx, nodes, q.Offset, q.Limit)
		return err
	})
	return page, err
}

// listing reads one page.
type listing struct {
	selection
	tx  pgx.Tx
	asc bool // the events of a node are read oldest first

	nameDesc bool // with ByName: the last name comes first
}

// fewEvents is how many events of a name are counted one by one: visitors can make up thousands of names.
const fewEvents = 50

// nodes returns the nodes of a range, in the order of the query.
func (l *listing) nodes(ctx context.Context, q store.Query, lo, hi int64) (nodes []node, err error) {
	spans := cover(lo, hi)
	if !l.asc {
		slices.Reverse(spans)
	}
	if q.SortBy == store.ByTime {
		for _, s := range spans {
			nodes = append(nodes, node{span: s})
		}
		return nodes, l.count(ctx, l.tx, nodes)
	}
	names, err := l.allOf(ctx, l.tx)
	if err != nil || len(spans) == 1 && spans[0].level == byLife || len(spans) == 0 {
		return names[:len(names)*len(spans)], err
	}
	for _, n := range names {
		if n.n <= fewEvents {
			nodes = append(nodes, node{span: span{rawLevel, lo, hi}, name: n.name})
			continue
		}
		for _, s := range spans {
			nodes = append(nodes, node{span: s, name: n.name})
		}
	}
	return nodes, l.count(ctx, l.tx, nodes)
}

// allOf returns nodes with all events of each name of the selection, in the order of the names.
func (l *listing) allOf(ctx context.Context, tx pgx.Tx) (nodes []node, err error) {
	order := "name"
	if l.nameDesc {
		order = "name DESC"
	}
	err = query(ctx, tx, func(rows pgx.Rows) error {
		n := node{span: bucket(byLife, 0)}
		err := rows.Scan(&n.name, &n.n)
		nodes = append(nodes, n)
		return err
	}, `SELECT name, sum(n)::bigint FROM counter WHERE `+filter+` AND level = $4 AND name <> '' AND ($5::text[] IS NULL OR name = ANY($5))
		GROUP BY name ORDER BY `+order, l.merchant, l.tag, l.bot, byLife, l.names)
	return nodes, err
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

// maxSkipped is how many events of a node may be read in vain. Reading the counters of the level below costs about as much.
const maxSkipped = 1000

// isDeep reports whether a node is replaced by the buckets of the level below.
func (l *listing) isDeep(p pick) bool {
	return p.level > byMinute && (l.isFiltered() || p.skip*len(l.namesOf(p.node)) > maxSkipped || p.take*len(l.namesOf(p.node)) > 10*maxSkipped)
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

// The events of nodes. Of a node with several names, the first ones of each name are read, also those that are skipped.
const (
	eventColumns = `seq, idx, at, bot, name, muid, raw`
	eachPick     = ` FROM unnest($4::int[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[]) AS r(i, name, lo, hi, skip, take) CROSS JOIN LATERAL `
	newestFirst  = ` ORDER BY at DESC, seq DESC, idx DESC`
	oldestFirst  = ` ORDER BY at, seq, idx`
	selectEvents = `SELECT r.i, x.*` + eachPick + `(SELECT ` + eventColumns
	ofPick       = ` OFFSET r.skip LIMIT r.take) AS x ORDER BY r.i, `
	listNewest   = selectEvents + inSpan + newestFirst + ofPick + `x.at DESC, x.seq DESC, x.idx DESC`
	listOldest   = selectEvents + inSpan + oldestFirst + ofPick + `x.at, x.seq, x.idx`
	listNewestBy = selectEvents + ofName + newestFirst + ofPick + `x.at DESC, x.seq DESC, x.idx DESC`
	listOldestBy = selectEvents + ofName + oldestFirst + ofPick + `x.at, x.seq, x.idx`
)

// read reads the events of picks.
func (l *listing) read(ctx context.Context, picks []pick) (events []store.Event, err error) {
	var at []int32
	var names []string
	var lo, hi, skip, take []int64
	left := make([]pick, len(picks)) // what is to be skipped and taken of the rows
	byName := false
	for i, p := range picks {
		of := l.namesOf(p.node)
		byName = byName || of[0] != ""
		left[i] = p
		if len(of) > 1 {
			p.skip, p.take = 0, p.skip+p.take
		} else {
			left[i].skip = 0
		}
		for _, name := range of {
			at, names, lo, hi = append(at, int32(i)), append(names, name), append(lo, p.lo), append(hi, p.hi)
			skip, take = append(skip, int64(p.skip)), append(take, int64(p.take))
		}
	}
	sql := map[[2]bool]string{{false, false}: listNewest, {false, true}: listOldest, {true, false}: listNewestBy, {true, true}: listOldestBy}
	err = query(ctx, l.tx, func(rows pgx.Rows) error {
		var i int
		var seq, at int64
		var idx int16
		var e store.Event
		var muid []byte
		if err := rows.Scan(&i, &seq, &idx, &at, &e.Bot, &e.Name, &muid, &e.Raw); err != nil {
			return err
		}
		if left[i].skip > 0 {
			left[i].skip--
			return nil
		}
		if left[i].take == 0 {
			return nil
		}
		left[i].take--
		e.ID, e.MUID, e.Time = positionOf(seq, idx).EventID(), store.MUID(muid), timeAt(at)
		events = append(events, e)
		return nil
	}, sql[[2]bool{byName, l.asc}], l.merchant, l.tag, l.bot, at, names, lo, hi, skip, take)
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
		}, `SELECT merchant::text, events, bytes FROM usage u WHERE merchant = ANY($1)
			AND NOT EXISTS (SELECT FROM removal r WHERE r.merchant = u.merchant)`, keys)
	})
	return usage, err
}
