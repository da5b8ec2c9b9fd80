package read

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
)

// nodesOfNames returns the nodes of a range of the names, in the order of the query. The names are sorted.
func (l *listing) nodesOfNames(ctx context.Context, lo, hi int64, names []string) ([]node, error) {
	all, err := l.readNames(ctx, "AND name = ANY($5) GROUP BY name", names)
	if err != nil {
		return nil, err
	}
	all = l.addOpen(all, l.nameDesc, func(name string) bool { return slices.Contains(names, name) })
	spans := cover(lo, hi)
	slices.Reverse(spans)
	return l.inRange(ctx, spans, all)
}

// nearbyNames returns the nodes of a page by name, and of some names before or after it. whole has the nodes of the range,
// of all names, the newest first. The page begins at offset of their events. Among the events of the returned nodes it
// begins at from. A merchant can have hundreds of thousands of names. So names are read from the beginning or from the end,
// whichever is nearer, up to the page, and names before that are not kept.
//
// To count a name's events in the range takes long; the number of all its events is known. So how many names to count is
// guessed from the latter, as if the share in the range, which is total of lifetime, were the same for each name.
func (l *listing) nearbyNames(ctx context.Context, whole []node, lifetime, offset, limit int) (nodes []node, from int, err error) {
	total, spans := totalOf(whole), l.spansOfName(whole)
	skip, end := offset, min(offset+limit, total)
	fromEnd := total-offset < end
	if fromEnd {
		skip, end = total-end, total-offset
	}
	names := &nameReader{listing: l, desc: l.nameDesc != fromEnd, least: 1}
	if names.desc {
		names.last = afterAllNames
	}
	read, kept := 0, 0
	for read < end {
		some, err := names.nextNames(ctx, float64(end-read)/float64(total)*float64(lifetime))
		if err != nil {
			return nil, 0, err
		}
		if fromEnd {
			slices.Reverse(some)
		}
		counted, err := l.inRange(ctx, spans, some)
		if err != nil {
			return nil, 0, err
		}
		n := totalOf(counted)
		if read += n; read <= skip {
			continue
		}
		kept += n
		counted = slices.DeleteFunc(counted, func(n node) bool { return n.n == 0 })
		if fromEnd {
			nodes = slices.Concat(counted, nodes)
		} else {
			nodes = slices.Concat(nodes, counted)
		}
	}
	if fromEnd {
		return nodes, offset - (total - read), nil
	}
	return nodes, offset - (read - kept), nil
}

// nameReader reads the names of a selection in their order, or from the last one to the first.
type nameReader struct {
	*listing
	desc   bool
	last   string // the counters' names up to this one were read
	ended  bool   // all names were read
	unused []node // names that were read and not returned yet
	least  int    // how many names next returns at least, unless the selection has fewer
}

const (
	namesAtOnce = 1000 // how many names are read in one statement
	leastToMost = 16   // next returns at most this many times as many names as at least
)

// nextNames returns nodes of the next names, with the number of all events of each. It fails when no name is left.
//
// It stops when the names have enough events: each superfluous name costs the caller as much as a statement, because a name
// has hundreds of counters in a range. As enough is only an estimate, the number of names also has a lower and an upper
// bound, which double with each call.
func (r *nameReader) nextNames(ctx context.Context, enough float64) (some []node, err error) {
	if len(r.unused) == 0 && !r.ended {
		if err := r.readMore(ctx); err != nil {
			return nil, err
		}
	}
	if len(r.unused) == 0 {
		return nil, errors.New("the counters of names have fewer events than those of all names together")
	}
	n := 0
	for most := min(leastToMost*r.least, namesAtOnce, len(r.unused)); n < most && (n < r.least || enough > 0); n++ {
		enough -= float64(r.unused[n].n)
	}
	some, r.unused = r.unused[:n], r.unused[n:]
	r.least = min(2*r.least, namesAtOnce)
	return some, nil
}

// readMore reads more names from the counters, and from the pending deltas in the same range of names.
func (r *nameReader) readMore(ctx context.Context) error {
	order := "AND name > $5 GROUP BY name ORDER BY name"
	if r.desc {
		order = "AND name < $5 AND name <> '' GROUP BY name ORDER BY name DESC"
	}
	before := r.last
	names, err := r.readNames(ctx, order+" LIMIT "+strconv.Itoa(namesAtOnce), before)
	if err != nil {
		return err
	}
	if r.ended = len(names) < namesAtOnce; !r.ended {
		r.last = names[len(names)-1].name
	}
	follows := func(a, b string) bool { return a > b && !r.desc || a < b && r.desc }
	r.unused = r.addOpen(names, r.desc, func(name string) bool { return follows(name, before) && (r.ended || !follows(name, r.last)) })
	return nil
}

// afterAllNames is greater than the name of any event.
const afterAllNames = "~"

// readNames returns a node with all events of each name that a condition selects. The condition has one parameter, $5.
func (l *listing) readNames(ctx context.Context, condition string, parameter any) ([]node, error) {
	return conn.CollectRows(ctx, l.tx, func(n *node) []any {
		n.span = life
		return []any{&n.name, &n.n}
	}, `SELECT name, sum(n)::bigint FROM counter WHERE `+filter+` AND level = $4 `+condition, l.merchant, l.tag, l.bot, count.ByLife, parameter)
}

// addOpen adds the wanted names of the pending deltas to nodes with all events of each name, and sorts the nodes.
func (l *listing) addOpen(nodes []node, desc bool, wanted func(name string) bool) []node {
	at := map[string]int{}
	for i, n := range nodes {
		at[n.name] = i
	}
	for _, t := range l.open {
		if !l.selectsDelta(t) || !wanted(t.Name) {
			continue
		}
		i, known := at[t.Name]
		if !known {
			i, at[t.Name] = len(nodes), len(nodes)
			nodes = append(nodes, node{span: life, name: t.Name})
		}
		nodes[i].n += t.N
	}
	slices.SortFunc(nodes, func(a, b node) int {
		if desc {
			a, b = b, a
		}
		return cmp.Compare(a.name, b.name)
	})
	return nodes
}

// Up to fewEvents events of a name are counted one by one. Counters would cost more: visitors can make up thousands of
// names. With a filter, counters are always used: to count one by one, all events that it leaves out would be read, too.
const fewEvents = 50

// fewMinutes is a number of events of all names in the minutes at one end of a range. Up to it, the events of each name in
// these minutes are counted one by one. That costs little: the last seconds of the range are read anyway, and most of these
// events are on the same pages of the index by name. The counters of the minutes are on other pages, often not in memory.
const fewMinutes = 1000

// spansOfName returns the spans in which the events of one name are counted. whole has the nodes of the range, of all names.
func (l *listing) spansOfName(whole []node) (spans []span) {
	for _, n := range whole {
		s, last := n.span, len(spans)-1
		if s.level == count.ByMinute && n.n <= fewMinutes && !l.isFiltered() {
			s.level = rawLevel
		}
		if last >= 0 && s.level == rawLevel && spans[last].level == rawLevel {
			spans[last].lo = s.lo
			continue
		}
		spans = append(spans, s)
	}
	return spans
}

// inRange splits nodes with all events of each name into nodes of the spans of a range, the newest first, and counts their
// events.
func (l *listing) inRange(ctx context.Context, spans []span, names []node) (nodes []node, err error) {
	if len(spans) == 0 || len(spans) == 1 && spans[0].level == count.ByLife {
		return names[:len(names)*len(spans)], nil
	}
	for _, n := range names {
		if n.n <= fewEvents && !l.isFiltered() {
			nodes = append(nodes, node{span: span{rawLevel, spans[len(spans)-1].lo, spans[0].hi}, name: n.name})
			continue
		}
		for _, s := range spans {
			nodes = append(nodes, node{span: s, name: n.name})
		}
	}
	return nodes, l.countAll(ctx, l.tx, nodes)
}
