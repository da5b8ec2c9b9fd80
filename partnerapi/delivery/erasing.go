package delivery

import (
	"context"
	"iter"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
	"mtagd/store/rules"
)

// longestRound is for how long an event may be in memory.
const longestRound = 24 * time.Hour

// erasing names the persons of a merchant whose events are being erased, or were erased after they were read.
type erasing struct {
	asked   time.Time
	newest  store.ErasureID // of the merchant's erasures; "" without any
	persons *rules.Persons  // nil: nobody's
	at      []time.Time     // when the erasure of each person was requested; later events stay
}

// erasingOf returns whose events must not be sent any more. It is asked before each request, from memory: an erasure may be
// done a moment after it was requested.
func (sh *shard) erasingOf(m store.MerchantID) (erasing, error) {
	const fresh = 200 * time.Millisecond // an erasure that is under way may find more muids of its person
	list, _, err := sh.s.Engine.Erasures(sh.ctx, m, 0, 1)
	if err != nil || len(list) == 0 {
		return erasing{}, err
	}
	sh.mu.Lock()
	known := sh.erasing[m]
	sh.mu.Unlock()
	if known.newest == list[0].ID && time.Since(known.asked) < fresh {
		return known, nil
	}
	if known, err = sh.s.erasingOf(sh.ctx, m); err != nil {
		return erasing{}, err
	}
	known.newest = list[0].ID
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.erasing[m] = known
	return known, nil
}

func (s *Service) erasingOf(ctx context.Context, m store.MerchantID) (erasing, error) {
	known := erasing{asked: time.Now()}
	var persons []store.Person
	done := 0 // in a row
	for e, err := range s.erasures(ctx, m) {
		if err != nil {
			return erasing{}, err
		}
		if done++; e.State != store.ErasureDone || time.Since(e.FinishedAt) < longestRound {
			persons, known.at, done = append(persons, e.Person), append(known.at, e.At), 0
		}
		if done == erasuresPerRead { // so are all that are older
			break
		}
	}
	if len(persons) > 0 {
		known.persons = rules.NewPersons(persons...)
	}
	return known, nil
}

const erasuresPerRead = 100

// erasures lists the erasures of a merchant, the newest first.
func (s *Service) erasures(ctx context.Context, m store.MerchantID) iter.Seq2[store.Erasure, error] {
	return func(yield func(store.Erasure, error) bool) {
		for offset, total := 0, 1; offset < total; offset += erasuresPerRead {
			list, all, err := s.Engine.Erasures(ctx, m, offset, erasuresPerRead)
			if err != nil {
				yield(store.Erasure{}, err)
				return
			}
			for _, e := range list {
				if !yield(e, nil) {
					return
				}
			}
			total = all
		}
	}
}

// has reports whether an event belongs to one of the persons and is erased.
func (g erasing) has(e *kind.Event) bool {
	if g.persons == nil {
		return false
	}
	owners, _ := g.persons.Matcher().Of([]byte(e.MUID), e.Raw, e.ByClaim)
	for _, n := range owners {
		if !e.ReceivedAt.After(g.at[n]) {
			return true
		}
	}
	return false
}
