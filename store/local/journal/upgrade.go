package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/space"
)

// In the formats "3" and "4", a journal was a Badger database, with chunks as well. Its files were in the journal's
// directory itself.
const (
	formerFile   = "MANIFEST"  // a journal of that kind has it
	upgradeDir   = "upgrading" // the journal of this format, until it is complete
	completeMark = "complete"  // in upgradeDir: it is
)

// upgrade brings a journal of an earlier version to this one. It writes a new journal beside the former one, and then removes the former
// one. A kill costs nothing: before the new one is complete, the next call begins again; after that it goes on.
func upgrade(dir string, logger *slog.Logger) error {
	next := filepath.Join(dir, upgradeDir)
	_, err := os.Stat(filepath.Join(next, completeMark))
	complete := err == nil
	if !complete {
		if err := os.RemoveAll(next); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(dir, formerFile)); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		logger.Info("the events are of an earlier version: they are written again, into a log")
		if err := rewriteFormer(dir, next, logger); err != nil {
			return fmt.Errorf("the events of an earlier version cannot be read. Nothing was changed. If they are damaged, let \"mtagd repair\" of "+
				"that version make a new directory of what there is: %w", err)
		}
		if err := durable.ReplaceFile(filepath.Join(next, completeMark), nil); err != nil {
			return err
		}
	}
	if err := durable.SyncPath(dir); err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files { // MANIFEST as well: the mark says that the rest is of no use
		if f.Name() != upgradeDir && f.Name() != filepath.Base(logDir(dir)) && f.Name() != filepath.Base(keysDir(dir)) {
			if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
	}
	for _, to := range []string{logDir(dir), keysDir(dir)} {
		if err := os.Rename(filepath.Join(next, filepath.Base(to)), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := durable.SyncPath(dir); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(next), durable.SyncPath(dir))
}

// rewriteFormer writes the entries of a former journal into a new one.
func rewriteFormer(dir, to string, logger *slog.Logger) (err error) {
	size := int64(0)
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil {
			size += info.Size()
		}
	}
	if free, err := space.Free(dir); err == nil && free < size+MinFree {
		return fmt.Errorf("the disk needs %d MiB more", (size+MinFree-free)>>20+1)
	}
	messages := formerLog{log: logger}
	db, err := badger.OpenManaged(formerOptions(dir).WithLogger(&messages))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetDiscardTs(math.MaxUint64)
	w, err := Create(to, logger)
	if err != nil {
		return err
	}
	return errors.Join(rewriteEntries(db, w), messages.damage, w.Close())
}

func rewriteEntries(db *badger.DB, w *Writer) error {
	txn := db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	item, err := txn.Get([]byte{prefixFormat})
	if err != nil {
		return err
	}
	if err := item.Value(func(b []byte) error {
		if !slices.Contains([]string{"3", "4"}, string(b)) {
			return codec.UnknownFormat{Found: string(b), Known: format}
		}
		return nil
	}); err != nil {
		return err
	}
	it := txn.NewIterator(badger.IteratorOptions{})
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		item := it.Item()
		e := codec.Entry{Key: item.KeyCopy(nil), Version: item.Version(), ExpiresAt: item.ExpiresAt()}
		if isFormerKey(e.Key) || e.ExpiresAt != 0 && e.ExpiresAt <= uint64(time.Now().Unix()) {
			continue
		}
		if e.Value, err = item.ValueCopy(nil); err != nil {
			return err
		}
		if _, err := CheckEntry(e); err != nil {
			return fmt.Errorf("entry %x: %w", e.Key, err)
		}
		if _, _, known := isStored(e.Key, e.Value); !known && !IsChunk(e) && !bytes.Equal(e.Key, []byte{prefixFormat}) {
			return fmt.Errorf("%w: entry %x", codec.ErrCorrupt, e.Key)
		}
		if err := w.Put(e); err != nil {
			return err
		}
	}
	return nil
}

// formerOptions are the options of that version on which the format of its files depends.
func formerOptions(dir string) badger.Options {
	return badger.DefaultOptions(dir).WithMetricsEnabled(false).WithValueThreshold(300).WithVerifyValueChecksum(true).
		WithChecksumVerificationMode(options.OnTableAndBlockRead).WithMemTableSize(32 << 20).WithNumCompactors(0).
		WithNumLevelZeroTables(1 << 10).WithNumLevelZeroTablesStall(1 << 11).WithBlockCacheSize(0).WithCompression(options.None)
}

// formerLog notices a table that Badger ignores.
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
