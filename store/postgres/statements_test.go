package postgres

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// statements collects the texts of all statements that the tests of the package send.
type statements struct {
	mu  sync.Mutex
	all map[string][]any // with the parameters of the last one
}

var sent = &statements{all: map[string][]any{}}

func (s *statements) note(sql string, args []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[strings.Join(strings.Fields(sql), " ")] = args
}

// copy returns all of them.
func (s *statements) copy() map[string][]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.all)
}

// TraceQueryStart implements pgx.QueryTracer.
func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.note(data.SQL, data.Args)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		s.note(q.SQL, q.Arguments)
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (*statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// ofEvents matches where a statement uses a table that is distributed by merchant.
var ofEvents = regexp.MustCompile(`(?i)\b(?:FROM|INTO|JOIN|UPDATE|VACUUM \([^)]*\)) (event|dedup|link|held_link|linked_muid|counter|usage|tally)\b`)

// A statement says whose rows it is about in one of two ways: it compares the merchant with a parameter, or it inserts rows
// of the merchants of a group.
var (
	ofOneMerchant = regexp.MustCompile(`(?i)\bmerchant = \$1\b`)
	ofGroup       = regexp.MustCompile(`(?i)^INSERT INTO \w+ \(merchant, [^)]*\) SELECT .* FROM unnest\(\$1::uuid\[\]`)
)

// anyMerchant has the statements that are about the rows of several merchants, and why they may be.
var anyMerchant = map[string]string{
	"SELECT merchant, greatest(max(events), 0) FROM (":                             "verification: which merchants there are",
	"WITH w AS (SELECT m.id AS merchant, coalesce(u.events, 0)":                    "an operator's list, and the limits of a partner: of all merchants that are named",
	"SELECT coalesce(sum(bytes + events * $1), 0)::bigint FROM usage":              "every few seconds: what all events take",
	"DELETE FROM tally WHERE ctid = ANY":                                           "a fold of several merchants, without Citus",
	"SELECT DISTINCT merchant FROM tally":                                          "once a minute on one node: whose tallies a node has left that died; with Citus",
	"SELECT m.id FROM (SELECT id::uuid AS id FROM record WHERE kind = 'merchants'": "the same, without Citus",
	"SELECT merchant, key FROM dedup WHERE seen < $1 LIMIT $2":                     "once a minute on one node: which event_ids count no more",
	"-- All links that an identifier has had":                                      "a migration",
	"VACUUM (INDEX_CLEANUP on, TRUNCATE false) ":                                   "erasures: a table is vacuumed whole",
}

// unstable matches a change of rows that Citus refuses, as each server would compute another time.
var unstable = regexp.MustCompile(`(?i)^(?:UPDATE|DELETE) .*clock_timestamp`)

// check returns an error for each statement on the distributed tables that does not name the merchant. Only a statement that
// does touches one shard.
func (s *statements) check() (errs []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sql := range s.all {
		if unstable.MatchString(sql) && !isTests(sql) {
			errs = append(errs, fmt.Errorf("this statement needs now() instead of clock_timestamp(): %s", sql))
		}
		if ofEvents.MatchString(sql) && !ofOneMerchant.MatchString(sql) && !ofGroup.MatchString(sql) && !isListed(sql) && !isTests(sql) {
			errs = append(errs, fmt.Errorf("this statement is about any merchant: %s", sql))
		}
	}
	return errs
}

func TestStatementsAreAboutOneMerchant(t *testing.T) {
	useEverything(t, newShop(t, Options{}))
	for _, err := range sent.check() {
		t.Error(err)
	}
}

// isListed reports whether a statement is in anyMerchant.
func isListed(sql string) bool {
	for begin := range anyMerchant {
		if strings.HasPrefix(sql, begin) {
			return true
		}
	}
	return false
}

// isTests reports whether a statement is one of the tests' own.
func isTests(sql string) bool {
	for _, begin := range []string{"SELECT count(*) FROM", "DELETE FROM flush WHERE seq", "UPDATE counter", "DELETE FROM counter WHERE level", "DELETE FROM event", "UPDATE usage", "UPDATE lease SET expires = clock", "CREATE FUNCTION on_rows"} {
		if strings.HasPrefix(sql, begin) {
			return true
		}
	}
	return false
}
