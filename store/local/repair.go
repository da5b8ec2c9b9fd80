package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/control"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// Repair makes a new data directory of what can be read of the one in dir, which it does not change. The directory to must
// be empty or missing. What is lost is passed to lost. It fails with store.ErrInUse when another process has dir open.
func Repair(ctx context.Context, dir, to string, log *slog.Logger, lost func(store.Finding)) (err error) {
	old, err := control.OpenReadOnly(dir) // stays locked until the end
	if errors.Is(err, store.ErrInUse) {
		return err
	}
	if err == nil {
		defer func() { err = errors.Join(err, old.Close()) }()
		if _, err := readGeneration(dir, old, log); err != nil {
			lost(store.Finding{Part: store.PartControl, Where: dir, Problem: "what was changed since may be lost, and a key that was revoked may be valid: " + err.Error()})
		}
	} else {
		lost(store.Finding{Part: store.PartControl, Where: "control.db",
			Problem: "cannot be opened, so all partners, keys, merchants and tags are lost: " + err.Error()})
	}
	err = fill(to, "mtagd repair", func() error {
		if err := salvageControl(old, to, log, lost); err != nil {
			return err
		}
		if err := salvageEvents(ctx, dir, to, log, lost); err != nil {
			return err
		}
		if err := copyOthers(dir, to); err != nil {
			return err
		}
		data, err := control.Open(to, time.Now, log)
		if err != nil {
			return err
		}
		if err := beAnother(ctx, data); err != nil {
			return err
		}
		e, err := Open(to, Options{Log: log, unfinished: true}) // builds the index
		if err != nil {
			return err
		}
		return e.Close()
	})
	if errors.Is(err, ErrNotEmpty) {
		return store.Invalid("--to", "must be an empty directory, or one that does not exist: %s has files", to)
	}
	return err
}

// salvageControl writes what can be read of old; nil: nothing.
func salvageControl(old *control.Data, to string, log *slog.Logger, lost func(store.Finding)) error {
	if old != nil {
		return old.Salvage(to, func(where, problem string) {
			lost(store.Finding{Part: store.PartControl, Where: where, Problem: problem})
		})
	}
	empty, err := control.Open(to, time.Now, log)
	if err != nil {
		return err
	}
	return empty.Close()
}

// beAnother gives a new data directory an id of its own: its next backup must not go on from one of the old directory. Erasures are
// done again by the next server, because events that were removed may be back.
func beAnother(ctx context.Context, data *control.Data) error {
	_, err := data.ReplaceID()
	return errors.Join(err, data.RepeatErasures(ctx), data.Close())
}

// salvageEvents salvages the journal and the archive. It reports lost chunks with what the old index knows of their events.
func salvageEvents(ctx context.Context, dir, to string, log *slog.Logger, lost func(store.Finding)) (err error) {
	found, err := journal.Salvage(ctx, filepath.Join(dir, "events"), filepath.Join(to, "events"), journal.Options{Log: log, Now: time.Now}, func(path string, err error) {
		if name, relErr := filepath.Rel(dir, path); relErr == nil {
			path = name
		}
		lost(store.Finding{Part: store.PartEvents, Where: path, Problem: err.Error()})
	})
	if err != nil {
		return err
	}
	archived, err := salvageArchive(ctx, dir, to, log, lost)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, archived.Close()) }()
	groups := map[uint64]*eventGroup{}
	x, err := rank.OpenReadOnly(filepath.Join(dir, "index.db"))
	if err != nil {
		lost(store.Finding{Part: store.PartIndex, Where: "index.db", Problem: "cannot be opened, so it is not known which events are lost: " + err.Error()})
	} else {
		err = addLost(ctx, x, found, archived, groups)
		if err = errors.Join(err, x.CloseReadOnly()); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			lost(store.Finding{Part: store.PartIndex, Where: "index.db", Problem: "cannot be read, so more events may be lost: " + err.Error()})
		}
	}
	seqs := make([]uint64, 0, len(groups))
	for seq := range groups {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	var further eventGroup // events of the archive, whose chunks the journal no longer has
	for _, seq := range seqs {
		if seq <= archived.Boundary() {
			further.merge(groups[seq])
			continue
		}
		lost(groups[seq].finding(chunkName(seq), "is lost"))
	}
	if further.events > 0 {
		lost(further.finding("archive", "does not have these events"))
	}
	return nil
}

// salvageArchive salvages the archive, and opens the new one.
func salvageArchive(ctx context.Context, dir, to string, log *slog.Logger, lost func(store.Finding)) (*archive.Archive, error) {
	forgotten := uint64(0)
	j, err := journal.OpenReadOnly(filepath.Join(to, "events"), journal.Options{Log: log, Now: time.Now})
	if err == nil {
		forgotten, err = j.Forgotten()
		err = errors.Join(err, j.CloseReadOnly())
	}
	if err != nil {
		return nil, err
	}
	if err := archive.Salvage(ctx, Parts(dir)["archive"], filepath.Join(to, "archive"), forgotten, log, func(path string, err error) {
		if name, relErr := filepath.Rel(dir, path); relErr == nil {
			path = name
		}
		lost(store.Finding{Part: store.PartEvents, Where: path, Problem: err.Error()})
	}); err != nil {
		return nil, err
	}
	return archive.OpenReadOnly(filepath.Join(to, "archive"), log)
}

// addLost adds to groups the events that the old index has, but neither the new archive nor the new journal.
func addLost(ctx context.Context, x *rank.Index, found []uint64, archived *archive.Archive, groups map[uint64]*eventGroup) error {
	merchants, err := x.StoredMerchants()
	for _, m := range merchants {
		var old []rank.Key
		add := func(k rank.Key) {
			if groups[k.Seq] == nil {
				groups[k.Seq] = &eventGroup{}
			}
			groups[k.Seq].add(m, k)
		}
		err = errors.Join(err, x.ScanEvents(ctx, m, func(k rank.Key, _ string) {
			if k.Seq <= archived.Boundary() {
				old = append(old, k)
			} else if _, has := slices.BinarySearch(found, k.Seq); !has {
				add(k)
			}
		}))
		slices.SortFunc(old, func(a, b rank.Key) int { return a.Compare(b.Position) })
		err = errors.Join(err, archived.Since(ctx, m, codec.Position{}, func(events []archive.Event) error {
			for _, e := range events {
				for len(old) > 0 && old[0].Compare(e.Position) < 0 {
					add(old[0])
					old = old[1:]
				}
				if len(old) > 0 && old[0].Position == e.Position {
					old = old[1:]
				}
			}
			return nil
		}, func(archive.Damage) {}))
		for _, k := range old {
			add(k)
		}
	}
	return err
}

// copyOthers copies what is in a data directory besides the store, such as certificates.
func copyOthers(dir, to string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		switch {
		case slices.Contains([]string{"control.db", "events", "archive", archivePart, "index.db", damageFile, generationFile, unfinishedFile, "lost+found"}, f.Name()), slices.Contains(replaced, f.Name()):
		case f.IsDir():
			if err := os.CopyFS(filepath.Join(to, f.Name()), os.DirFS(filepath.Join(dir, f.Name()))); err != nil {
				return fmt.Errorf("copy %s: %w", f.Name(), err)
			}
		case f.Type().IsRegular():
			b, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(to, f.Name()), b, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}
