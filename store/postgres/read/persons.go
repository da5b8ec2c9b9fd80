package read

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/rules"
)

// LinksOf implements rules.People. With muids it reads all links of the merchant, a million in two or three seconds, because
// no index has the hashes of muids: an index would cost two more entries for each new link, and the callers read all events
// afterwards, which takes longer.
func (r *Reader) LinksOf(ctx context.Context, m store.MerchantKey, who store.Person) (links []store.Link, err error) {
	merchant := uuid.UUID(m)
	where, args := ` WHERE merchant = $1 AND key = ANY($2::bytea[])`, []any{merchant, conn.Hashes(who.Identifiers)}
	if len(who.MUIDs) > 0 {
		where = ` WHERE merchant = $1 AND (key = ANY($2::bytea[]) OR sha256('\xff'::bytea || muid) = ANY($3::bytea[]))`
		args = append(args, conn.Hashes(who.MUIDs))
	}
	err = r.db.ReadLong(ctx, func(tx pgx.Tx) error {
		links = nil
		var key, muid []byte
		var source store.LinkSource
		return conn.Query(ctx, tx, []any{&key, &muid, &source}, func() error {
			links = append(links, store.Link{Identifier: store.IdentityKey(key), MUID: store.MUID(muid), Source: source})
			return nil
		}, `SELECT key, muid, max(source) FROM (SELECT key, muid, 0 AS source FROM link`+where+` UNION ALL SELECT key, muid, source FROM held_link`+where+`) AS l
			GROUP BY key, muid ORDER BY key, muid`, args...)
	})
	return links, err
}

// personalPortion is how many events are read at once to find those of persons.
const personalPortion = 1000

// EventsOf implements rules.People. All events up to the last flush that is visible are.
func (r *Reader) EventsOf(ctx context.Context, m store.MerchantKey, who *rules.Persons, begin func(last uint64), use func(e *rules.PersonalEvent, owners, claimed []int) error) error {
	if begin != nil {
		if err := r.db.AwaitFlushes(ctx); err != nil {
			return err
		}
	}
	var last uint64
	if err := r.db.Read(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT coalesce(max(seq), 0) FROM flush").Scan(&last)
	}); err != nil {
		return err
	}
	if begin != nil {
		begin(last)
	}
	matcher := who.Matcher()
	var after store.Position
	for {
		found, err := conn.SelectRows(ctx, r.db, (*eventRow).fields, `SELECT `+EventColumns+`, raw FROM event WHERE merchant = $1 AND (seq, idx::int) > ($2, $3) AND seq >= $2 AND seq <= $4
			ORDER BY seq, idx LIMIT $5`, uuid.UUID(m), int64(after.Seq), int32(after.Index), int64(last), personalPortion)
		if err != nil {
			return err
		}
		for i := range found {
			e := &found[i]
			after = e.At
			owners, claimed := matcher.Of(e.muid, e.Raw, e.ByClaim)
			if len(owners)+len(claimed) == 0 {
				continue
			}
			e.assembled()
			if err := use(&e.PersonalEvent, owners, claimed); err != nil {
				return err
			}
		}
		if len(found) < personalPortion {
			return ctx.Err()
		}
	}
}
