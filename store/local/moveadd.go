package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
	"mtagd/store/move"
)

// Add implements move.Target.
func (d *Directory) Add(_ context.Context, b *move.Batch) error {
	run := &archive.Run{}
	indexed := make([]codec.Event, 0, len(b.Events))
	var body []byte
	for i := range b.Events {
		e := &b.Events[i]
		body, _ = journal.AppendBody(body[:0], store.TagID(e.Tag), e.Name, e.Bot, e.MUID, e.ByClaim, e.Raw, e.Time)
		run.Append(e.Merchant, e.At, body)
		indexed = append(indexed, codec.Event{Merchant: e.Merchant, Position: e.At, Time: e.Time,
			Series: codec.AppendSeries(nil, store.TagID(e.Tag), e.Name, e.Bot), Size: uint32(len(e.Merchant) + len(body))})
	}
	if err := d.archive.Add(run, b.UpTo, func() {}); err != nil {
		return err
	}
	d.index.Push(indexed, b.UpTo, func() {})
	return d.index.Failure()
}

// Index implements move.Target. It waits for the index.
func (d *Directory) Index(ctx context.Context) error { return d.index.Wait(ctx, d.archive.Boundary()) }

// catchUp replays the archived events that the index lacks: after a kill, these may be the last ones.
func (d *Directory) catchUp(ctx context.Context, x *rank.Index) error {
	boundary := d.archive.Boundary()
	covered := x.Covered()
	if covered > boundary {
		if err := x.Reset(); err != nil {
			return err
		}
		covered = 0
	}
	merchants, err := d.archive.Merchants()
	if err != nil {
		return err
	}
	const portion = 100_000
	for after := codec.EndOf(covered); covered < boundary; {
		next, err := d.archive.Next(ctx, merchants, after, codec.EndOf(boundary), portion)
		if err != nil {
			return err
		}
		if next.Damaged != nil {
			return next.Damaged
		}
		// The events of a commit are indexed together.
		upTo := next.UpTo.Seq
		if next.UpTo != codec.EndOf(upTo) {
			upTo--
		}
		if upTo <= covered {
			return fmt.Errorf("more than %d events were received together", portion)
		}
		var events []codec.Event
		for _, stored := range next.Events {
			if stored.Seq > upTo {
				break
			}
			e, err := journal.DecodeBody(stored.Merchant, stored.Position, stored.Body)
			if err != nil {
				return err
			}
			events = append(events, e.Event)
		}
		if err := x.Replay(events, upTo); err != nil {
			return err
		}
		covered, after = upTo, codec.EndOf(upTo)
	}
	return nil
}

// AddKeys implements move.Target.
func (d *Directory) AddKeys(_ context.Context, keys []move.Key) error {
	d.version++
	for _, k := range keys {
		var err error
		switch {
		case !k.IsLink():
			err = d.keys.PutEventID(k.Merchant, k.Key, k.Seen, d.version)
		case k.Former:
			err = d.keys.PutFormer(k.Merchant, k.Link(), d.version)
		default:
			err = d.keys.PutLink(k.Merchant, k.Link(), d.version)
		}
		if err != nil {
			return err
		}
	}
	return d.keys.Flush()
}

// LastAudit implements move.Target.
func (d *Directory) LastAudit(context.Context) (store.AuditID, error) {
	return d.control.LastEntry(), nil
}

// AddAudit implements move.Target.
func (d *Directory) AddAudit(_ context.Context, entries []store.AuditEntry) error {
	return d.control.AddEntries(entries)
}

// SetControl implements move.Target.
func (d *Directory) SetControl(_ context.Context, c *move.Control) error {
	if err := d.control.Import(c); err != nil {
		return err
	}
	root := filepath.Join(d.at, certificatesDir)
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	synced := map[string]bool{d.at: true}
	for _, f := range c.Files {
		path := filepath.FromSlash(f.Path)
		if !filepath.IsLocal(path) {
			return fmt.Errorf("a certificate has the path %q", f.Path)
		}
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.Content, 0o600); err != nil {
			return err
		}
		if err := durable.SyncPath(path); err != nil {
			return err
		}
		for dir := filepath.Dir(path); !synced[dir]; dir = filepath.Dir(dir) {
			synced[dir] = true
		}
	}
	for dir := range synced {
		if err := durable.SyncPath(dir); err != nil {
			return err
		}
	}
	return nil
}
