package certs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"golang.org/x/time/rate"
)

// Let's Encrypt's limit on failed validations of one host: five in an hour. After them, the CA refuses orders unchecked.
const (
	failuresAllowed = 5
	failuresWithin  = time.Hour
)

// limits remembers what the CA allows each host: how often an attempt may fail, and until when the CA refuses it. It
// also chooses the type of challenge. Both orders and renewals count. What is remembered of a host is in the storage of the
// certificates too, because all nodes share the CA's limits: an attempt, which has the host's lock, begins with load.
type limits struct {
	storage certmagic.Storage

	mu    sync.Mutex
	hosts map[string]*hostLimits // only hosts with failures
	works string                 // the type of challenge that succeeded last, at any host
}

type hostLimits struct {
	Failures     []time.Time `json:"failures,omitempty"`    // attempts that failed within the hour, the oldest first
	RefusedUntil time.Time   `json:"refusedUntil,omitzero"` // by the CA's Retry-After
	Challenge    string      `json:"challenge"`             // the type of the next attempt
}

// newLimits begins with TLS-ALPN-01: the port of HTTPS must be reachable anyway.
func newLimits(storage certmagic.Storage) *limits {
	return &limits{storage: storage, hosts: map[string]*hostLimits{}, works: acme.ChallengeTypeTLSALPN01}
}

// nextTry returns when the host's next attempt may begin; a time in the past when it may begin now.
func (l *limits) nextTry(host string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[host]
	if h == nil {
		return time.Time{}
	}
	h.forgetOld()
	next := h.RefusedUntil
	if n := len(h.Failures); n >= failuresAllowed {
		next = later(next, h.Failures[n-failuresAllowed].Add(failuresWithin))
	}
	return next
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// challenge returns the type of challenge for a host's next attempt. An attempt uses only one type, so that it cannot
// fail more than once. After a failure the next attempt uses the other type.
func (l *limits) challenge(host string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.hosts[host]; h != nil {
		return h.Challenge
	}
	return l.works
}

// load reads what other nodes, or an earlier process, know of a host. If the last failure is news to this node, load
// returns when it was, and how many there were within the hour.
func (l *limits) load(ctx context.Context, host string) (news time.Time, failures int, err error) {
	text, err := l.storage.Load(ctx, failuresFile(host))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, 0, err
	}
	var h hostLimits
	known := err == nil && json.Unmarshal(text, &h) == nil // a file that is cut short is as good as none
	l.mu.Lock()
	defer l.mu.Unlock()
	if !known {
		delete(l.hosts, host)
		return time.Time{}, 0, nil
	}
	h.forgetOld()
	if last := h.last(); last.After(l.hosts[host].last()) {
		news = last
	}
	l.hosts[host] = &h
	return news, len(h.Failures), nil
}

func (l *limits) succeeded(ctx context.Context, host, challenge string) error {
	l.mu.Lock()
	l.works = challenge
	h := l.hosts[host]
	if h == nil {
		l.mu.Unlock()
		return nil
	}
	h.Challenge = challenge
	if h.forgetOld(); len(h.Failures) == 0 {
		delete(l.hosts, host)
		l.mu.Unlock()
		return l.storage.Delete(ctx, failuresFile(host))
	}
	return l.save(ctx, host, *h)
}

// failed notes that an attempt with a type of challenge failed. counts says that it may have counted as a failure at
// the CA. refusedUntil is the time before which the CA refuses the host; zero when it has set none.
func (l *limits) failed(ctx context.Context, host, challenge string, counts bool, refusedUntil time.Time) error {
	l.mu.Lock()
	h := l.hosts[host]
	if h == nil {
		h = &hostLimits{}
		l.hosts[host] = h
	}
	h.Challenge = challenge
	h.forgetOld()
	if counts {
		h.Failures = append(h.Failures, time.Now().UTC())
	}
	h.RefusedUntil = later(h.RefusedUntil, refusedUntil.UTC())
	return l.save(ctx, host, *h)
}

// save writes what is remembered of a host. It releases l.mu.
func (l *limits) save(ctx context.Context, host string, h hostLimits) error {
	text, err := json.Marshal(h)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return l.storage.Store(context.WithoutCancel(ctx), failuresFile(host), text) // the attempt may have ended by its timeout
}

// failuresFile is where the failures of a host are stored.
func failuresFile(host string) string {
	return path.Join("failures", certmagic.StorageKeys.Safe(host)+".json")
}

// last returns when the host failed last; zero when it has not.
func (h *hostLimits) last() time.Time {
	if h == nil || len(h.Failures) == 0 {
		return time.Time{}
	}
	return h.Failures[len(h.Failures)-1]
}

// forgetOld forgets what no longer counts, and what is of a clock that was far ahead.
func (h *hostLimits) forgetOld() {
	h.Failures = slices.DeleteFunc(h.Failures, func(at time.Time) bool { return time.Since(at).Abs() > failuresWithin })
	if time.Until(h.RefusedUntil) > maxRetryAfter {
		h.RefusedUntil = time.Time{}
	}
}

// otherChallenge returns the type of challenge that is not the given one.
func otherChallenge(challenge string) string {
	if challenge == acme.ChallengeTypeTLSALPN01 {
		return acme.ChallengeTypeHTTP01
	}
	return acme.ChallengeTypeTLSALPN01
}

// allowance is how many orders the CA's limit on new orders leaves to the account: a token bucket of all nodes, in a file
// that an order changes under a lock. The bucket of turns is this node's own copy. It prevents most orders that are too
// early, and is corrected when this node orders. When the clock of a node is ahead by some minutes, the tokens of these
// minutes are given too early, but only once.
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

// giveBack gives back the token of an order that the CA has not counted. If it cannot, one order is delayed.
func (a *allowance) giveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), caTimeout) // the attempt may have ended by its timeout
	defer cancel()
	return a.add(ctx, 1)
}

// add adds tokens, or takes them. The error is an errTooSoon when there are too few.
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
