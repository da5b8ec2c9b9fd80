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
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/control"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// Repair makes a new data directory of what can be read of the one in dir, which it does not change. The directory to must
// be empty or missing. What is lost is passed to lost. It fails with store.ErrInUse when another process has dir open.
func Repair(ctx context.Context, dir, to string, log *slog.Logger, lost func(store.Finding)) (err error) {
	if err := refuseHalfUpgraded(dir); err != nil {
		return err
	}
	if isFormer(dir) {
		return fmt.Errorf("%s is of a version before 1.0.0: start the service on it, which writes the events again, before a repair", dir)
	}
	old, err := control.OpenReadOnly(dir) // stays locked until the end
	if err != nil && !errors.Is(err, store.ErrInUse) {
		if second, copyErr := control.OpenCopy(dir); copyErr == nil || errors.Is(copyErr, store.ErrInUse) {
			log.Warn("control.db cannot be opened: its copy is read", "error", err)
			old, err = second, copyErr
		}
	}
	if errors.Is(err, store.ErrInUse) {
		return err
	}
	if err == nil {
		defer func() { err = errors.Join(err, old.Close()) }()
	} else {
		lost(store.Finding{Part: store.PartControl, Where: "control.db",
			Problem: "cannot be opened, so all partners, keys, merchants and tags are lost: " + err.Error()})
	}
	parts, err := readGeneration(dir, log)
	if err != nil {
		log.Warn("a file named generation cannot be read, so this repair does not notice if control.db is older than the rest", "error", err)
	}
	err = fill(to, "mtagd repair", func() error {
		if err := repairControl(old, to, log, lost, parts.sums()); err != nil {
			return err
		}
		if old != nil {
			if err := parts.compare(old); err != nil {
				lost(store.Finding{Part: store.PartControl, Where: dir, Problem: "what was changed since may be lost, and a key that was revoked may be valid: " + err.Error()})
			}
		}
		lostKeys, err := repairEvents(ctx, dir, to, log, lost)
		if err == nil {
			err = copyOthers(dir, to)
		}
		if err != nil {
			return err
		}
		data, err := control.Open(to, time.Now, log)
		if err != nil {
			return err
		}
		if err := errors.Join(beAnother(ctx, data), writeSealed(to, relinkFile, append(readLostKeys(to, log), lostKeys...))); err != nil {
			return err
		}
		e, err := Open(to, Options{Log: log, unfinished: true, unhealed: true}) // builds the index
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

// repairControl writes what can be read of old; nil: nothing.
func repairControl(old *control.Data, to string, log *slog.Logger, lost func(store.Finding), sums []uint64) error {
	if old != nil {
		return old.Repair(to, func(where, problem string) {
			lost(store.Finding{Part: store.PartControl, Where: where, Problem: problem})
		}, sums...)
	}
	empty, err := control.Open(to, time.Now, log)
	if err != nil {
		return err
	}
	return empty.Close()
}

// beAnother gives a new data directory an id of its own: its next backup must not go on from one of the old directory.
// Erasures are done again by the next server, because events that were removed may be back.
func beAnother(ctx context.Context, data *control.Data) error {
	_, err := data.ReplaceID()
	return errors.Join(err, data.RepeatErasures(ctx), data.Close())
}

// repairEvents repairs the journal and the archive, and reports what the old index has of events that are lost. It returns
// the ranges of lost keys (relink.go).
func repairEvents(ctx context.Context, dir, to string, log *slog.Logger, lost func(store.Finding)) (lostKeys []badgerdb.Range, err error) {
	wrong := func(path string, err error) {
		if name, relErr := filepath.Rel(dir, path); relErr == nil {
			path = name
		}
		lost(store.Finding{Part: store.PartEvents, Where: path, Problem: err.Error()})
	}
	opt := journal.Options{Log: log, Now: time.Now}
	if lostKeys, err = journal.Repair(ctx, filepath.Join(dir, "events"), filepath.Join(to, "events"), opt, wrong); err != nil {
		return nil, err
	}
	v := verifierOfClosed(ctx, store.Verification{Found: lost, Read: func(store.Part, uint64, uint64) {}})
	v.onlyLost = true
	v.expiring = readExpiring(dir, log)
	defer func() { err = errors.Join(err, v.close()) }()
	if v.journal, err = journal.OpenReadOnly(filepath.Join(to, "events"), opt); err != nil {
		return nil, err
	}
	forgotten, err := v.journal.Forgotten()
	if err == nil {
		err = archive.Repair(ctx, Parts(dir)["archive"], Parts(to)["archive"], forgotten, log, wrong)
	}
	if err == nil {
		v.archive, err = archive.OpenReadOnly(Parts(to)["archive"], log)
	}
	if err != nil {
		return nil, err
	}
	if v.index, err = rank.OpenReadOnly(filepath.Join(dir, "index.db")); err != nil {
		lost(store.Finding{Part: store.PartIndex, Where: "index.db", Problem: "cannot be opened, so it is not known which events are lost: " + err.Error()})
		return lostKeys, nil
	}
	return lostKeys, v.verify()
}

// copyOthers copies what is in a data directory besides the store, such as certificates.
func copyOthers(dir, to string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		switch {
		case slices.Contains([]string{"control.db", "control.copy", "events", "archive", archivePart, "index.db", damageFile, generationFile, unfinishedFile, "lost+found"}, f.Name()):
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
