package local

import (
	"context"
	"errors"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/move"
)

// Events implements move.Data. It passes the events merchant by merchant.
func (d *Directory) Events(ctx context.Context, after, upTo uint64, use func(*move.Event) error) error {
	merchants, err := d.archive.Merchants()
	if err != nil {
		return err
	}
	enough := errors.New("enough")
	for _, m := range merchants {
		var damaged error
		err := d.archive.Since(ctx, m, codec.EndOf(after), func(events []archive.Event) error {
			for _, stored := range events {
				if stored.Seq > upTo {
					return enough
				}
				e, err := journal.DecodeBody(m, stored.Position, stored.Body)
				if err != nil {
					return err
				}
				tag, name := codec.SplitSeries(e.Series)
				if err := use(&move.Event{Merchant: m, At: e.Position, Time: e.Time, Tag: string(tag), Name: string(name),
					Bot: codec.IsBot(e.Series), MUID: e.MUID, ByClaim: e.ByClaim, Raw: e.Raw}); err != nil {
					return err
				}
			}
			return nil
		}, func(d archive.Damage) { damaged = errors.Join(damaged, d.Err) })
		if err != nil && !errors.Is(err, enough) {
			return err
		}
		if damaged != nil {
			return damaged
		}
	}
	return nil
}

// Keys implements move.Data. It passes all keys each time.
func (d *Directory) Keys(ctx context.Context, _ uint64, use func(*move.Key) error) (moment uint64, err error) {
	return 0, d.keys.Keys(ctx, movedKeys(use))
}

// Control implements move.Data.
func (d *Directory) Control(ctx context.Context) (*move.Control, error) {
	return exportControl(ctx, d.control, d.at)
}

// Audit implements move.Data.
func (d *Directory) Audit(ctx context.Context, after store.AuditID, use func(*store.AuditEntry) error) error {
	return d.control.Entries(ctx, after, use)
}
