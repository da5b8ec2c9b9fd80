// Package storetest is the suite that every storage engine must pass. Each test checks one sentence of the contract of
// store.Engine. An engine runs the suite with one line:
//
//	func TestConformance(t *testing.T) { storetest.Run(t, newStore) }
//
// Read in this order:
//
//	storetest.go   Run
//	bed.go         Store, and the engine under test with its clock
//	durability.go  close, reopen, kill, concurrent ingest
//	contexts.go    calls with a context that has ended
//	directory.go   the in-memory view has every change
//	partners.go    partners, keys and preverified access
//	merchants.go   merchants and their pages
//	deletion.go    deletion, search, repeated calls, and what keys may do
//	sessions.go    sessions and links of the web console
//	tags.go        generate, update, and the move to another tracking domain
//	claims.go      who has a root domain, and the limits on claims and labels
//	audit.go       the audit log of the changes
//	documents.go   what parts of the service keep in the engine
//	marks.go       Record: outcomes, remembered event_ids, what is kept of a mark
//	identities.go  who an event belongs to
//	persons.go     erasure, personal data, retention
//	listing.go     Events against the oracle
//	feed.go        Feed against the oracles; Watch
//	summary.go     Summary against the oracle, and beside ingest
//	random.go      random events and queries
//	oracle.go      a sorted slice of all events, to compute what each page must be
//	steps.go       the steps that prepare a test
//	expect.go      comparisons
//
// Random tests print their seed, which DRILL_SEED repeats.
package storetest

import (
	"slices"
	"testing"

	"mtagd/store/testenv"
)

// part is some tests of the suite, with a name.
type part struct {
	name  string
	tests []test
}

// computed are the parts that mostly compute the expected answers to one caller. The race detector would make them ten times
// slower and find nothing, so make test runs them without it.
var computed = []string{"Listing", "Summary"}

var suite = []part{
	{"Partners", partnerTests},
	{"Merchants", merchantTests},
	{"Search", searchTests},
	{"Deletion", deletionTests},
	{"Repeats", repeatTests},
	{"Keys", keyTests},
	{"Sessions", sessionTests},
	{"Tags", tagTests},
	{"Claims", claimTests},
	{"Directory", directoryTests},
	{"Audit", auditTests},
	{"Documents", documentTests},
	{"Marks", markTests},
	{"Identities", identityTests},
	{"Persons", personTests},
	{"Listing", listingTests},
	{"Feed", feedTests},
	{"Summary", summaryTests},
	{"Totals", totalTests},
	{"Contexts", contextTests},
	{"Durability", durabilityTests},
}

// Run runs the suite, or only the named parts of it. newStore returns a new empty store for each test. The parts run in parallel,
// as many as go test -parallel allows, because engines mostly wait.
func Run(t *testing.T, newStore func(t *testing.T) Store, parts ...string) {
	for _, part := range suite {
		if len(parts) > 0 && !slices.Contains(parts, part.name) {
			continue
		}
		t.Run(part.name, func(t *testing.T) {
			if testenv.Race && slices.Contains(computed, part.name) {
				t.Skip("it runs without the race detector")
			}
			t.Parallel()
			part.run(t, newStore)
		})
	}
}

func (p part) run(t *testing.T, newStore func(t *testing.T) Store) {
	for _, test := range p.tests {
		t.Run(test.sentence, func(t *testing.T) {
			test.check(t, newBed(t, newStore(t)))
		})
	}
}
