package rules

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"mtagd/store"
)

// Difference says, for tests of a driver, in which of its fields the state of d differs from one that was loaded anew;
// "": in none. What has followed from one change after the other must be what follows from all records.
func Difference(d *Data, loaded *State) string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	a, b := normal(d.state), normal(loaded)
	if reflect.DeepEqual(a, b) {
		return ""
	}
	var names []string
	for name, of := range map[string][2]any{
		"partners": {a.partners, b.partners}, "keys": {a.keys, b.keys}, "merchants": {a.merchants, b.merchants},
		"tags": {a.tags, b.tags}, "domains": {a.domains, b.domains}, "replies": {a.replies, b.replies},
		"sessions": {a.sessions, b.sessions}, "uses": {a.uses, b.uses}, "destinations": {a.destinations, b.destinations},
		"keysOf": {a.keysOf, b.keysOf}, "merchantsOf": {a.merchantsOf, b.merchantsOf}, "tagsOf": {a.tagsOf, b.tagsOf},
		"labels": {a.labels, b.labels}, "tracking": {a.tracking, b.tracking}, "repliesOf": {a.repliesOf, b.repliesOf},
		"counts": {a.counts, b.counts},
	} {
		if !reflect.DeepEqual(of[0], of[1]) {
			names = append(names, name)
		}
	}
	return "differs in " + strings.Join(names, ", ")
}

// normal returns a state without what may differ: empty lists, and the order of those that have none.
func normal(s *State) State {
	n := *s
	n.keysOf, n.tagsOf = tidy(s.keysOf, true), tidy(s.tagsOf, true)
	n.merchantsOf, n.repliesOf, n.erasuresOf = tidy(s.merchantsOf, false), tidy(s.repliesOf, false), tidy(s.erasuresOf, false)
	n.counts = maps.Clone(s.counts)
	maps.DeleteFunc(n.counts, func(_ store.PartnerID, c *counts) bool { return c.labels == 0 && len(c.unverified) == 0 })
	return n
}

func tidy[K comparable, V cmp.Ordered](lists map[K][]V, sort bool) map[K][]V {
	all := map[K][]V{}
	for k, list := range lists {
		if list = slices.Clone(list); sort {
			slices.Sort(list)
		}
		if len(list) > 0 {
			all[k] = list
		}
	}
	return all
}
