package postgres

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// statements collects the texts of all statements that the tests of the package send.
type statements struct {
	mu  sync.Mutex
	all map[string]bool
}

var sent = &statements{all: map[string]bool{}}

func (s *statements) note(sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[strings.Join(strings.Fields(sql), " ")] = true
}

// TraceQueryStart implements pgx.QueryTracer.
func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.note(data.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		s.note(q.SQL)
	}
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (*statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// ofEvents matches where a statement uses a table that is distributed by merchant.
var ofEvents = regexp.MustCompile(`(?i)\b(?:FROM|INTO|JOIN|UPDATE|VACUUM \([^)]*\)) (event|dedup|link|suppressed|counter|usage|flush)\b`)

// hasKey matches a statement that says whose rows it is about: it compares the merchant, or inserts it.
var hasKey = regexp.MustCompile(`(?i)\bmerchant = |\(merchant, [^)]*\) SELECT|\(merchant, [^)]*\) VALUES|\(merchant\) `)

// anyMerchant has the statements that are about the rows of all merchants, and why they may be.
var anyMerchant = map[string]string{
	"SELECT coalesce(max(seq), 0) FROM flush":                                                "at start, and once for an erasure: the last number",
	"SELECT coalesce(max(seq), 0), coalesce(min(seq), 0) FROM flush":                         "the feed's end: two rows of an index",
	"SELECT coalesce((SELECT max(seq) FROM flush), 0), pg_logical_emit_message(true":         "several times a second on each node, and for the feed: the last row of an index",
	"SELECT coalesce((SELECT max(seq) FROM change), 0), coalesce((SELECT":                    "several times a second on each node: the last row of an index",
	"SELECT DISTINCT unnest(merchants) FROM flush":                                           "several times a second on each node: the flushes of the others since then",
	"SELECT merchant FROM usage ORDER BY merchant":                                           "verification: which merchants there are",
	"DELETE FROM dedup WHERE (merchant, key) IN (SELECT merchant, key FROM dedup WHERE seen": "once a minute on one node: old rows of all merchants",
	"DELETE FROM flush WHERE (merchant, id) IN":                                              "once a minute on one node: old rows of all merchants",
	"VACUUM (INDEX_CLEANUP on, TRUNCATE false) ":                                             "erasures: a table is vacuumed whole",
	"SELECT w.merchant, EXISTS (SELECT FROM removal":                                         "compares s.merchant with that of each mark",
}

// check returns an error for each statement on the distributed tables that does not name the merchant. Only a statement that does
// touches one shard.
func (s *statements) check() (errs []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sql := range s.all {
		if !ofEvents.MatchString(sql) || hasKey.MatchString(sql) || isTests(sql) {
			continue
		}
		listed := false
		for begin := range anyMerchant {
			listed = listed || strings.HasPrefix(sql, begin)
		}
		if !listed {
			errs = append(errs, fmt.Errorf("this statement is about any merchant: %s", sql))
		}
	}
	return errs
}

// isTests reports whether a statement is one of the tests' own.
func isTests(sql string) bool {
	for _, begin := range []string{"SELECT count(*) FROM", "DELETE FROM flush WHERE seq", "UPDATE counter", "DELETE FROM counter WHERE level", "DELETE FROM event", "UPDATE usage"} {
		if strings.HasPrefix(sql, begin) {
			return true
		}
	}
	return false
}
