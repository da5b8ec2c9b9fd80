// Package storetest checks that every storage engine keeps the contract of store.Engine: each test is one sentence of it, and
// runs over all engines (engines_test.go). By hand, over one of them, over one part of the contract, or both:
//
//	go test ./store/storetest -run TestConformance/embedded
//	go test ./store/storetest -run TestConformance/postgres/Marks
//
// Read in this order:
//
//	storetest_test.go   the parts of the suite
//	engines_test.go     the engines
//	memory_test.go      a driver of package rules that has nothing but memory
//	bed_test.go         the engine under test, with its store and its clock
//	durability_test.go  close, reopen, kill, concurrent ingest
//	contexts_test.go    calls with a context that has ended
//	directory_test.go   the in-memory view has every change
//	partners_test.go    partners, keys and preverified access
//	merchants_test.go   merchants and their pages
//	deletion_test.go    deletion, search, repeated calls, and what keys may do
//	sessions_test.go    sessions and links of the web console
//	tags_test.go        generate, update, and the move to another tracking domain
//	claims_test.go      who has a root domain, and the limits on claims and labels
//	audit_test.go       the audit log of the changes
//	documents_test.go   what parts of the service keep in the engine
//	marks_test.go       Record: outcomes, remembered event_ids, what is kept of a mark
//	identities_test.go  who an event belongs to
//	persons_test.go     erasure, personal data, retention
//	listing_test.go     Events against the oracle
//	feed_test.go        Feed against the oracles; Watch
//	summary_test.go     Summary against the oracle, and beside ingest
//	random_test.go      random events and queries
//	oracle_test.go      a sorted slice of all events, to compute what each page must be
//	steps_test.go       the steps that prepare a test
//	expect_test.go      comparisons
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

// ruled are the parts in which package rules decides, for all engines. With the race detector they run on the other engines,
// which answer faster than PostgreSQL. What PostgreSQL's engine has of its own there, such as changes of two nodes at once,
// the tests of store/postgres have the race detector watch.
var ruled = []string{"Partners", "Merchants", "Search", "Deletion", "Repeats", "Keys", "Sessions", "Tags", "Claims", "Directory", "Audit", "Documents"}

// onDatabase are the parts that make test runs without the race detector on PostgreSQL. The Makefile has their names too.
var onDatabase = slices.Concat(computed, ruled)

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

// run runs the suite, or only the named parts of it; those that are in plain, only without the race detector. newStore returns
// a new empty store for each test. The parts run in parallel, as many as go test -parallel allows, because engines mostly wait.
func run(t *testing.T, newStore func(t *testing.T) backing, plain []string, parts ...string) {
	for _, part := range suite {
		if len(parts) > 0 && !slices.Contains(parts, part.name) {
			continue
		}
		t.Run(part.name, func(t *testing.T) {
			if testenv.Race && slices.Contains(plain, part.name) {
				t.Skip("it runs without the race detector")
			}
			t.Parallel()
			part.run(t, newStore)
		})
	}
}

func (p part) run(t *testing.T, newStore func(t *testing.T) backing) {
	for _, test := range p.tests {
		t.Run(test.sentence, func(t *testing.T) {
			test.check(t, newBed(t, newStore(t)))
		})
	}
}
