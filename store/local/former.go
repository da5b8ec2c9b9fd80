package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/space"
)

// Before 1.0.0, events/ and archive/ were databases of Badger itself. A start writes their entries in the present form into
// DIR/upgrading, and then replaces the two directories by the new ones. A kill costs nothing: before the mark "complete" is
// there, the next start begins again; after that it goes on.
const (
	upgradingDir = "upgrading"
	completeMark = "complete"
)

// upgradedParts are the directories that are written again.
var upgradedParts = []string{"events", "archive"}

// upgradeFormer brings a directory from before 1.0.0 to the present form. Nobody else has it open.
func upgradeFormer(ctx context.Context, dir string, log *slog.Logger) error {
	next := filepath.Join(dir, upgradingDir)
	if !durable.Exists(filepath.Join(next, completeMark)) {
		if err := os.RemoveAll(next); err != nil {
			return err
		}
		if !isFormer(dir) {
			return nil
		}
		log.Info("the events are of a version before 1.0.0: they are written again. This may take minutes")
		if err := writeFormer(ctx, dir, next, log); err != nil {
			return fmt.Errorf("the events in %s are of a version before 1.0.0, and cannot be written again: %w. Nothing was lost", dir, err)
		}
	}
	for _, part := range upgradedParts {
		from, to := filepath.Join(next, part), filepath.Join(dir, part)
		if !durable.Exists(from) {
			continue // it is in its place
		}
		if err := errors.Join(os.RemoveAll(to), os.Rename(from, to)); err != nil {
			return err
		}
	}
	if err := durable.SyncPath(dir); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(next), durable.SyncPath(dir))
}

func isFormer(dir string) bool {
	for _, part := range upgradedParts {
		if durable.Exists(filepath.Join(dir, part, badger.ManifestFilename)) {
			return true
		}
	}
	return false
}

// refuseHalfUpgraded refuses a directory from before 1.0.0 on which 1.0.0 was started: 1.0.0 leaves files there until it
// compacts.
func refuseHalfUpgraded(dir string) error {
	for _, name := range []string{"events/upgrading", "events/keys/MANIFEST", "events/keys/tables", "archive/tables"} {
		if path := filepath.Join(dir, name); durable.Exists(path) {
			return fmt.Errorf("%s is there, so version 1.0.0 has begun to convert older data: start 1.0.0 on it, back it up, and restore "+
				"the backup. Nothing was changed", path)
		}
	}
	return nil
}

// writeFormer writes the events again, into the directory to, and marks it complete.
func writeFormer(ctx context.Context, dir, to string, log *slog.Logger) error {
	size := int64(0)
	for _, part := range upgradedParts {
		if err := filepath.WalkDir(filepath.Join(dir, part), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				var info fs.FileInfo
				if info, err = d.Info(); err == nil {
					size += info.Size()
				}
			}
			return err
		}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if free, err := space.Free(dir); err == nil && free < MinFree+size {
		return fmt.Errorf("the disk needs %d MiB more", (MinFree+size-free)>>20+1)
	}
	t := &target{dir: to}
	if err := t.create(log); err != nil {
		return err
	}
	err := eachFormer(ctx, filepath.Join(dir, "events"), log, t.checked)
	if err == nil {
		err = eachFormer(ctx, filepath.Join(dir, "archive"), log, func(e codec.Entry) error {
			switch e.Key[0] { // as package archive has them
			case 'B':
				e.Key = append([]byte{prefixBlock}, e.Key...)
			case 'S':
				e.Key, e.Value = []byte{prefixBoundary}, codec.Unseal(e.Key, e.Value)
			default: // the new archive writes its own
				return nil
			}
			return t.checked(e)
		})
	}
	if err := errors.Join(err, t.close()); err != nil {
		return err
	}
	if err := syncAll(to); err != nil {
		return err
	}
	return errors.Join(durable.ReplaceFile(filepath.Join(to, completeMark), nil), durable.SyncPath(dir))
}

// checked is Entry for an entry that may be damaged.
func (t *target) checked(e codec.Entry) error {
	if _, _, err := CheckEntry(e); err != nil {
		return err
	}
	return t.Entry(e)
}

// eachFormer calls use with the newest entries of a database of Badger, in the order of their keys.
func eachFormer(ctx context.Context, dir string, log *slog.Logger, use func(codec.Entry) error) (err error) {
	if _, err := os.Stat(filepath.Join(dir, badger.ManifestFilename)); err != nil { // Badger would make a new database
		return err
	}
	notes := &formerLog{log: log}
	db, err := badger.OpenManaged(badger.DefaultOptions(dir).WithLogger(notes).WithMetricsEnabled(false).WithValueThreshold(300).
		WithVerifyValueChecksum(true).WithChecksumVerificationMode(options.OnTableAndBlockRead).WithMemTableSize(32 << 20).
		WithNumCompactors(0).WithNumLevelZeroTables(1 << 10).WithNumLevelZeroTablesStall(1 << 11).WithBlockCacheSize(0).
		WithCompression(options.None))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, notes.damage, db.Close()) }()
	txn := db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{})
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		item := it.Item()
		e := codec.Entry{Key: item.KeyCopy(nil), Version: item.Version(), ExpiresAt: item.ExpiresAt()}
		if e.ExpiresAt != 0 && e.ExpiresAt <= uint64(time.Now().Unix()) {
			continue
		}
		if e.Value, err = item.ValueCopy(nil); err != nil {
			return err
		}
		if err := errors.Join(use(e), ctx.Err()); err != nil {
			return fmt.Errorf("entry %x: %w", e.Key, err)
		}
	}
	return nil
}

// formerLog notices a table that Badger leaves out.
type formerLog struct {
	log    *slog.Logger
	damage error
}

func (l *formerLog) Errorf(format string, args ...any) {
	if strings.HasPrefix(format, "Ignoring table") {
		l.damage = fmt.Errorf("%w: a table cannot be read", codec.ErrCorrupt)
	}
	l.log.Error("badger: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l *formerLog) Warningf(string, ...any) {}
func (l *formerLog) Infof(string, ...any)    {}
func (l *formerLog) Debugf(string, ...any)   {}
