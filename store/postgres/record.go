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
