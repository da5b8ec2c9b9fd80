package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// A destination can be asked to erase, too. It gets a request for each erasure of its merchant that is newer than the
// destination, at least once, until it takes the request or maxAskAge has passed. The receipt of the erasure shows the
// state.
//
// Only webhooks can be asked. An ad platform would need an interface that deletes a person's events, and that works with the
// credentials of a destination:
//
//   - GA4: properties.submitUserDeletion of the Admin API needs OAuth with the scope analytics.edit, and the user id or
//     client id in clear. A destination has only an API secret, and an erasure only hashes. (The page is
//     developers.google.com/analytics/devguides/config/admin/v1/rest/v1alpha/properties/submitUserDeletion.)
//   - Meta, Snap, TikTok, Google Ads, Microsoft, Pinterest, LinkedIn: no such interface was found (searched 2026-11).
//
// Destinations that have failed, or took long, have places of their own. So a destination that hangs delays the others only
// the first time, by firstAsk.
const (
	askInterval = 5 * time.Second
	asksAtOnce  = 16               // to destinations in good order, and as many to others
	firstAsk    = 5 * time.Second  // how long a destination in good order may take to answer
	askTurn     = 10 * time.Second // how long a destination is asked before it is the turn of others
	maxAskAge   = 72 * time.Hour
)

var errLongAsk = errors.New("the destination has not taken all requests to erase in its turn")

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

// takesErasures reports whether a destination can be asked to erase, and its settings want it.
func takesErasures(t kind.Target) bool {
	eraser, ok := t.(kind.Eraser)
	return ok && eraser.TakesErasures()
}

// askAll asks the destinations of a shard to erase, until the shard stops.
func (sh *shard) askAll() {
	good, failing := &places{free: asksAtOnce}, &places{free: asksAtOnce}
	for sh.sleep(min(askInterval, 5*sh.s.Backoff(1))) {
		now := sh.s.Now()
		sh.mu.Lock()
		for _, of := range sh.of {
			for _, r := range of.runners {
				if !r.takesErasures || !r.isOn() || r.asking || now.Before(r.nextAsk) {
					continue
				}
				p := good
				if r.failedAsks > 0 {
					p = failing
				}
				r.asking = true
				if p.waiting = append(p.waiting, r); p.free > 0 {
					p.free--
					sh.runners.Go(func() { sh.askWaiting(p) })
				}
			}
		}
		sh.mu.Unlock()
	}
}

// askWaiting uses one place for the destinations that wait to be asked, one after the other, and frees it when none waits.
func (sh *shard) askWaiting(p *places) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for len(p.waiting) > 0 && sh.ctx.Err() == nil {
		r := p.waiting[0]
		p.waiting = p.waiting[1:]
		if r.isOn() {
			failures := r.failedAsks
			sh.mu.Unlock()
			err := sh.ask(r, failures)
			sh.mu.Lock()
			r.noteAsk(err)
		}
		r.asking = false
	}
	p.free++
}

// noteAsk notes how a call of ask has ended. The caller holds mu.
func (r *runner) noteAsk(err error) {
	switch {
	case err == nil:
		r.failedAsks = 0
		return
	case errors.Is(err, errLongAsk):
		r.failedAsks = 1
	default:
		r.failedAsks++
	}
	r.nextAsk = r.sh.s.Now().Add(r.sh.s.Backoff(r.failedAsks))
}

// ask sends a destination the requests that it has not taken yet. failures is how many calls have failed in a row. Only one
// call for a destination runs at a time.
func (sh *shard) ask(r *runner, failures int) error {
	const page = 100
	s, ctx, began := sh.s, sh.ctx, time.Now()
	timeout := requestTimeout
	if failures == 0 {
		timeout = firstAsk
	}
	if r.asked == nil {
		known, err := s.asksOf(ctx, r.merchant)
		if err != nil {
			return err
		}
		r.asked = map[store.ErasureID]bool{}
		for id, asks := range known {
			r.asked[id] = asks[r.id].State == Asked
		}
	}
	d, err := s.Get(ctx, r.merchant, r.id)
	if err != nil {
		return err
	}
	var failed error // one that is refused does not hold up the others
	for offset, left := 0, true; left; offset += page {
		list, total, err := s.Engine.Erasures(ctx, r.merchant, offset, page)
		if err != nil {
			return err
		}
		left = offset+page < total
		for _, e := range list {
			if e.At.Before(d.CreatedAt) || s.Now().Sub(e.At) > maxAskAge { // so are all that follow
				left = false
				break
			}
			if r.asked[e.ID] {
				continue
			}
			r.askedAll = false
			if time.Since(began) > askTurn {
				return errLongAsk
			}
			outcome, err := s.tellErasure(ctx, d, e, timeout)
			switch {
			case err == nil:
				r.asked[e.ID] = true
			case outcome != kind.Refused:
				return err
			default:
				failed = err
			}
		}
		left = left && !r.askedAll
	}
	r.askedAll = failed == nil
	return failed
}

// tellErasure tells a destination of an erasure, and notes the outcome.
func (s *Service) tellErasure(ctx context.Context, d Destination, e store.Erasure, timeout time.Duration) (kind.Outcome, error) {
	rt, err := s.open(d)
	if err != nil {
		return kind.Again, err
	}
	if !takesErasures(rt.target) { // since a moment ago
		return kind.Again, store.Unavailable("the destination takes no erasures any more")
	}
	request := rt.target.(kind.Eraser).Erasure(e, d.deliveryID(store.EventID(e.ID)), s.Now())
	sent := s.client.send(ctx, request, timeout)
	if ctx.Err() != nil {
		return kind.Again, ctx.Err()
	}
	outcome := kind.Again
	if sent.err == nil {
		outcome = rt.target.Read(request, sent.answer).Outcome
	}
	ask := Ask{Destination: d.ID, Type: d.Type, State: Asked, At: new(s.Now().UTC().Truncate(time.Second))}
	if outcome != kind.Done {
		ask.State, ask.Reason = AskPending, new(first(reasonOf(sent), keptReason))
	}
	text, err := json.Marshal(ask)
	if err == nil {
		err = s.Engine.PutDocuments(ctx, []store.Document{{Kind: store.ErasureAsks, Merchant: d.Merchant, ID: string(e.ID) + "/" + d.ID, Content: text}})
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
		takes[d.ID] = err == nil && takesErasures(rt.target)
	}
	for _, e := range erasures {
		asks, of := []Ask{}, known[e.ID]
		for _, d := range destinations {
			a, has := of[d.ID]
			delete(of, d.ID)
			switch {
			case has:
			case d.CreatedAt.After(e.At):
				continue
			default:
				a = Ask{Destination: d.ID, Type: d.Type, State: NotPossible}
				if takes[d.ID] {
					a.State = AskPending
				}
			}
			asks = append(asks, a)
		}
		for _, a := range of { // deleted destinations
			asks = append(asks, a)
		}
		for i := range asks {
			if asks[i].State == AskPending && s.Now().Sub(e.At) > maxAskAge {
				asks[i].State = AskFailed
			}
		}
		all = append(all, asks)
	}
	return all, nil
}
