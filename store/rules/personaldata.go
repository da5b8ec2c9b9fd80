package rules

import (
	"context"
	"slices"
	"time"

	"mtagd/store"
)

// People is what an engine knows of persons.
type People interface {
	// LinksOf returns the links that belong to a person, former ones included: those to the person's muids, and those of the
	// person's identifiers.
	LinksOf(ctx context.Context, m store.MerchantKey, who store.Person) ([]store.Link, error)
	// EventsOf passes all events of a merchant that belong to persons, or that claimed links lead to (Matcher), to use, in
	// the order of receipt, until use returns an error. Those past the retention may be among them. For an erasure, begin is
	// called first, with when the last event was received that came in before: Forget finds all events up to it. Then
	// EventsOf gives way to requests. nil: no erasure.
	EventsOf(ctx context.Context, m store.MerchantKey, who *Persons, begin func(last uint64), use func(e *PersonalEvent, owners, claimed []int) error) error
	// Forget removes links, remembered event_ids, and events. Some of them may be gone. A link that has led to another muid
	// since then stays. So does the note that a muid had links: somebody may know the muid, and say that he has its cookie.
	Forget(ctx context.Context, m store.MerchantKey, links []store.Link, events []ForgottenEvent) error
}

// PersonalEvent is an event of persons. It is valid until use returns.
type PersonalEvent struct {
	store.Event
	Tag store.TagID
	At  store.Position
}

// ForgottenEvent is an event that is to be removed.
type ForgottenEvent struct {
	At      store.Position
	Time    time.Time // event_time
	Name    string
	EventID string // under which it may be remembered; "": it has none
}

// PersonalData implements store.Persons.
func (d *Data) PersonalData(ctx context.Context, id store.MerchantID, named store.Identity, withClaimed bool, use func(*store.PersonalRecord) error) (claimed int, err error) {
	m, err := store.NewMerchantKey(id)
	if err != nil {
		return 0, err
	}
	who, err := d.personOf(ctx, m, &named, withClaimed)
	if err != nil {
		return 0, err
	}
	var removed bool
	var from int64
	if err := d.view(ctx, func(s *State, now time.Time) error {
		_, removed = s.removals[id]
		from = RetainedFrom(s.retentionOf(id), now)
		return nil
	}); err != nil || removed {
		return 0, err
	}
	links, err := d.People.LinksOf(ctx, m, who)
	if err != nil {
		return 0, err
	}
	for _, l := range links {
		if err := use(&store.PersonalRecord{Link: l}); err != nil {
			return 0, err
		}
	}
	err = d.People.EventsOf(ctx, m, NewPersons(who), nil, func(e *PersonalEvent, owners, _ []int) error {
		switch {
		case e.Time.UnixMicro() < from:
			return nil
		case len(owners) == 0:
			claimed++
			return nil
		}
		return use(&store.PersonalRecord{Event: &e.Event, Tag: e.Tag})
	})
	return claimed, err
}

// personOf returns the hashes of a person who is named by one muid or one identifier.
func (d *Data) personOf(ctx context.Context, m store.MerchantKey, named *store.Identity, withClaimed bool) (store.Person, error) {
	if err := CheckPerson(named); err != nil {
		return store.Person{}, err
	}
	links, err := d.People.LinksOf(ctx, m, store.Person{Identifiers: named.Keys()})
	if err != nil {
		return store.Person{}, err
	}
	return PersonOf(named, links, withClaimed), nil
}

// Erase implements store.Persons. It notes the erasure, with hashes only; the background work does it (EraseOf).
func (d *Data) Erase(ctx context.Context, id store.MerchantID, named store.Identity, opt store.ErasureOptions) (store.Erasure, error) {
	m, err := store.NewMerchantKey(id)
	if err != nil {
		return store.Erasure{}, err
	}
	who, err := d.personOf(ctx, m, &named, opt.Claimed)
	if err != nil {
		return store.Erasure{}, err
	}
	return d.addErasure(ctx, id, who, opt.Suppress)
}

// EraseOf implements removal.Engine. It does erasures of one merchant together:
//
//  1. An equal request is another erasure from now on.
//  2. The links of the persons are found. With suppress, events with a linked identifier are refused from now on.
//  3. All events are read to find those of the persons that came in before. Their numbers are noted.
//  4. The links, the remembered event_ids of the events, and the events are removed.
//
// After a kill, all of it is done again. Step 3 then finds the events that are left, and keeps the numbers that were noted.
func (d *Data) EraseOf(ctx context.Context, id store.MerchantID, erasures []store.Erasure) error {
	m, err := store.NewMerchantKey(id)
	if err != nil {
		return err
	}
	found := slices.Clone(erasures) // with the numbers for the receipts, in this order
	ids, people, place := make([]store.ErasureID, len(found)), make([]store.Person, len(found)), map[store.ErasureID]int{}
	var everyone store.Person
	for i, e := range found {
		ids[i], people[i], place[e.ID] = e.ID, e.Person, i
		everyone.MUIDs = append(everyone.MUIDs, e.Person.MUIDs...)
		everyone.Identifiers = append(everyone.Identifiers, e.Person.Identifiers...)
	}
	persons, suppressed := NewPersons(people...), make([][]store.IdentityKey, len(found))
	begin := func(e *store.Erasure) []store.IdentityKey {
		e.Begun = true
		return suppressed[place[e.ID]]
	}
	if err := d.UpdateErasures(ctx, ids, begin); err != nil {
		return err
	}
	links, err := d.People.LinksOf(ctx, m, everyone)
	if err != nil {
		return err
	}
	var numbers []int
	numbers, suppressed = persons.Links(links)
	if err := d.UpdateErasures(ctx, ids, begin); err != nil {
		return err
	}
	until := func(last uint64) { // erasures that had begun before keep theirs
		for i := range found {
			if found[i].UpTo == 0 {
				found[i].UpTo = max(last, 1)
			}
		}
	}
	var events []ForgottenEvent
	var reader EventReader
	if err := d.People.EventsOf(ctx, m, persons, until, func(e *PersonalEvent, owners, claimed []int) error {
		for _, i := range claimed {
			if e.At.Seq <= found[i].UpTo {
				found[i].Claimed++
			}
		}
		goes := false
		for _, i := range owners {
			if e.At.Seq <= found[i].UpTo {
				found[i].Events++
				goes = true
			}
		}
		if goes {
			_, id := reader.Keys(e.Raw)
			events = append(events, ForgottenEvent{e.At, e.Time, e.Name, id})
		}
		return nil
	}); err != nil {
		return err
	}
	if err := d.UpdateErasures(ctx, ids, func(e *store.Erasure) []store.IdentityKey {
		if i := place[e.ID]; e.UpTo == 0 { // else it was noted before a kill
			e.UpTo, e.Events, e.Claimed, e.Links = found[i].UpTo, found[i].Events, found[i].Claimed, numbers[i]
		}
		e.State = store.ErasureRemoving
		return nil
	}); err != nil {
		return err
	}
	return d.People.Forget(ctx, m, links, events)
}
