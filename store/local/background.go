package local

import (
	"context"
	"log/slog"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/rank"
)

// DeleteMerchant implements store.Engine.
func (e *engine) DeleteMerchant(ctx context.Context, id store.MerchantID) (store.Merchant, error) {
	m, err := e.Data.DeleteMerchant(ctx, id)
	e.wakeBackground()
	return m, err
}

// DeletePartner implements store.Engine.
func (e *engine) DeletePartner(ctx context.Context, id store.PartnerID, withMerchants bool) (store.Partner, error) {
	p, err := e.Data.DeletePartner(ctx, id, withMerchants)
	e.wakeBackground()
	return p, err
}

func (e *engine) wakeBackground() {
	select {
	case e.wake <- struct{}{}:
	default: // it is awake
	}
}

// background does what no request waits for, until Close: it takes the events of deleted merchants out of the index, and has the
// control data store when keys were last used.
func (e *engine) background(log *slog.Logger) {
	dropped := map[store.MerchantID]bool{}
	tick := time.NewTicker(store.KeyUseDelay)
	defer tick.Stop()
	for {
		if err := e.dropRemoved(dropped); err != nil && e.opened.Err() == nil {
			log.Error("the events of a deleted merchant cannot be taken out of the index now", "error", err)
		}
		select {
		case <-e.opened.Done():
			return
		case <-e.wake:
		case <-tick.C:
			// Again for all: an event that was on its way when its merchant was deleted may have come later.
			clear(dropped)
			if err := e.Tidy(e.opened); err != nil && e.opened.Err() == nil {
				log.Error("it cannot be stored when API keys were last used", "error", err)
			}
		}
	}
}

// dropRemoved takes the events of deleted merchants out of the index. No answer has them since the merchant was deleted. A
// rebuild of the index brings them back, so this is done again after each start.
func (e *engine) dropRemoved(dropped map[store.MerchantID]bool) error {
	for _, r := range e.Removals() {
		if dropped[r.Merchant] {
			continue
		}
		m, err := codec.NewMerchantKey(r.Merchant)
		if err != nil {
			return err
		}
		if err := e.index.Wait(e.opened, e.journal.Committed()); err != nil {
			return err
		}
		total, _, err := e.index.Page(e.opened, m, rank.NewSelection(store.Query{Merchant: r.Merchant, Limit: 1}))
		if err == nil && total > 0 {
			err = e.index.Drop(e.opened, m)
		}
		if err != nil {
			return err
		}
		dropped[r.Merchant] = true
	}
	return nil
}
