package groupcommit

import (
	"cmp"
	"context"

	"github.com/google/uuid"

	"mtagd/store"
	"mtagd/store/rules"
)

// Recorder implements Record and Resolve of store.Events for an engine.
type Recorder struct {
	Queue *Queue

	// Accepts returns why events of a merchant are refused before they are queued, or nil. nil: none are.
	Accepts func(m store.MerchantKey) error
	// Linked returns the muid of the first identifier that is linked to one, or "". What it returns is not lost any more.
	Linked func(ctx context.Context, m store.MerchantKey, id *store.Identity) (store.MUID, error)
}

// Record implements store.Events.
func (r *Recorder) Record(ctx context.Context, marks []store.Mark) error {
	if len(marks) == 0 {
		return ctx.Err()
	}
	var m store.MerchantKey
	for i := range marks {
		if err := rules.CheckMUID(marks[i].Identity.MUID); err != nil {
			return err
		}
		if i > 0 && marks[i].Merchant == marks[i-1].Merchant {
			continue
		}
		var err error
		if m, err = store.NewMerchantKey(marks[i].Merchant); err == nil && r.Accepts != nil {
			err = r.Accepts(m)
		}
		if err != nil {
			return err
		}
	}
	return r.Queue.Record(ctx, uuid.UUID(m), marks)
}

// Resolve implements store.Events.
func (r *Recorder) Resolve(ctx context.Context, merchant store.MerchantID, id store.Identity) (store.MUID, error) {
	m, err := store.NewMerchantKey(merchant)
	if err := cmp.Or(err, rules.CheckMUID(id.MUID), ctx.Err()); err != nil {
		return "", err
	}
	switch {
	case id.MUID == "":
		return r.Linked(ctx, m, &id)
	case len(id.Keys()) == 0:
		return id.MUID, nil
	}
	if err := r.Queue.Link(ctx, uuid.UUID(m), &id); err != nil {
		return "", err
	}
	return id.MUID, nil
}
