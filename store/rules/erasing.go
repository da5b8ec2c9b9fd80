package rules

import (
	"slices"

	"mtagd/store"
)

// Erasing is how the erasures of one merchant are done together: what of its events and links is whose, and what of that is noted. An engine
// notes first Begin, then the links, then what it has found, and removes it only then. After a kill it begins anew, and finds what is left.
type Erasing struct {
	IDs      []store.ErasureID
	Persons  *Persons     // of the erasures, in their order
	Everyone store.Person // the muids and identifiers of all of them

	place          map[store.ErasureID]int
	upTo           []uint64
	links          []int
	suppressed     [][]store.IdentityKey
	count, claimed []int
}

// NewErasing begins erasures of one merchant.
func NewErasing(erasures []store.Erasure) *Erasing {
	n := len(erasures)
	e := &Erasing{place: map[store.ErasureID]int{}, links: make([]int, n), suppressed: make([][]store.IdentityKey, n), count: make([]int, n), claimed: make([]int, n)}
	people := make([]store.Person, n)
	for i, era := range erasures {
		people[i], e.place[era.ID] = era.Person, i
		e.IDs, e.upTo = append(e.IDs, era.ID), append(e.upTo, era.UpTo)
		e.Everyone.MUIDs = append(e.Everyone.MUIDs, era.Person.MUIDs...)
		e.Everyone.Identifiers = append(e.Everyone.Identifiers, era.Person.Identifiers...)
	}
	e.Persons = NewPersons(people...)
	return e
}

// Found notes the links of the persons. They are not removed yet.
func (e *Erasing) Found(links []store.Link) { e.links, e.suppressed = e.Persons.Links(links) }

// Begin is a change for UpdateErasures: the same request is another erasure from now on. It also suppresses what the links say.
func (e *Erasing) Begin(era *store.Erasure) []store.IdentityKey {
	era.Begun = true
	return e.suppressed[e.place[era.ID]]
}

// Until says what the last event is that came in before the erasures have begun. It returns the last one that one of them concerns: some may
// have begun before, and keep theirs.
func (e *Erasing) Until(last uint64) uint64 {
	for i := range e.upTo {
		if e.upTo[i] == 0 {
			e.upTo[i] = max(last, 1)
		}
	}
	return slices.Max(e.upTo)
}

// Take counts an event of persons (Matcher), and reports whether it is removed.
func (e *Erasing) Take(received uint64, owners, claimed []int) (goes bool) {
	for _, i := range claimed {
		if received <= e.upTo[i] {
			e.claimed[i]++
		}
	}
	for _, i := range owners {
		if received <= e.upTo[i] {
			e.count[i]++
			goes = true
		}
	}
	return goes
}

// Remove is a change for UpdateErasures: what was found is removed now. After a kill the numbers of the first time stay.
func (e *Erasing) Remove(era *store.Erasure) []store.IdentityKey {
	if i := e.place[era.ID]; era.UpTo == 0 {
		era.UpTo, era.Events, era.Claimed, era.Links = e.upTo[i], e.count[i], e.claimed[i], e.links[i]
	}
	era.State = store.ErasureRemoving
	return nil
}
