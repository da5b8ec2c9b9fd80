package certs

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	"mtagd/store"
)

// challenges holds the challenges by which the CA is validating hosts at the moment, and answers them. A host has at
// most one at a time, because it has at most one attempt at a time. If several nodes share a store, the challenges are
// there too, so that each node can answer those of all.
type challenges struct {
	shared store.Shared // nil: there are no other nodes
	reads  reads[map[string]acme.Challenge]

	mu     sync.RWMutex
	byHost map[string]challenge // of this node, and those of others that were asked for
}

type challenge struct {
	acme.Challenge
	certificate *tls.Certificate // the answer to TLS-ALPN-01
	elsewhere   bool             // it is of another node
}

const (
	// challengesDir has a file for each challenge. Those of a node that was killed stay until the next attempt for the host.
	challengesDir = "challenges"
	// readChallengesEvery bounds how often the challenges of other nodes are read: anyone can ask for a challenge.
	readChallengesEvery = 20 * time.Millisecond
	// challengeLife is how long a challenge of another node can be answered. An attempt takes less.
	challengeLife = time.Hour
)

func newChallenges(shared store.Shared) *challenges {
	c := &challenges{shared: shared, byHost: map[string]challenge{}}
	c.reads = reads[map[string]acme.Challenge]{every: readChallengesEvery, read: c.readShared}
	return c
}

// of returns the challenge of a host. Without one of its own, it asks the other nodes, if it can.
func (c *challenges) of(host string) (challenge, bool) {
	host = strings.ToLower(host)
	found, ok := c.known(host)
	if ok && !found.elsewhere || c.shared == nil {
		return found, ok
	}
	all, err := c.reads.get()
	if err != nil {
		return challenge{}, false
	}
	asked, ok := all[host]
	if !ok {
		return challenge{}, false
	}
	if found.elsewhere && found.Token == asked.Token {
		return found, true
	}
	current, err := newChallenge(asked)
	if err != nil {
		return challenge{}, false
	}
	current.elsewhere = true
	c.mu.Lock()
	defer c.mu.Unlock()
	if mine, ok := c.byHost[host]; ok && !mine.elsewhere {
		return mine, true // it has begun meanwhile
	}
	c.byHost[host] = current
	return current, true
}

// known returns the challenge of a host, without asking the other nodes again.
func (c *challenges) known(host string) (challenge, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	found, ok := c.byHost[strings.ToLower(host)]
	return found, ok
}

// newChallenge prepares the answer to a challenge.
func newChallenge(asked acme.Challenge) (current challenge, err error) {
	current.Challenge = asked
	if asked.Type == acme.ChallengeTypeTLSALPN01 {
		current.certificate, err = acmez.TLSALPN01ChallengeCert(asked)
	}
	return current, err
}

// readShared reads the challenges of all nodes, by host. It forgets those of other nodes that have ended.
func (c *challenges) readShared(ctx context.Context) (map[string]acme.Challenge, error) {
	files, err := c.shared.Files(ctx, challengesDir, true)
	if err != nil {
		return nil, err
	}
	all := map[string]acme.Challenge{}
	for _, f := range files {
		var asked acme.Challenge
		if err := json.Unmarshal(f.Content, &asked); err == nil && f.Age < challengeLife {
			all[path.Base(f.Path)] = asked
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for host, known := range c.byHost {
		if _, ok := all[host]; !ok && known.elsewhere {
			delete(c.byHost, host)
		}
	}
	return all, nil
}

// Present makes a challenge known, to the other nodes first.
func (c *challenges) Present(ctx context.Context, asked acme.Challenge) error {
	current, err := newChallenge(asked)
	if err != nil {
		return err
	}
	host := asked.Identifier.Value
	if c.shared != nil {
		text, err := sharedForm(asked)
		if err != nil {
			return err
		}
		if err := c.shared.PutFile(ctx, path.Join(challengesDir, host), text); err != nil {
			return err
		}
		if asked.Type == acme.ChallengeTypeHTTP01 { // the other nodes refuse plain HTTP for a host that they do not know yet
			if err := store.Sleep(ctx, store.MaxDirectoryAge); err != nil {
				return err
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byHost[host] = current
	return nil
}

// sharedForm is what the file of a challenge has: only what does not change while the CA validates.
func sharedForm(asked acme.Challenge) ([]byte, error) {
	return json.Marshal(acme.Challenge{Type: asked.Type, Token: asked.Token, KeyAuthorization: asked.KeyAuthorization, Identifier: asked.Identifier})
}

// CleanUp ends a challenge. If this node was away for so long that another has got the host's lock, the host may have
// another challenge by now: that one stays.
func (c *challenges) CleanUp(ctx context.Context, asked acme.Challenge) error {
	host := asked.Identifier.Value
	c.mu.Lock()
	if c.byHost[host].Token == asked.Token {
		delete(c.byHost, host)
	}
	c.mu.Unlock()
	if c.shared == nil {
		return nil
	}
	text, err := sharedForm(asked)
	if err != nil {
		return err
	}
	return c.shared.RemoveFile(context.WithoutCancel(ctx), path.Join(challengesDir, host), text)
}

// solver makes the challenge of one attempt known to challenges. acmez calls it.
type solver struct {
	*challenges
	presented bool // the CA may have begun the validation
}

// Present implements acmez.Solver.
func (s *solver) Present(ctx context.Context, asked acme.Challenge) error {
	err := s.challenges.Present(ctx, asked)
	s.presented = s.presented || err == nil
	return err
}

// reads shares one read among all who ask at about the same time. Each gets the result of a read that began after it
// asked. So it misses nothing that was there when it asked. There is one read at a time, and a pause before the next.
type reads[T any] struct {
	every time.Duration // between the beginnings of two reads
	read  func(ctx context.Context) (T, error)

	mu     sync.Mutex // held during a read
	began  time.Time  // the last read, or its last repeat
	result T
	err    error
}

// readTimeout bounds a read with its repeats. A failed read is repeated, because the store fails immediately while its node
// is not ready, and a CA counts each challenge without an answer.
const readTimeout = 5 * time.Second

// get returns the result of a read that begins from now on.
func (r *reads[T]) get() (T, error) {
	asked := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.After(asked) {
		return r.result, r.err
	}
	time.Sleep(time.Until(r.began.Add(r.every)))
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	for {
		r.began = time.Now()
		if r.result, r.err = r.read(ctx); r.err == nil || store.Sleep(ctx, r.every) != nil {
			return r.result, r.err
		}
	}
}
