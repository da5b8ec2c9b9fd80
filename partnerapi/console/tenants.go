package console

import (
	"context"
	"slices"
	"sync"
	"time"

	"mtagd/store"
)

// maxListed is how many partners, suspended tenants and hosts an overview lists.
const maxListed = 1000

// kept is what is read again only when it is old.
type kept[T any] struct {
	mu   sync.Mutex // held during a read, so that one request at a time reads
	at   time.Time
	last *T
}

// get returns what was read less than age ago, and when that was. It must not be changed.
func (k *kept[T]) get(now time.Time, age time.Duration, read func() (T, error)) (T, time.Time, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old := now.Sub(k.at); k.last == nil || old < 0 || old >= age {
		value, err := read()
		if err != nil {
			return value, now, err
		}
		k.last, k.at = &value, now
	}
	return *k.last, k.at, nil
}

const (
	figuresAge = time.Minute     // how old figures may be: to get them, each merchant must be looked up
	countTime  = 5 * time.Second // how long events are counted; partners that were not reached have no figures
)

type figures struct {
	Merchants int     `json:"merchants"`
	Events    *uint64 `json:"events"` // null while it cannot be read
	Bytes     *uint64 `json:"bytes"`
}

// partners is the JSON of all partners.
type partners struct {
	Total     int               `json:"total"`
	CountedAt time.Time         `json:"countedAt"` // when the merchants, events and bytes were counted
	Items     []partnerOverview `json:"items"`     // the oldest first
}

type partnerOverview struct {
	ID        store.PartnerID `json:"id"`
	Name      string          `json:"name"`
	CreatedAt time.Time       `json:"createdAt"`
	Suspended bool            `json:"suspended"`
	Domain    string          `json:"preverifiedDomain"`
	figures
}

func (c *Console) viewPartners(ctx context.Context, list []store.Partner, now time.Time) (partners, error) {
	figures, read, err := c.figures.get(now, figuresAge, func() (map[store.PartnerID]figures, error) { return c.countPartners(ctx, list) })
	if err != nil {
		return partners{}, err
	}
	view := partners{Total: len(list), CountedAt: read, Items: []partnerOverview{}}
	for _, p := range list[:min(len(list), maxListed)] {
		// A partner that was added since has zero figures.
		view.Items = append(view.Items, partnerOverview{p.ID, p.Name, p.CreatedAt, p.Suspended, p.TrackingDomain, figures[p.ID]})
	}
	return view, nil
}

func (c *Console) countPartners(ctx context.Context, list []store.Partner) (map[store.PartnerID]figures, error) {
	counting, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	all := map[store.PartnerID]figures{}
	for _, p := range list[:min(len(list), maxListed)] {
		_, merchants, err := c.Engine.Merchants(ctx, store.MerchantQuery{Partner: p.ID})
		if err != nil {
			return nil, err
		}
		f := figures{Merchants: merchants}
		if counting.Err() == nil {
			// Show the overview without these figures: the rest of it may say why they are missing.
			if err := c.countEvents(counting, p.ID, &f); err != nil {
				c.Log.Warn("console: the events of a partner were not counted", "partner", p.ID, "error", err)
			}
		}
		all[p.ID] = f
	}
	return all, nil
}

// countEvents counts the events of one partner.
func (c *Console) countEvents(ctx context.Context, id store.PartnerID, f *figures) error {
	var events, bytes uint64
	for some := range slices.Chunk(c.Engine.Directory().MerchantsWithTags(id), 1000) {
		usage, err := c.Engine.Usage(ctx, some)
		if err != nil {
			return err
		}
		for _, u := range usage {
			events += u.Events
			bytes += u.Bytes
		}
	}
	f.Events, f.Bytes = &events, &bytes
	return nil
}

// suspendedJSON is a partner, a merchant or a tag that an operator has suspended.
type suspendedJSON struct {
	Kind     string           `json:"kind"` // partner, merchant or tag
	Name     string           `json:"name"` // of the partner or merchant; the type of the tag
	Partner  store.PartnerID  `json:"partnerId"`
	Merchant store.MerchantID `json:"merchantId,omitempty"`
	Tag      store.TagID      `json:"tagId,omitempty"`
}

// suspended returns what is suspended, and how much that is.
func (c *Console) suspended(ctx context.Context) ([]suspendedJSON, int, error) {
	all := c.Engine.Directory().Suspended()
	view := []suspendedJSON{}
	for _, id := range all.Partners {
		if p, ok := c.Engine.Directory().Partner(id); ok && len(view) < maxListed {
			view = append(view, suspendedJSON{Kind: "partner", Name: p.Name, Partner: id})
		}
	}
	for _, id := range all.Merchants {
		if len(view) == maxListed {
			break
		}
		m, err := c.Engine.Merchant(ctx, id)
		switch {
		case store.KindOf(err) == store.KindNotFound: // it was just deleted
			continue
		case ctx.Err() != nil:
			return nil, 0, err
		case err != nil: // its record is damaged
			c.Log.Warn("console: a suspended merchant cannot be read", "merchant", id, "error", err)
		}
		view = append(view, suspendedJSON{Kind: "merchant", Name: m.Name, Partner: m.Partner, Merchant: id})
	}
	for _, id := range all.Tags {
		if t, ok := c.Engine.Directory().Tag(id); ok && len(view) < maxListed {
			view = append(view, suspendedJSON{Kind: "tag", Name: string(t.Type), Partner: t.Partner, Merchant: t.Merchant, Tag: id})
		}
	}
	return view, len(all.Partners) + len(all.Merchants) + len(all.Tags), nil
}
