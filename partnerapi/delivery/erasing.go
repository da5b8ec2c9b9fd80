package delivery

import (
	"context"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// longestRound is for how long an event may be in memory.
const longestRound = 24 * time.Hour

// erasing is whose events of a merchant are being erased: they may still be in the feed.
type erasing struct {
	at      time.Time
	persons map[store.IdentityKey]time.Time // until when: an event that was read later is another one; zero: it is not done
}

// erasingOf returns whose events must not be sent any more.
func (sh *shard) erasingOf(m store.MerchantID) (erasing, error) {
	const fresh = 200 * time.Millisecond
	sh.mu.Lock()
	known := sh.erasing[m]
	sh.mu.Unlock()
	if time.Since(known.at) < fresh {
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
	known := erasing{at: time.Now()}
	for offset := 0; ; offset += page {
		list, total, err := s.Engine.Erasures(ctx, m, offset, page)
		if err != nil {
			return erasing{}, err
		}
		open := false
		for _, e := range list {
			until := e.FinishedAt
			if e.State != store.ErasureDone {
				until = time.Time{} // it may be done again
			} else if time.Since(until) > longestRound {
				continue
			}
			open = true
			if known.persons == nil {
				known.persons = map[store.IdentityKey]time.Time{}
			}
			for _, keys := range [][]store.IdentityKey{e.Person.MUIDs, e.Person.Identifiers} {
				for _, k := range keys {
					if was, has := known.persons[k]; !has || !was.IsZero() && (until.IsZero() || until.After(was)) {
						known.persons[k] = until
					}
				}
			}
		}
		if !open || offset+page >= total { // older ones are done
			break
		}
	}
	return known, nil
}

// has reports whether an event that was read at a time is of a person who is being erased, or was erased since.
func (g erasing) has(e *kind.Event, read time.Time) bool {
	if len(g.persons) == 0 {
		return false
	}
	is := func(k store.IdentityKey) bool {
		until, has := g.persons[k]
		return has && (until.IsZero() || until.After(read))
	}
	if is(store.MUIDKey(e.MUID)) {
		return true
	}
	var id store.Identity
	for name, of := range map[string]store.IdentifierKind{"email": store.Email, "phone": store.Phone, "deviceId": store.DeviceID} {
		if text, ok := e.Fields[name].(string); ok {
			id.Add(of, text)
		}
	}
	for _, k := range id.Keys() {
		if is(k) {
			return true
		}
	}
	return false
}
