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
	"mtagd/store/local/control"
	"mtagd/store/local/durable"
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

// movedFiles are moved from movingDir to the data directory when the move is complete, the control data last.
var movedFiles = []string{"events", "archive", "index.db", certificatesDir, "control.db"}

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

// Place says which directory it is, finished or not. It fails with store.ErrInUse while a server or a command has the directory open.
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
		if err := durable.ReplaceFile(marker, []byte(source)); err != nil {
			return err
		}
	}
	return errors.Join(durable.SyncPath(d.dir), durable.SyncPath(filepath.Dir(d.dir)))
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

// Clear implements move.Target.
func (d *Directory) Clear(ctx context.Context) error {
	if err := d.Close(); err != nil {
		return err
	}
	for _, name := range movedFiles {
		if err := os.RemoveAll(filepath.Join(d.at, name)); err != nil {
			return err
		}
	}
	return d.open(ctx)
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
		if err := durable.SyncPath(dir); err != nil {
			return to, err
		}
	}
	return to, durable.ReplaceFile(filepath.Join(d.at, "ready"), nil)
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

// publish moves the files of a move to their places, from at, and removes that. When it is gone, the data directory is complete.
func publish(dir, at string) error {
	for _, name := range movedFiles {
		// The control data comes last, also after a power cut: when it is in its place, everything is.
		if err := durable.SyncPath(dir); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(at, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := durable.SyncPath(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	return durable.SyncPath(dir)
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
