package rules

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"mtagd/store"
)

// Difference says in which of its fields the state of d differs from one that was loaded anew; "": in none. What has
// followed from one change after the other must be what follows from all records.
func Difference(d *Data, loaded *State) string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	a, b := normal(d.state), normal(loaded)
	if reflect.DeepEqual(a, b) {
		return ""
	}
	var names []string
	for name, of := range map[string]func(*State) any{
		"partners": func(s *State) any { return s.partners }, "keys": func(s *State) any { return s.keys }, "merchants": func(s *State) any { return s.merchants },
		"tags": func(s *State) any { return s.tags }, "domains": func(s *State) any { return s.domains }, "replies": func(s *State) any { return s.replies },
		"sessions": func(s *State) any { return s.sessions }, "uses": func(s *State) any { return s.uses }, "destinations": func(s *State) any { return s.destinations }, "keysOf": func(s *State) any { return s.keysOf },
		"merchantsOf": func(s *State) any { return s.merchantsOf }, "tagsOf": func(s *State) any { return s.tagsOf }, "labels": func(s *State) any { return s.labels },
		"tracking": func(s *State) any { return s.tracking }, "repliesOf": func(s *State) any { return s.repliesOf }, "counts": func(s *State) any { return s.counts },
	} {
		if !reflect.DeepEqual(of(&a), of(&b)) {
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
