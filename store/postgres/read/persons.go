package read

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/rules"
)

// PersonOf returns the hashes of a person who is named by one muid or one identifier.
func PersonOf(ctx context.Context, tx pgx.Tx, merchant uuid.UUID, named *store.Identity, withClaimed bool) (store.Person, error) {
	var links []store.Link
	if err := LinksOf(ctx, tx, merchant, store.Person{Identifiers: named.Keys()}, func(l store.Link) { links = append(links, l) }); err != nil {
		return store.Person{}, err
	}
	return rules.PersonOf(named, links, withClaimed), nil
}

// PersonalData implements store.Persons.
func (r *Reader) PersonalData(ctx context.Context, id store.MerchantID, named store.Identity, withClaimed bool, use func(*store.PersonalRecord) error) (claimed int, err error) {
	key, ok := conn.KeyOf(id)
	if !ok {
		return 0, store.NotFound("merchant")
	}
	if err := rules.CheckPerson(&named); err != nil {
		return 0, err
	}
	var who store.Person
	var of control.Scope
	var last int64
	var held []store.PersonalRecord
	if err := r.db.ReadLong(ctx, func(tx pgx.Tx) (err error) { // LinksOf may read all links
		scopes, err := r.control.Scopes(ctx, tx, key)
		if err != nil {
			return err
		}
		of = scopes[0]
		if who, err = PersonOf(ctx, tx, key, &named, withClaimed); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT coalesce(max(seq), 0) FROM flush").Scan(&last); err != nil {
			return err
		}
		held = nil
		return LinksOf(ctx, tx, key, who, func(l store.Link) { held = append(held, store.PersonalRecord{Link: l}) })
	}); err != nil || of.Removed {
		return 0, err
	}
	for i := range held {
		if err := use(&held[i]); err != nil {
			return 0, err
		}
	}
	err = r.EachOf(ctx, key, last, rules.NewPersons(who), func(p *Personal, owners, _ []int) error {
		if p.At < of.From {
			return nil
		}
		if len(owners) == 0 {
			claimed++
			return nil
		}
		return use(&store.PersonalRecord{Event: &p.Event, Tag: store.TagID(p.Tag)})
	})
	return claimed, err
}

// LinksOf passes the links of a person, former ones included: those to the person's muids, and those of the person's
// identifiers. It reads all links of the merchant, a million in two or three seconds, because no index has the hashes of
// muids: an index would cost two more entries for each new link, and the callers read all events afterwards, which takes
// longer.
func LinksOf(ctx context.Context, tx conn.Querier, merchant uuid.UUID, who store.Person, use func(store.Link)) error {
	where, args := ` WHERE merchant = $1 AND key = ANY($2::bytea[])`, []any{merchant, conn.Hashes(who.Identifiers)}
	if len(who.MUIDs) > 0 {
		where = ` WHERE merchant = $1 AND (key = ANY($2::bytea[]) OR sha256('\xff'::bytea || muid) = ANY($3::bytea[]))`
		args = append(args, conn.Hashes(who.MUIDs))
	}
	return conn.Query(ctx, tx, func(rows pgx.Rows) error {
		var key, muid []byte
		var l store.Link
		if err := rows.Scan(&key, &muid, &l.Source); err != nil {
			return err
		}
		l.Identifier, l.MUID = store.IdentityKey(key), store.MUID(muid)
		use(l)
		return nil
	}, `SELECT key, muid, max(source) FROM (SELECT key, muid, 0 AS source FROM link`+where+` UNION ALL SELECT key, muid, source FROM held_link`+where+`) AS l
		GROUP BY key, muid ORDER BY key, muid`, args...)
}

// Personal is an event of a person.
type Personal struct {
	store.Event
	Tag     string
	At      int64
	Receipt Receipt
	muid    []byte
}

// Receipt is the key of an event, beside its merchant.
type Receipt struct {
	Seq int64
	Idx int16
}

// personalPortion is how many events are read at once to find those of persons.
const personalPortion = 1000

// EachOf calls use with a merchant's events up to a flush that belong to persons or that claimed links lead to
// (rules.Matcher), in the order of receipt, until use returns an error.
func (r *Reader) EachOf(ctx context.Context, merchant uuid.UUID, upTo int64, who *rules.Persons, use func(p *Personal, owners, claimed []int) error) error {
	matcher := who.Matcher()
	after := Receipt{}
	for {
		found, err := conn.SelectRows(ctx, r.db, func(p *Personal) []any {
			return []any{&p.Receipt.Seq, &p.Receipt.Idx, &p.At, &p.Bot, &p.Name, &p.muid, &p.Raw, &p.ByClaim, &p.Client, &p.Tag}
		}, `SELECT seq, idx, at, bot, name, muid, raw, by_claim, client, tag FROM event WHERE merchant = $1 AND (seq, idx::int) > ($2, $3) AND seq >= $2 AND seq <= $4
			ORDER BY seq, idx LIMIT $5`, merchant, after.Seq, int32(after.Idx), upTo, personalPortion)
		if err != nil {
			return err
		}
		for i := range found {
			p := &found[i]
			after = p.Receipt
			owners, claimed := matcher.Of(p.muid, p.Raw, p.ByClaim)
			if len(owners)+len(claimed) == 0 {
				continue
			}
			p.ID, p.MUID, p.Time = PositionOf(after.Seq, after.Idx).EventID(), store.MUID(p.muid), TimeAt(p.At)
			if err := use(p, owners, claimed); err != nil {
				return err
			}
		}
		if len(found) < personalPortion {
			return ctx.Err()
		}
	}
}
