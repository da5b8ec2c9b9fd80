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
// there too. Each node reads those of all again and again, so that it can answer them from memory.
type challenges struct {
	shared store.Shared // nil: there are no other nodes

	mu     sync.RWMutex
	byHost map[string]challenge // of this node
	others map[string]challenge // of all nodes, as they were read last
}

type challenge struct {
	acme.Challenge
	certificate *tls.Certificate // the answer to TLS-ALPN-01
}

const (
	// challengesDir has a file for each challenge. Those of a node that was killed stay until the next attempt for the host.
	challengesDir = "challenges"
	// readChallengesEvery is how often a node reads the challenges of all.
	readChallengesEvery = 250 * time.Millisecond
	// awaitTimeout is how long a CA that asks for an unknown challenge waits.
	awaitTimeout = 5 * time.Second
	// challengeLife is how long a challenge of another node can be answered. An attempt takes less.
	challengeLife = time.Hour
)

func newChallenges(shared store.Shared) *challenges {
	return &challenges{shared: shared, byHost: map[string]challenge{}}
}

func (c *challenges) of(host string) (challenge, bool) {
	host = strings.ToLower(host)
	c.mu.RLock()
	defer c.mu.RUnlock()
	found, ok := c.byHost[host]
	if !ok {
		found, ok = c.others[host]
	}
	return found, ok
}

// await is of, but waits for a challenge that another node may have: this one may be slow to read it, and a CA counts each
// challenge without an answer.
func (c *challenges) await(ctx context.Context, host string) (found challenge, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	for {
		if found, ok = c.of(host); ok || c.shared == nil || store.Sleep(ctx, readChallengesEvery) != nil {
			return found, ok
		}
	}
}

// newChallenge prepares the answer to a challenge.
func newChallenge(asked acme.Challenge) (current challenge, err error) {
	current.Challenge = asked
	if asked.Type == acme.ChallengeTypeTLSALPN01 {
		current.certificate, err = acmez.TLSALPN01ChallengeCert(asked)
	}
	return current, err
}

// follow reads the challenges of all nodes until ctx ends. While the store cannot be read, those that were read last stay.
func (c *challenges) follow(ctx context.Context) {
	for store.Sleep(ctx, readChallengesEvery) == nil {
		files, err := c.shared.Files(ctx, challengesDir, true)
		if err != nil {
			continue
		}
		others := map[string]challenge{}
		for _, f := range files {
			var asked acme.Challenge
			if json.Unmarshal(f.Content, &asked) != nil || f.Age > challengeLife {
				continue
			}
			known := c.others[path.Base(f.Path)]                        // only this goroutine writes others
			if known.Token != asked.Token || known.Type != asked.Type { // a CA may give all types of a host's challenge one token
				if known, err = newChallenge(asked); err != nil {
					continue
				}
			}
			others[path.Base(f.Path)] = known
		}
		c.mu.Lock()
		c.others = others
		c.mu.Unlock()
	}
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
		if err := store.Sleep(ctx, store.MaxDirectoryAge); err != nil { // the other nodes read the challenge, and hear of a new host
			return err
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

// CleanUp ends a challenge. If another node has got the host's lock meanwhile, its challenge stays.
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

func (s *solver) Present(ctx context.Context, asked acme.Challenge) error {
	err := s.challenges.Present(ctx, asked)
	s.presented = s.presented || err == nil
	return err
}
