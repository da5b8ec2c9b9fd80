package rules

import "mtagd/store"

// erasing does the erasures of one merchant together (EraseOf): it decides which events and links belong to which person,
// and counts them for the receipts.
type erasing struct {
	ids      []store.ErasureID
	persons  *Persons     // of the erasures, in their order
	everyone store.Person // the muids and identifiers of all of them

	place          map[store.ErasureID]int
	upTo           []uint64
	links          []int
	suppressed     [][]store.IdentityKey
	count, claimed []int
}

// newErasing begins erasures of one merchant.
func newErasing(erasures []store.Erasure) *erasing {
	n := len(erasures)
	e := &erasing{place: map[store.ErasureID]int{}, links: make([]int, n), suppressed: make([][]store.IdentityKey, n), count: make([]int, n), claimed: make([]int, n)}
	people := make([]store.Person, n)
	for i, era := range erasures {
		people[i], e.place[era.ID] = era.Person, i
		e.ids, e.upTo = append(e.ids, era.ID), append(e.upTo, era.UpTo)
		e.everyone.MUIDs = append(e.everyone.MUIDs, era.Person.MUIDs...)
		e.everyone.Identifiers = append(e.everyone.Identifiers, era.Person.Identifiers...)
	}
	e.persons = NewPersons(people...)
	return e
}

// begin is a change for removal.Engine.UpdateErasures: from now on, a request for the same person makes another erasure. What
// the person's links lead to is suppressed too.
func (e *erasing) begin(era *store.Erasure) []store.IdentityKey {
	era.Begun = true
	return e.suppressed[e.place[era.ID]]
}

// until says what the last event is that came in before the erasures have begun. Those that had begun before keep theirs.
func (e *erasing) until(last uint64) {
	for i := range e.upTo {
		if e.upTo[i] == 0 {
			e.upTo[i] = max(last, 1)
		}
	}
}

// take counts an event of persons (Matcher), and reports whether it is removed.
func (e *erasing) take(received uint64, owners, claimed []int) (goes bool) {
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

// remove is a change for UpdateErasures: what was found is removed now. After a kill the numbers of the first time stay.
func (e *erasing) remove(era *store.Erasure) []store.IdentityKey {
	if i := e.place[era.ID]; era.UpTo == 0 {
		era.UpTo, era.Events, era.Claimed, era.Links = e.upTo[i], e.count[i], e.claimed[i], e.links[i]
	}
	era.State = store.ErasureRemoving
	return nil
}
