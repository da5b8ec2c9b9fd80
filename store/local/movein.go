package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/control"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
	"mtagd/store/move"
)

// movingDir is where a move writes, below the data directory. As long as it exists, the move is not finished, and the data directory
// cannot be opened. It has the files of a data directory, and:
//
//	source  the id of the store that is moved
//	ready   is there when everything is
//
// All events go into the archive, as events of the journal have no gaps in their positions. Its boundary is how far the move is. The
// journal only has links and remembered event_ids, which every call of Begin empties: they are copied whole again.
const movingDir = "moving"

// Directory is a data directory into which data is moved. It implements move.Target.
type Directory struct {
	dir, at string
	log     *slog.Logger

	control *control.Data
	archive *archive.Archive
	keys    *journal.Writer
	index   *rank.Index
	version uint64 // of the last keys
}

var _ move.Target = (*Directory)(nil)

// NewDirectory returns a directory, which must be new or empty, or have a part of a move. Nothing is changed before Begin.
func NewDirectory(dir string, log *slog.Logger) (*Directory, error) {
	dir, err := filepath.Abs(dir)
	return &Directory{dir: dir, at: filepath.Join(dir, movingDir), log: log}, err
}

// Name says for people which directory it is.
func (d *Directory) Name() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown machine"
	}
	return fmt.Sprintf("the directory %s on %s", d.dir, host)
}

// Place says which directory it is, whether or not it is finished. It must not be open: it fails with store.ErrInUse while a server or a
// command has it open.
func (d *Directory) Place() (move.Place, error) {
	p := move.Place{Name: d.Name()}
	for _, dir := range []string{d.at, d.dir} {
		if !exists(Parts(dir)["control"]) {
			continue
		}
		data, err := control.Open(dir, time.Now, d.log)
		if err != nil {
			return p, err
		}
		p.ID, err = data.ID()
		return p, errors.Join(err, data.Close())
	}
	return p, nil
}

// Begin implements move.Target.
func (d *Directory) Begin(ctx context.Context, source string) (at uint64, err error) {
	if err := d.claim(source); err != nil {
		return 0, err
	}
	if err := d.open(ctx); err != nil {
		return 0, err
	}
	return d.archive.Boundary(), nil
}

// claim makes the directory that of a move from a source.
func (d *Directory) claim(source string) error {
	found, err := os.ReadDir(d.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range found {
		if name := entry.Name(); name != movingDir && name != "lost+found" {
			return fmt.Errorf("%s is not empty: data can only be moved into a new directory", d.dir)
		}
	}
	if err := os.MkdirAll(d.at, 0o700); err != nil {
		return err
	}
	marker := filepath.Join(d.at, "source")
	text, err := os.ReadFile(marker)
	switch {
	case err == nil && string(text) != source:
		return fmt.Errorf("%s is being filled from another store. To fill it from this one, remove it", d.dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err != nil:
		if err := journal.ReplaceFile(marker, []byte(source)); err != nil {
			return err
		}
	}
	return errors.Join(journal.SyncPath(d.dir), journal.SyncPath(filepath.Dir(d.dir)))
}

// open opens the parts. The lock of the control data keeps another move away.
func (d *Directory) open(ctx context.Context) (err error) {
	if d.control, err = control.Open(d.at, time.Now, d.log); err != nil {
		return openingError(d.dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(openingError(d.dir, err), d.Close())
		}
	}()
	parts := Parts(d.at)
	if err := removeIfExists(filepath.Join(d.at, "ready")); err != nil {
		return err
	}
	if err := os.RemoveAll(parts["journal"]); err != nil {
		return err
	}
	if d.keys, err = journal.Create(parts["journal"], d.log); err != nil {
		return err
	}
	d.version = 0
	if d.archive, err = archive.Open(parts["archive"], d.log); err != nil {
		return err
	}
	x, err := rank.Open(parts["index"], MinFree, d.log)
	if err != nil {
		return err
	}
	if err := d.catchUp(ctx, x); err != nil {
		return errors.Join(err, x.Discard())
	}
	x.Start()
	d.index = x
	return nil
}

func openingError(dir string, err error) error {
	return fmt.Errorf("%s cannot be filled: %w. If nothing else helps, remove it, and move to a new one", dir, err)
}

// catchUp replays the archived events that an index does not cover: after a kill, it may not have got the last ones.
func (d *Directory) catchUp(ctx context.Context, x *rank.Index) error {
	boundary := d.archive.Boundary()
	covered := x.Covered()
	if x.Outdated() || covered > boundary {
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
		// The events of a commit go together.
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

// Clear implements move.Target.
func (d *Directory) Clear(ctx context.Context) error {
	if err := d.Close(); err != nil {
		return err
	}
	for _, name := range restoredFiles {
		if err := os.RemoveAll(filepath.Join(d.at, name)); err != nil {
			return err
		}
	}
	return d.open(ctx)
}

// Add implements move.Target.
func (d *Directory) Add(_ context.Context, b *move.Batch) error {
	run := &archive.Run{}
	indexed := make([]codec.Event, 0, len(b.Events))
	var body []byte
	for i := range b.Events {
		e := &b.Events[i]
		body, _ = journal.AppendBody(body[:0], store.TagID(e.Tag), e.Name, e.Bot, e.MUID, e.Raw, e.Time)
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

// AddKeys implements move.Target.
func (d *Directory) AddKeys(_ context.Context, keys []move.Key) error {
	d.version++
	for _, k := range keys {
		var err error
		if k.IsLink() {
			err = d.keys.PutLink(k.Merchant, store.IdentityKey(k.Key), k.MUID, d.version)
		} else {
			err = d.keys.PutEventID(k.Merchant, k.Key, k.Seen, d.version)
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
		if err := journal.SyncPath(path); err != nil {
			return err
		}
		for dir := filepath.Dir(path); !synced[dir]; dir = filepath.Dir(dir) {
			synced[dir] = true
		}
	}
	for dir := range synced {
		if err := journal.SyncPath(dir); err != nil {
			return err
		}
	}
	return nil
}

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
					Bot: codec.IsBot(e.Series), MUID: e.MUID, Raw: e.Raw}); err != nil {
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

// Keys implements move.Data. It always passes all.
func (d *Directory) Keys(ctx context.Context, _ uint64, use func(*move.Key) error) (moment uint64, err error) {
	return 0, d.keys.Keys(ctx, movedKeys(use))
}

// Control implements move.Data.
func (d *Directory) Control(context.Context) (*move.Control, error) {
	return exportControl(d.control, d.at)
}

// Audit implements move.Data.
func (d *Directory) Audit(ctx context.Context, after store.AuditID, use func(*store.AuditEntry) error) error {
	return d.control.Entries(ctx, after, use)
}

// Ready implements move.Target. It compares what the index and the archive count, and closes all parts.
func (d *Directory) Ready(ctx context.Context, upTo uint64) (to move.Place, err error) {
	if boundary := d.archive.Boundary(); boundary != upTo {
		return to, fmt.Errorf("%s has the events up to %d, and not up to %d", d.dir, boundary, upTo)
	}
	merchants, err := d.archive.Merchants()
	if err != nil {
		return to, err
	}
	if err := d.index.Wait(ctx, upTo); err != nil {
		return to, err
	}
	ids := make([]store.MerchantID, len(merchants))
	for i, m := range merchants {
		ids[i] = m.ID()
		stored, err := d.archive.Usage(m)
		if err != nil {
			return to, err
		}
		indexed, _, err := d.index.Usage(ctx, m)
		if err != nil {
			return to, err
		}
		if stored.Events != indexed {
			return to, fmt.Errorf("merchant %s has %d events, but %d in the index", ids[i], stored.Events, indexed)
		}
	}
	// Events of merchants that were deleted while nobody copied.
	if err := d.control.RemoveUnknown(ctx, ids); err != nil {
		return to, err
	}
	to.Name = d.Name()
	if to.ID, err = d.control.ID(); err != nil {
		return to, err
	}
	if err := d.keys.PutForgotten(upTo, d.version+1); err != nil {
		return to, err
	}
	if err := d.Close(); err != nil {
		return to, err
	}
	parts := Parts(d.at)
	for _, dir := range []string{parts["journal"], parts["archive"], d.at} {
		if err := journal.SyncPath(dir); err != nil {
			return to, err
		}
	}
	return to, journal.ReplaceFile(filepath.Join(d.at, "ready"), nil)
}

// Finish implements move.Target.
func (d *Directory) Finish(context.Context) error {
	if !exists(d.at) && exists(Parts(d.dir)["control"]) {
		return nil
	}
	// When the control data is in its place, everything is: then only movingDir is left to be removed.
	if !exists(filepath.Join(d.at, "ready")) && !exists(Parts(d.dir)["control"]) {
		return fmt.Errorf("%s does not have everything yet", d.dir)
	}
	return publish(d.dir, d.at)
}

// Close closes what is open.
func (d *Directory) Close() error {
	var errs []error
	if d.index != nil {
		errs = append(errs, d.index.Close())
	}
	if d.archive != nil {
		errs = append(errs, d.archive.Close())
	}
	if d.keys != nil {
		errs = append(errs, d.keys.Close())
	}
	if d.control != nil {
		errs = append(errs, d.control.Close())
	}
	d.index, d.archive, d.keys, d.control = nil, nil, nil, nil
	return errors.Join(errs...)
}
