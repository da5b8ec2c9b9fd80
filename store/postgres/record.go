package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/groupcommit"
	"mtagd/store/postgres/conn"
)

// Record implements store.Events.
func (e *engine) Record(ctx context.Context, marks []store.Mark) error {
	if len(marks) == 0 {
		return ctx.Err()
	}
	for i := range marks {
		if err := checkMUID(marks[i].Identity.MUID); err != nil {
			return err
		}
		if i > 0 && marks[i].Merchant == marks[i-1].Merchant {
			continue
		}
		m, ok := conn.KeyOf(marks[i].Merchant)
		if !ok {
			return store.NotFound("merchant")
		}
		if err := e.counts.Accepts(m); err != nil {
			return err
		}
	}
	merchant, _ := conn.KeyOf(marks[0].Merchant)
	return e.queue.Record(ctx, merchant, marks)
}

// Resolve implements store.Events.
func (e *engine) Resolve(ctx context.Context, id store.MerchantID, who store.Identity) (muid store.MUID, err error) {
	if err := checkMUID(who.MUID); err != nil {
		return "", err
	}
	merchant, ok := conn.KeyOf(id)
	if !ok {
		return "", store.NotFound("merchant")
	}
	switch {
	case who.MUID == "":
		var seen conn.Snapshot
		if err := e.db.ReadFor(ctx, string(id), func(tx pgx.Tx) (err error) {
			if muid, err = resolve(ctx, tx, merchant, &who); err != nil || muid == "" {
				return err
			}
			return seen.Scan(tx.QueryRow(ctx, conn.ReadSnapshot))
		}); err != nil || muid == "" {
			return "", err
		}
		return muid, e.db.Confirm(ctx, seen) // the caller will use it, so it must not be lost
	case len(who.Keys()) == 0:
		return who.MUID, ctx.Err()
	}
	if err := e.queue.Link(ctx, merchant, &who); err != nil {
		return "", err
	}
	return who.MUID, nil
}

func checkMUID(muid store.MUID) error {
	if len(muid) > store.MaxMUIDLength {
		return store.Invalid("muid", "must have at most %d bytes", store.MaxMUIDLength)
	}
	return nil
}

// resolve returns the muid of the first identifier that is linked to one, or "".
func resolve(ctx context.Context, tx pgx.Tx, merchant uuid.UUID, who *store.Identity) (store.MUID, error) {
	found := links{}
	if err := conn.Query(ctx, tx, found.scan, readLinks, merchant, conn.Hashes(who.Keys())); err != nil {
		return "", err
	}
	for _, k := range who.Keys() {
		if l := found[linkKey{merchant, k}]; l.muid != "" {
			return l.muid, nil
		}
	}
	return "", nil
}

// linkKey is an identifier of a merchant's user.
type linkKey struct {
	merchant uuid.UUID
	key      store.IdentityKey
}

// link is where an identifier leads. The zero value is that of an identifier that was never linked.
type link struct {
	muid   store.MUID
	source store.LinkSource
	held   [store.BySecret + 1]int // links of the identifier in held_link, of each source; those BySecret are not counted before
}

// links are those of identifiers.
type links map[linkKey]link

// readLinks looks up links of one merchant.
const readLinks = `SELECT l.merchant, l.key, l.muid, coalesce(h.source, 0),
	(SELECT count(*) FROM held_link c WHERE c.merchant = $1 AND c.key = l.key AND c.source = 0),
	(SELECT count(*) FROM held_link c WHERE c.merchant = $1 AND c.key = l.key AND c.source = 1)
	FROM link l LEFT JOIN held_link h ON h.merchant = $1 AND h.key = l.key AND h.muid = l.muid WHERE l.merchant = $1 AND l.key = ANY($2)`

// scan adds the link of a row.
func (l links) scan(rows pgx.Rows) error {
	var k linkKey
	var key, muid []byte
	var found link
	if err := rows.Scan((*[16]byte)(&k.merchant), &key, &muid, &found.source, &found.held[store.ByAnyone], &found.held[store.ByCookie]); err != nil {
		return err
	}
	k.key = store.IdentityKey(key)
	found.muid = store.MUID(muid)
	l[k] = found
	return nil
}

func merchantsOf(keys []linkKey) []uuid.UUID {
	all := make([]uuid.UUID, len(keys))
	for i, k := range keys {
		all[i] = k.merchant
	}
	return all
}

func keysIn(keys []linkKey) [][]byte {
	all := make([][]byte, len(keys))
	for i := range keys {
		all[i] = keys[i].key[:]
	}
	return all
}

// commitGroups writes group after group, until the queue is closed and empty.
func (e *engine) commitGroups() {
	timer := time.AfterFunc(groupcommit.MaxGatherTime, e.queue.Recheck)
	defer timer.Stop()
	for e.queue.Next(timer) {
		f := newFlush(e.db.Node, e.db.Now)
		for parts := e.queue.Take(); len(parts) > 0; parts = e.queue.Take() {
			for _, p := range parts {
				if p.Link != nil {
					f.addLink(p.Merchant, p.Link)
					continue
				}
				for i := p.From; i < p.To; i++ {
					f.addMark(&p.Marks[i])
				}
			}
		}
		err := e.commit(f)
		e.queue.Finish(err)
	}
}
