package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// A destination can be asked to erase, too. It gets a request for each erasure of its merchant that is newer than the
// destination, at least once, until it takes the request or maxAskAge has passed. The receipt of the erasure shows the
// state.
//
// Only webhooks can be asked. For ad platforms no interface was found (searched 2026-11) that deletes a person's events with
// what a destination has. GA4's properties.submitUserDeletion (Admin API, v1alpha) needs OAuth with the scope
// analytics.edit, and the user id or client id in clear; a destination has only an API secret, and an erasure only hashes.
//
// Every askInterval, the destinations look for new erasures. That is work like sending events: see runner.next.
const (
	askInterval = 5 * time.Second
	asksAtOnce  = 20 // of one destination, before it is the turn of others
	maxAskAge   = 72 * time.Hour
)

// AskState says how far a request to erase is.
type AskState string

// The states.
const (
	Asked       AskState = "asked"       // the destination has taken the request
	AskPending  AskState = "pending"     // the request is sent, or sent again
	AskFailed   AskState = "failed"      // the destination has not taken the request within maxAskAge
	NotPossible AskState = "notPossible" // the destination cannot be asked, or its settings do not want it
)

// Ask is the request to one destination to erase, as it is stored and shown.
type Ask struct {
	Destination string     `json:"destinationId"`
	Type        string     `json:"type"`
	State       AskState   `json:"state"`
	At          *time.Time `json:"at"`     // of the last attempt
	Reason      *string    `json:"reason"` // why the last attempt failed
}

// askAll has destinations look for erasures, until the shard stops.
func (sh *shard) askAll() {
	for sh.sleep(min(askInterval, 5*sh.s.Backoff(1))) {
		sh.mu.Lock()
		for _, of := range sh.of {
			for _, r := range of.runners {
				if r.asks = r.limits.Erasures; r.asks {
					r.kick()
				}
			}
		}
		sh.mu.Unlock()
	}
}

// ask sends the destination the requests that it has not taken yet, at most asksAtOnce.
func (r *runner) ask(rt *route) {
	r.asks = false
	failures := r.st.Failures
	r.sh.mu.Unlock()
	more, err := r.askNext(rt, failures)
	r.sh.mu.Lock()
	switch {
	case r.sh.ctx.Err() != nil:
	case err != nil:
		r.failedAsks++
		r.nextAsk = r.sh.s.Now().Add(r.sh.s.Backoff(r.failedAsks))
	default:
		r.failedAsks, r.asks = 0, more
	}
}

// askNext is ask without mu. more: the destination may have more to take immediately.
func (r *runner) askNext(rt *route, failures int) (more bool, err error) {
	s, ctx := r.sh.s, r.sh.ctx
	_, total, err := s.Engine.Erasures(ctx, r.merchant, 0, 1)
	if err != nil || total == r.told {
		return false, err
	}
	var left []store.Erasure
	for e, err := range s.erasures(ctx, r.merchant) {
		if err != nil {
			return false, err
		}
		if e.At.Before(rt.CreatedAt) || s.Now().Sub(e.At) > maxAskAge { // so are all that follow
			break
		}
		left = append(left, e)
	}
	known, err := s.asksOf(ctx, r.merchant)
	if err != nil {
		return false, err
	}
	left = slices.DeleteFunc(left, func(e store.Erasure) bool { return known[e.ID][r.id].State == Asked })
	// Those that were never tried come first, so that others that fail each time do not hold them up.
	lastTried := func(e store.Erasure) time.Time { return *cmp.Or(known[e.ID][r.id].At, new(time.Time)) }
	slices.SortStableFunc(left, func(a, b store.Erasure) int { return lastTried(a).Compare(lastTried(b)) })
	var refused error
	for i, e := range left {
		if i == asksAtOnce || r.routeNow() != rt {
			return refused == nil, refused
		}
		outcome, err := r.tellErasure(rt, e, failures)
		if err != nil && outcome != kind.Refused {
			return false, err
		}
		refused = cmp.Or(err, refused)
	}
	if refused == nil {
		r.told = total
	}
	return false, refused
}

// tellErasure tells the destination of an erasure, and notes the outcome.
func (r *runner) tellErasure(rt *route, e store.Erasure, failures int) (kind.Outcome, error) {
	s, ctx := r.sh.s, r.sh.ctx
	request := rt.target.(kind.Eraser).Erasure(e, rt.deliveryID(store.EventID(e.ID)), s.Now())
	sent := r.sh.request(request, failures)
	if ctx.Err() != nil {
		return kind.Again, ctx.Err()
	}
	outcome := kind.Again
	if sent.err == nil {
		outcome = rt.target.Read(request, sent.answer).Outcome
	}
	ask := Ask{Destination: r.id, Type: rt.Type, State: Asked, At: new(s.Now().UTC().Truncate(time.Second))}
	if outcome != kind.Done {
		ask.State, ask.Reason = AskPending, new(first(reasonOf(sent), keptReason))
	}
	text, err := json.Marshal(ask)
	if err == nil {
		err = s.Engine.PutDocuments(ctx, []store.Document{{Kind: store.ErasureAsks, Merchant: r.merchant, ID: string(e.ID) + "/" + r.id, Content: text}})
	}
	if err == nil && ask.State != Asked {
		err = store.Unavailable(*ask.Reason)
	}
	return outcome, err
}

// asksOf returns the stored requests to erase of a merchant, by the ids of erasure and destination.
func (s *Service) asksOf(ctx context.Context, m store.MerchantID) (map[store.ErasureID]map[string]Ask, error) {
	docs, err := s.Engine.Documents(ctx, store.ErasureAsks, m, "")
	if err != nil {
		return nil, err
	}
	known := map[store.ErasureID]map[string]Ask{}
	for _, doc := range docs {
		erasure, destination, _ := strings.Cut(doc.ID, "/")
		var a Ask
		if err := json.Unmarshal(doc.Content, &a); err != nil {
			return nil, err
		}
		if known[store.ErasureID(erasure)] == nil {
			known[store.ErasureID(erasure)] = map[string]Ask{}
		}
		known[store.ErasureID(erasure)][destination] = a
	}
	return known, nil
}

// Asks returns the requests to erase for each erasure: one for each destination that is older than the erasure, and those of
// deleted destinations that were asked.
func (s *Service) Asks(ctx context.Context, m store.MerchantID, erasures []store.Erasure) (all [][]Ask, err error) {
	known, err := s.asksOf(ctx, m)
	if err != nil {
		return nil, err
	}
	destinations, err := s.List(ctx, m)
	if err != nil {
		return nil, err
	}
	takes := map[string]bool{}
	for _, d := range destinations {
		rt, err := s.open(d)
		takes[d.ID] = err == nil && rt.limits.Erasures
	}
	for _, e := range erasures {
		asks, of := []Ask{}, known[e.ID]
		for _, d := range destinations {
			a, has := of[d.ID]
			delete(of, d.ID)
			if !has {
				a = Ask{Destination: d.ID, Type: d.Type, State: NotPossible}
				if takes[d.ID] {
					a.State = AskPending
				}
			}
			if has || !d.CreatedAt.After(e.At) {
				asks = append(asks, a)
			}
		}
		asks = slices.AppendSeq(asks, maps.Values(of)) // those of deleted destinations
		for i := range asks {
			if asks[i].State == AskPending && s.Now().Sub(e.At) > maxAskAge {
				asks[i].State = AskFailed
			}
		}
		all = append(all, asks)
	}
	return all, nil
}
