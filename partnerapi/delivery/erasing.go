package delivery

import (
	"context"
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
	persons *rules.Persons // nil: nobody's
	at      []time.Time    // when the erasure of each person was requested; later events stay
}

// erasingOf returns whose events must not be sent any more.
func (sh *shard) erasingOf(m store.MerchantID) (erasing, error) {
	const fresh = 200 * time.Millisecond
	sh.mu.Lock()
	known := sh.erasing[m]
	sh.mu.Unlock()
	if time.Since(known.asked) < fresh {
		return known, nil
	}
	known, err := sh.s.erasingOf(sh.ctx, m)
	if err != nil {
		return erasing{}, err
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if known.persons == nil {
		delete(sh.erasing, m) // most merchants: asked again, from memory
	} else {
		sh.erasing[m] = known
	}
	return known, nil
}

func (s *Service) erasingOf(ctx context.Context, m store.MerchantID) (erasing, error) {
	const page = 100
	known := erasing{asked: time.Now()}
	var persons []store.Person
	for offset := 0; ; offset += page {
		list, total, err := s.Engine.Erasures(ctx, m, offset, page)
		if err != nil {
			return erasing{}, err
		}
		before := len(persons)
		for _, e := range list {
			if e.State != store.ErasureDone || time.Since(e.FinishedAt) < longestRound {
				persons, known.at = append(persons, e.Person), append(known.at, e.At)
			}
		}
		if len(persons) == before || offset+page >= total { // older erasures are done
			break
		}
	}
	if len(persons) > 0 {
		known.persons = rules.NewPersons(persons...)
	}
	return known, nil
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
