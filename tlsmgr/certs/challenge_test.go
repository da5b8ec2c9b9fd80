package certs

import (
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"mtagd/store"
	"mtagd/store/pgtest"
)

// A node that was away ends its challenge late: another one has got the host's lock, and the CA validates with its challenge.
func TestANodeEndsOnlyItsOwnChallenge(t *testing.T) {
	database := pgtest.Database(t)
	var nodes [2]*challenges
	for i := range nodes {
		engine := openNode(t, database)
		t.Cleanup(func() {
			if err := engine.Close(); err != nil {
				t.Error(err)
			}
		})
		nodes[i] = newChallenges(engine.(store.Shared))
		go nodes[i].follow(t.Context())
	}
	ask := func(token string) acme.Challenge {
		return acme.Challenge{
			Type: acme.ChallengeTypeTLSALPN01, Token: token, KeyAuthorization: token + ".key",
			Identifier: acme.Identifier{Type: "dns", Value: "shop.test"},
		}
	}
	late, current := ask("late"), ask("current")
	if err := nodes[0].Present(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	if err := nodes[1].Present(t.Context(), current); err != nil {
		t.Fatal(err)
	}
	late.Status = "invalid" // the CA's answers change it
	if err := nodes[0].CleanUp(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	for i, c := range nodes {
		if found, ok := c.of("shop.test"); !ok || found.Token != "current" {
			t.Errorf("node %d answers with %q", i, found.Token)
		}
	}
	current.Status = "valid"
	if err := nodes[1].CleanUp(t.Context(), current); err != nil {
		t.Fatal(err)
	}
	for i, c := range nodes {
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			found, ok := c.of("shop.test")
			if !ok {
				break
			}
			if time.Since(began) > longEnough {
				t.Fatalf("node %d answers with %q, which has ended", i, found.Token)
			}
		}
	}
}

// A CA may give all types of a host's challenge one token.
func TestAChallengeOfAnotherTypeReplacesOne(t *testing.T) {
	engine := openNode(t, pgtest.Database(t))
	defer engine.Close()
	mine, other := newChallenges(engine.(store.Shared)), newChallenges(engine.(store.Shared))
	go other.follow(t.Context())
	for _, kind := range []string{acme.ChallengeTypeHTTP01, acme.ChallengeTypeTLSALPN01} {
		asked := acme.Challenge{Type: kind, Token: "token", KeyAuthorization: "token.key", Identifier: acme.Identifier{Type: "dns", Value: "shop.test"}}
		if err := mine.Present(t.Context(), asked); err != nil {
			t.Fatal(err)
		}
		(&certWorld{T: t}).until("the other node answers "+kind, func() bool {
			found, _ := other.of("shop.test")
			return found.Type == kind && (found.certificate != nil) == (kind == acme.ChallengeTypeTLSALPN01)
		})
	}
}
