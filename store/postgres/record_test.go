package postgres

import (
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/schema"
	"mtagd/store/testenv"
)

// The tables of version 14 become records. A node of that version changes nothing any more.
func TestMigrationToRecords(t *testing.T) {
	url := pgtest.EmptyDatabase(t)
	pool, err := pgxpool.New(t.Context(), url)
	testenv.Check(t, err)
	defer pool.Close()
	testenv.Check(t, schema.Migrate(t.Context(), pool, 14))
	const partner, here, gone = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222", "33333333-3333-4333-8333-333333333333"
	at := "2026-01-02T03:04:05.678901Z"
	var erased store.Identity
	erased.Add(store.Email, "erased@example.com")
	key := erased.Keys()[0]
	for _, sql := range []string{
		`INSERT INTO setting VALUES ('retention', 30)`,
		`INSERT INTO partner VALUES ('PARTNER', 'AT', 't.acme.com', 'acme.com', '{"partnerId":"PARTNER","name":"Ac\"me","createdAt":"AT","preverifiedDomain":"t.acme.com"}')`,
		`INSERT INTO api_key VALUES ('keykeykeykey', 'PARTNER', 'AT', '2026-02-03T04:05:06Z', '{"keyId":"keykeykeykey","partnerId":"PARTNER","createdAt":"AT"}')`,
		`INSERT INTO merchant VALUES ('SHOP', 'PARTNER', 7, 90, '{"merchantId":"SHOP","partnerId":"PARTNER","name":"Shop","createdAt":"AT","retentionDays":90}')`,
		`INSERT INTO tag VALUES ('ss_a', 'SHOP', 'PARTNER', 'server-side', 'AT', NULL, 'AT', '{"tagId":"ss_a","merchantId":"SHOP","partnerId":"PARTNER","type":"server-side","createdAt":"AT","label":"mtag-aaaa","domain":"shop.com","claimedAt":"AT"}')`,
		`INSERT INTO claim VALUES ('shop.com', 'ss_a')`,
		`INSERT INTO reply VALUES ('PARTNER', sha256('once'), now(), '{"at":"2099-01-01T00:00:00Z","merchantId":"SHOP","name":"Shop","createdAt":"AT"}')`,
		`INSERT INTO removal VALUES ('GONE', 'PARTNER', 'AT')`,
		`INSERT INTO expiry VALUES ('SHOP', '2026-03-03T00:00:00Z', '{"kind":"retention","merchantId":"SHOP","partnerId":"","at":"2026-03-03T00:00:00Z","state":"removing","attempts":2}')`,
		`INSERT INTO erasure VALUES ('era_1', 'SHOP', 'AT', true, '{"id":"era_1","merchantId":"SHOP","partnerId":"PARTNER","at":"AT","state":"done","person":{},"events":3,"claimedEvents":0,"links":0}')`,
		`INSERT INTO suppressed VALUES ('SHOP', decode('KEY', 'hex'))`,
		`INSERT INTO change (seq, tx, kind, record) VALUES (1, gen_random_uuid(), 'partner', '{}'), (2, gen_random_uuid(), 'tag', '{}')`,
	} {
		if _, err := pool.Exec(t.Context(), strings.NewReplacer("KEY", hex.EncodeToString(key[:]), "PARTNER", partner, "SHOP", here, "GONE", gone, "AT", at).Replace(sql)); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	ctx := t.Context()
	kept, err := pool.Begin(ctx) // keeps the node from removing what it finds
	testenv.Check(t, err)
	defer conn.Rollback(kept)
	if _, err := kept.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", conn.LockRemoval); err != nil {
		t.Fatal(err)
	}
	e := (&shop{t: t, url: url}).second()
	partners, err := e.Partners(ctx)
	if err != nil || len(partners) != 1 || partners[0].Name != `Ac"me` || partners[0].TrackingDomain != "t.acme.com" {
		t.Errorf("the partners are %+v, %v", partners, err)
	}
	keys, err := e.Keys(ctx, partner)
	if err != nil || len(keys) != 1 || !keys[0].LastUsedAt.Equal(time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)) {
		t.Errorf("the keys are %+v, %v", keys, err)
	}
	m, err := e.Merchant(ctx, here)
	if err != nil || m.Retention != 90 || len(m.Tags) != 1 || m.Tags[0].ClaimLost || m.Tags[0].Label != "mtag-aaaa" {
		t.Errorf("the merchant is %+v, %v", m, err)
	}
	if again, err := e.AddMerchant(ctx, partner, store.NewMerchant{Name: "Shop", Once: "once"}); err != nil || again.ID != here {
		t.Errorf("the call with the same key gives %+v, %v", again, err)
	}
	if claim, err := e.Claim(ctx, "shop.com"); err != nil || claim.Tag != "ss_a" {
		t.Errorf("the claim is %+v, %v", claim, err)
	}
	removals, err := e.Removals(ctx)
	if err != nil || len(removals) != 2 || removals[0].Merchant != gone || removals[0].State != store.ErasurePending || removals[1].Attempts != 2 {
		t.Errorf("the removals are %+v, %v", removals, err)
	}
	if era, err := e.Erasure(ctx, "era_1"); err != nil || era.Events != 3 || era.Partner != partner {
		t.Errorf("the erasure is %+v, %v", era, err)
	}
	if e.RetentionOf("") != 30 || !slices.Equal(e.Expiring(), []store.MerchantID{here}) {
		t.Errorf("the default is %v, and %v expire", e.RetentionOf(""), e.Expiring())
	}
	visits := []store.Mark{{Merchant: here, Name: "PageView", Identity: erased}, {Merchant: gone, Name: "PageView", Identity: store.Identity{MUID: "u"}}}
	if err := e.Record(ctx, visits); err != nil || visits[0].Outcome != store.Suppressed || visits[1].Outcome != store.Removed {
		t.Errorf("%+v, %v", visits, err)
	}

	// As a node of version 14 changes.
	for _, sql := range []string{
		"INSERT INTO partner (id, created, record) VALUES (gen_random_uuid(), now(), '{}')", "UPDATE merchant SET record = '{}'", "UPDATE erasure SET done = true",
		"INSERT INTO change (seq, tx, kind, record) VALUES (100, gen_random_uuid(), 'partner removed', '{}')",
	} {
		if _, err := pool.Exec(ctx, sql); err == nil {
			t.Errorf("a node of the version before may run %s", sql)
		} else if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "23514" {
			t.Error(err)
		}
	}
	var expire int
	if err := pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM merchant WHERE retention >= 0) + (SELECT count(*) FROM setting WHERE name = 'retention' AND value > 0)").Scan(&expire); err != nil || expire > 0 {
		t.Errorf("a node of the version before removes what is past %d retentions, %v", expire, err)
	}
	if _, err := e.AddPartner(ctx, "Next"); err != nil {
		t.Error(err)
	}
	if _, err := e.DeletePartner(ctx, partner, true); err != nil {
		t.Error(err)
	}
}
