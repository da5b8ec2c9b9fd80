package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is a call whose order with others is checked: what a claim, or an event_id, goes through must be explained by
// one order of all calls on it, in which each takes effect between its beginning and its answer.
type operation struct {
	on     string // the root domain or event_id
	by     string // the merchant that claims it
	what   what
	result result
	count  int // of events, for read
	call   time.Time
	answer time.Time
}

type what int

const (
	claimDomain   what = iota // by generating a server-side tag
	releaseDomain             // by deleting the merchant
	recordOnce                // with an event_id
	readOnce                  // how often it is listed
)

type result int

const (
	done     result = iota
	taken           // another merchant has the domain
	lost            // no answer says whether it was done
	nothing         // it was not done
	failedOp        // the answer is none that such a call may have
)

// doOp makes a call, and notes it unless it did nothing. A refused event is noted too: see hasShown.
func (c *chaos) doOp(op operation, n *chaosNode, r request, read func(got answer) (result, int)) result {
	op.call = time.Now()
	got, err := c.ask(n, r)
	op.answer = time.Now()
	switch {
	case outcomeOf(got, err) == isUnknown:
		op.result = lost
	case got.status == http.StatusServiceUnavailable:
		op.result = nothing
	default:
		if op.result, op.count = read(got); op.result == failedOp {
			c.Errorf("%s %s on %s: %d %s", r.method, r.path, n.name, got.status, got.body)
		}
	}
	if (op.result != nothing || op.what == recordOnce) && op.result != failedOp && (op.result != lost || op.what != readOnce) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ops = append(c.ops, op)
	}
	return op.result
}

// claim has new merchants claim one of a few domains, and release it again.
func (c *chaos) claim(claimer int) {
	random := rand.New(rand.NewPCG(c.seed, uint64(200+claimer)))
	for i := 0; c.isRunning(); i++ {
		name := fmt.Sprintf("claimer-%d-%d", claimer, i)
		created, ok := c.retry(request{method: "POST", path: "/v1/partners/merchant", body: fmt.Sprintf(`{"name":%q}`, name),
			header: http.Header{"Idempotency-Key": {name}}})
		if !ok {
			return
		}
		op := operation{on: fmt.Sprintf("claim%d.com", random.IntN(2)), by: decodeObject(c.T, created.body)["merchantId"].(string), what: claimDomain}
		for c.isRunning() {
			got := c.doOp(op, c.node[random.IntN(2)], request{method: "POST", path: "/v1/partners/tracktag/generate",
				body: fmt.Sprintf(`{"merchantId":%q,"type":"server-side","domain":%q}`, op.by, op.on)}, func(got answer) (result, int) {
				switch got.status {
				case http.StatusOK:
					return done, 0
				case http.StatusConflict:
					return taken, 0
				case http.StatusNotFound: // the node does not know the merchant yet
					return nothing, 0
				}
				return failedOp, 0
			})
			if got != nothing {
				break
			}
			c.pause()
		}
		for op.what = releaseDomain; ; {
			got := c.doOp(op, c.node[random.IntN(2)], request{method: "DELETE", path: "/v1/partners/merchant/" + op.by}, func(got answer) (result, int) {
				switch got.status {
				case http.StatusOK:
					return done, 0
				case http.StatusNotFound: // an earlier attempt did it, or the node does not know the merchant yet
					return nothing, 0
				}
				return failedOp, 0
			})
			if got == done || !c.pause() {
				break
			}
			if got == nothing && c.isGone(op.by) {
				break
			}
		}
	}
}

// isGone reports whether no node knows a merchant, each having had the time to.
func (c *chaos) isGone(merchant string) bool {
	for _, n := range c.node {
		ready := c.isReady(n)
		if got, err := c.ask(n, request{method: "GET", path: "/v1/partners/merchant/" + merchant}); err != nil || got.status != http.StatusNotFound || !ready {
			return false
		}
	}
	return true
}

// repeat records the same event_ids as others do, and reads how often each is listed.
func (c *chaos) repeat(repeater int) {
	random := rand.New(rand.NewPCG(c.seed, uint64(300+repeater)))
	for c.isRunning() {
		// All repeaters draw from the few event_ids of this half second.
		name := fmt.Sprintf("Once%dx%d", time.Now().UnixMilli()/500, random.IntN(3))
		op := operation{on: name, what: recordOnce}
		c.doOp(op, c.node[random.IntN(2)], request{host: tagHost, method: "POST", path: "/mark/" + c.once.tag,
			body: fmt.Sprintf(`{"event":%q,"muid":"muid-5","event_id":"1"}`, name)}, func(got answer) (result, int) {
			if got.status == http.StatusCreated {
				return done, 0
			}
			return failedOp, 0
		})
		op.what = readOnce // the listing may lag by a few seconds (spec, Rules)
		c.doOp(op, c.node[random.IntN(2)], request{method: "GET", path: "/v1/partners/events?merchantId=" + c.once.merchant + "&events=" + name}, func(got answer) (result, int) {
			var list struct{ Pagination struct{ TotalItems int } }
			if got.status != http.StatusOK || json.Unmarshal(got.body, &list) != nil {
				return failedOp, 0
			}
			return done, list.Pagination.TotalItems
		})
		time.Sleep(20 * time.Millisecond)
	}
}

// claims is what a domain or an event_id goes through. Its state is the owner, or "recorded"; "" at first.
var claims = porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(state, input, _ any) []any {
		owner, op := state.(string), input.(operation)
		after, may := owner, true
		switch op.what {
		case claimDomain:
			if op.result == taken {
				may = owner != "" && owner != op.by
			} else if may = owner == "" || owner == op.by; may {
				after = op.by
			}
		case releaseDomain:
			if owner == op.by {
				after = ""
			}
		case recordOnce:
			after = "recorded"
		case readOnce:
			may = (op.count == 1) == (owner == "recorded") && op.count <= 1
		}
		var states []any
		if may {
			states = append(states, after)
		}
		if op.result == lost && (after != owner || !may) {
			states = append(states, owner)
		}
		return states
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// listingLag is how old a listing may be: for as long as a node does not notice that its primary was replaced.
const listingLag = 5 * time.Second

// A span is from one time to another.
type span struct{ from, to time.Time }

func (s span) overlaps(from, to time.Time) bool { return s.from.Before(to) && from.Before(s.to) }

// hasShown reports whether a listing may show the event of a call that was refused. A primary shows events that its standbys
// and its disk do not have yet. When it is killed or replaced, it may lose an event that a listing has shown: the event is
// then refused rightly. So only a refusal during such a loss counts. Listings may lag after it.
func (c *chaos) hasShown(read, refused operation) bool {
	return read.answer.After(refused.call) && slices.ContainsFunc(c.losses, func(s span) bool {
		return s.overlaps(refused.call, refused.answer) && read.call.Before(s.to.Add(listingLag))
	})
}

// checkClaims looks for an order of the calls on each domain and event_id that explains all answers.
func (c *chaos) checkClaims() {
	byKey, refused := map[string][]porcupine.Operation{}, map[string][]operation{}
	for _, op := range c.ops {
		if op.result == nothing {
			refused[op.on] = append(refused[op.on], op)
		}
	}
	for i, op := range c.ops {
		if op.result == nothing {
			continue
		}
		if op.what == readOnce {
			if op.count == 1 && slices.ContainsFunc(refused[op.on], func(r operation) bool { return c.hasShown(op, r) }) {
				continue
			}
			op.call = op.call.Add(-listingLag)
		}
		ends := op.answer.UnixNano()
		if op.result == lost {
			ends = math.MaxInt64 // it may still be done
		}
		byKey[op.on] = append(byKey[op.on], porcupine.Operation{ClientId: i, Input: op, Call: op.call.UnixNano(), Return: ends})
	}
	model := claims.ToModel()
	for key, history := range byKey {
		if got := porcupine.CheckOperationsTimeout(model, history, time.Minute); got == porcupine.Illegal {
			for _, h := range history {
				c.Logf("%+v", h.Input)
			}
			c.Errorf("no order of the %d calls on %s explains their answers", len(history), key)
		} else if got == porcupine.Unknown {
			c.Logf("the %d calls on %s are too many to be checked", len(history), key)
		}
	}
}
