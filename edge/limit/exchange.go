package limit

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Exchange connects the limits of several nodes. Once a second each node sends the others the tokens that it gave, and
// subtracts those that the others gave. It leaves out a key until the key has taken a hundredth of its burst.
//
// So a limit holds over all nodes, but late: until the nodes hear of each other, each can give a full bucket. Tokens that
// were given beyond the limit are subtracted later, so the rate over all nodes is kept in the long run. Only strict portions
// do not rely on that.
//
// Nothing waits for the exchange. While it fails, each node counts for itself, and drops the counts that it could not send:
// sent later, they would make nodes refuse events for a load that is long past.
type Exchange struct {
	seed Seed
	now  func() time.Time

	others atomic.Int64 // other nodes

	mu     sync.Mutex
	tables [tables]*Buckets
	noted  [1 + tellTakes]map[spentKey]*spent // since the last exchange, between it and the one before, and so on
}

// tellTakes is how many exchanges it takes until all nodes know what this one noted before: nodes send once a second, but
// not at the same time.
const tellTakes = 2

// Table is one of the sets of buckets that nodes share.
type Table byte

// The tables that nodes share.
const (
	OfClients   Table = iota // of client addresses
	OfTenants                // of merchants and partners, for events
	OfPartners               // of partners, for requests
	OfStrangers              // of client addresses, for requests without a valid key

	tables
)

const (
	exchangeEvery = time.Second
	tellShare     = 0.01 // of the burst
	maxTold       = 1000 // keys in one message; further keys are told of a second later
)

// spent is how many tokens a node has given from one bucket. A message is a sequence of these: big-endian, without gaps.
type spent struct {
	Bucket spentKey
	Tokens float64
	Rate   Rate
}

type spentKey struct {
	Table Table
	Key   Key
}

const entrySize = 1 + 4*8 // bytes of a spent in a message

// NewExchange returns an exchange of the nodes that have the same seed.
func NewExchange(seed Seed, now func() time.Time) *Exchange {
	x := &Exchange{seed: seed, now: now}
	for i := range x.noted {
		x.noted[i] = map[spentKey]*spent{}
	}
	return x
}

// NewBuckets returns buckets that are all full. Their limits hold over all nodes; without an exchange (nil), for this node.
func (x *Exchange) NewBuckets(t Table) *Buckets {
	b := NewBuckets()
	if x == nil {
		return b
	}
	b.share, b.table = x, t
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tables[t] = b
	return b
}

// note takes note of tokens that were given. It returns false when the next message is full.
func (x *Exchange) note(s spent) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if before := x.noted[0][s.Bucket]; before != nil {
		s.Tokens += before.Tokens
		*before = s
		return true
	}
	if len(x.noted[0]) >= maxTold {
		return false
	}
	x.noted[0][s.Bucket] = &s
	return true
}

// untold returns how many tokens of a bucket were noted that other nodes may not have heard of.
func (x *Exchange) untold(t Table, k Key) (tokens float64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, noted := range x.noted {
		if s := noted[spentKey{t, k}]; s != nil {
			tokens += s.Tokens
		}
	}
	return tokens
}

// Run exchanges messages until ctx ends. send passes one on to the other nodes, and returns those of the others since the
// last call, and how many other nodes there are.
func (x *Exchange) Run(ctx context.Context, send func(ctx context.Context, mine []byte) (messages [][]byte, others int, err error), log *slog.Logger) {
	tick := time.NewTicker(exchangeEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		messages, others, err := send(ctx, x.message())
		if err == nil {
			x.others.Store(int64(others))
			err = x.hear(messages)
		}
		if err != nil && !failing && ctx.Err() == nil {
			log.Warn("limits hold for this node alone: it cannot exchange with the others", "error", err)
		}
		if err == nil && failing {
			log.Info("limits hold over all nodes again")
		}
		failing = err != nil
	}
}

// message returns what was given since the last message.
func (x *Exchange) message() (text []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.noted[0] {
		text, _ = binary.Append(text, binary.BigEndian, s) // cannot fail: the size is fixed
	}
	oldest := x.noted[tellTakes]
	clear(oldest)
	copy(x.noted[1:], x.noted[:])
	x.noted[0] = oldest
	return text
}

var errMessage = errors.New("limit: another node sent a message that cannot be read")

// hear takes what other nodes have given.
func (x *Exchange) hear(messages [][]byte) error {
	now := x.now()
	for _, text := range messages {
		for ; len(text) > 0; text = text[entrySize:] {
			var s spent
			_, err := binary.Decode(text, binary.BigEndian, &s)
			if err != nil || s.Bucket.Table >= tables || !isAmount(s.Tokens) || !isAmount(s.Rate.PerSecond) || !isAmount(s.Rate.Burst) {
				return errMessage
			}
			x.mu.Lock()
			b := x.tables[s.Bucket.Table]
			x.mu.Unlock()
			if b != nil {
				b.hear(s, now)
			}
		}
	}
	return nil
}

// isAmount reports whether a number can be an amount of tokens.
func isAmount(f float64) bool { return f > 0 && f <= math.MaxInt64 }
