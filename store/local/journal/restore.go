package journal

import (
	"errors"
	"log/slog"
	"os"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store/local/codec"
	"mtagd/store/local/space"
)

// Writer writes the entries of a backup into a new journal.
type Writer struct {
	dir   string
	db    *badger.DB
	batch *badger.WriteBatch
	bytes int64 // since the last check of the free space
}

// Create creates a journal in dir, which must not exist or be empty.
func Create(dir string, log *slog.Logger) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// Nothing is acknowledged before Close, so single commits need no sync.
	// Large memtables save most of the compactions: entries arrive nearly in the order of their keys.
	db, err := badger.OpenManaged(badgerOptions(dir).WithLogger(&badgerLog{log: log}).WithSyncWrites(false).WithMemTableSize(restoreMemTable))
	if err != nil {
		return nil, err
	}
	return &Writer{dir: dir, db: db, batch: db.NewManagedWriteBatch()}, nil
}

// restoreMemTable is the size of a memtable while a journal is restored.
const restoreMemTable = 64 << 20

// checkSpaceEvery is how many bytes are written between two looks at the free space.
const checkSpaceEvery = 16 << 20

// Put writes an entry. Of the entries with the same key, the one with the greatest version counts. The entry's slices must
// not change afterwards.
func (w *Writer) Put(e codec.Entry) error {
	// Badger writes to memory maps: on a full disk that would end the process.
	if w.bytes -= int64(len(e.Key) + len(e.Value)); w.bytes < 0 {
		free, err := space.Free(w.dir)
		if err != nil {
			return err
		}
		if free < MinFree+4*checkSpaceEvery {
			return errors.New("the disk is nearly full")
		}
		w.bytes = checkSpaceEvery
	}
	if e.Deleted {
		return w.batch.DeleteAt(e.Key, e.Version)
	}
	entry := badger.NewEntry(e.Key, e.Value)
	entry.ExpiresAt = e.ExpiresAt
	return w.batch.SetEntryAt(entry, e.Version)
}

// Close ends the writing. When it returns nil, the journal is on disk and can be opened.
func (w *Writer) Close() error {
	err := w.batch.Flush()
	return errors.Join(err, w.db.Sync(), w.db.Close())
}
