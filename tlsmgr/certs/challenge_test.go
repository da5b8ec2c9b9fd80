package certs

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
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
		if found, ok := c.of("shop.test"); ok {
			t.Errorf("node %d answers with %q, which has ended", i, found.Token)
		}
	}
}

// A flood of questions for challenges is one question at a time to the store, and each sees what was there when it was put.
func TestReadsAreShared(t *testing.T) {
	count := 0
	r := reads[int]{every: time.Millisecond, read: func(context.Context) (int, error) {
		count++
		return count, nil
	}}
	last := 0
	for range 3 {
		got := make(chan int)
		for range 100 {
			go func() {
				n, err := r.get()
				if err != nil {
					t.Error(err)
				}
				got <- n
			}()
		}
		newest := last
		for range 100 {
			n := <-got
			if n <= last {
				t.Errorf("read %d is from before the question", n)
			}
			newest = max(newest, n)
		}
		last = newest
	}
	if last > 150 {
		t.Errorf("%d reads for 300 questions", last)
	}
	// A failed read is repeated. Who asked before the last repeat gets its result.
	tries, beginnings := 0, map[time.Time]bool{}
	r.read = func(context.Context) (int, error) {
		beginnings[r.began] = true
		if tries++; tries < 3 {
			return 0, fmt.Errorf("away")
		}
		return tries, nil
	}
	if n, err := r.get(); n != 3 || err != nil || len(beginnings) != 3 {
		t.Errorf("after two failures: %d, %v, %d beginnings", n, err, len(beginnings))
	}
}

func TestAReadThatAlwaysFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := reads[int]{every: time.Millisecond, read: func(context.Context) (int, error) { return 0, fmt.Errorf("away") }}
		began := time.Now()
		if _, err := r.get(); err == nil || time.Since(began) < readTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
