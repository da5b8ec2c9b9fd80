package certs

import (
	"context"
	"crypto/tls"
	"strings"
	"sync"

	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

// challenges holds the challenges by which the CA is validating hosts at the moment, and answers them. A host has at
// most one at a time, because it has at most one attempt at a time.
type challenges struct {
	mu     sync.RWMutex
	byHost map[string]challenge
}

type challenge struct {
	acme.Challenge
	certificate *tls.Certificate // the answer to TLS-ALPN-01
}

func newChallenges() *challenges { return &challenges{byHost: map[string]challenge{}} }

// of returns the challenge of a host.
func (c *challenges) of(host string) (challenge, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	found, ok := c.byHost[strings.ToLower(host)]
	return found, ok
}

func (c *challenges) set(host string, current challenge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byHost[host] = current
}

func (c *challenges) remove(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byHost, host)
}

// solver makes the challenge of one attempt known to challenges. acmez calls it.
type solver struct {
	*challenges
	presented bool // the CA may have begun the validation
}

// Present implements acmez.Solver.
func (s *solver) Present(_ context.Context, asked acme.Challenge) error {
	current := challenge{Challenge: asked}
	if asked.Type == acme.ChallengeTypeTLSALPN01 {
		var err error
		if current.certificate, err = acmez.TLSALPN01ChallengeCert(asked); err != nil {
			return err
		}
	}
	s.set(asked.Identifier.Value, current)
	s.presented = true
	return nil
}

// CleanUp implements acmez.Solver.
func (s *solver) CleanUp(_ context.Context, asked acme.Challenge) error {
	s.remove(asked.Identifier.Value)
	return nil
}
