package certs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"time"

	"github.com/caddyserver/certmagic"
	"golang.org/x/time/rate"
)

// allowance is how many orders the CA's limit on new orders leaves to the account: a token bucket of all nodes, in a file that an order
// changes under a lock. The bucket of turns is this node's own copy. It keeps most orders from being begun too early, and is
// corrected whenever this node orders. If the clocks of nodes differ, so many minutes' tokens may be taken too early, once.
type allowance struct {
	storage certmagic.Storage
	file    string // also the name of the lock
	turns   *turns
}

// bucket is the file of an allowance.
type bucket struct {
	Tokens float64   `json:"tokens"`
	At     time.Time `json:"at"` // the time of Tokens
}

func newAllowance(storage certmagic.Storage, issuerKey string, t *turns) *allowance {
	return &allowance{storage: storage, file: path.Join("acme", certmagic.StorageKeys.Safe(issuerKey), "orders.json"), turns: t}
}

// take takes the token of an order. The error is an errTooSoon when there is none.
func (a *allowance) take(ctx context.Context) error { return a.add(ctx, -1) }

// giveBack gives back the token of an order that the CA has not counted. If it cannot, the token is lost: that delays one order.
func (a *allowance) giveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), caTimeout) // the attempt may have ended by its timeout
	defer cancel()
	return a.add(ctx, 1)
}

func (a *allowance) add(ctx context.Context, n float64) (err error) {
	limit, burst := a.turns.tokens.Limit(), float64(a.turns.tokens.Burst())
	if limit == rate.Inf {
		return nil
	}
	if err := a.storage.Lock(ctx, a.file); err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, a.storage.Unlock(context.WithoutCancel(ctx), a.file)) }()
	text, err := a.storage.Load(ctx, a.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	now := time.Now().UTC()
	var b bucket
	if err != nil || json.Unmarshal(text, &b) != nil || b.At.Sub(now) > failuresWithin { // what is cut short, or of a clock that was far ahead, is as good as none
		b = bucket{burst, now}
	}
	if passed := now.Sub(b.At); passed > 0 { // else the clock of another node is ahead
		b.Tokens, b.At = b.Tokens+passed.Seconds()*float64(limit), now
	}
	b.Tokens = min(b.Tokens, burst) + n
	a.turns.learn(b.Tokens)
	if b.Tokens < 0 {
		return errTooSoon{now.Add(time.Duration(-b.Tokens / float64(limit) * float64(time.Second)))}
	}
	if text, err = json.Marshal(b); err != nil {
		return err
	}
	return a.storage.Store(ctx, a.file, text)
}
