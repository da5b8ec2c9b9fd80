package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/log"
)

// Writer writes the entries of a backup into a new journal.
type Writer struct {
	log    *log.Log
	record []byte // chunks that were not appended yet
	last   uint64 // the number of the last chunk

	keys *keyStore
}

// Create creates a journal in dir, which must not exist or be empty.
func Create(dir string, logger *slog.Logger) (*Writer, error) {
	if err := os.MkdirAll(logDir(dir), 0o700); err != nil {
		return nil, err
	}
	l, err := log.Open(logDir(dir), logger)
	if err != nil {
		return nil, err
	}
	keys, err := tryKeys(keysDir(dir), logger)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	w, err := newWriter(l, keys)
	if err != nil {
		return nil, errors.Join(err, keys.db.Close(), l.Close())
	}
	return w, nil
}

// newWriter returns a writer into a new database of links and event_ids.
func newWriter(l *log.Log, keys *keyStore) (*Writer, error) {
	return &Writer{log: l, keys: keys}, keys.db.Put(codec.Entry{Key: []byte{prefixFormat}, Value: []byte(Format), Version: 1})
}

// writtenAtOnce is about how many bytes of chunks are in a record.
const writtenAtOnce = 1 << 20

// Put writes an entry. Of those with one key, the one with the greatest version counts. Chunks come in the order of receipt.
// Put ignores repeated chunks, and deletions of chunks, whose events are in the archive. It converts entries from before
// 1.0.0.
func (w *Writer) Put(e codec.Entry) error {
	if IsChunk(e) {
		return w.putChunk(e)
	}
	if err := checkFormatEntry(e); err != nil {
		return err
	}
	if len(e.Key) == 1 && (e.Key[0] == prefixFormat || e.Key[0] == prefixFlushed) || isFormerKey(e.Key) {
		return nil // this journal has its own
	}
	if !isKey(e.Key) {
		return fmt.Errorf("%w: key %x of an entry", codec.ErrCorrupt, e.Key)
	}
	if e.Key[0] == prefixLink && !e.Deleted && len(e.Value) > 0 && e.Value[0] != linkMark {
		linked := appendLinkedKey(nil, store.MerchantKey(e.Key[1:]), store.MUIDKey(e.Value))
		if err := w.keys.db.Put(codec.Entry{Key: linked, Value: []byte{1}, Version: e.Version}); err != nil {
			return err
		}
		e.Value = link{muid: e.Value}.append(nil)
	}
	return w.keys.db.Put(e)
}

// formerFormats are those before 1.0.0. Before "5" a link was a muid alone, without linkMark. It becomes a claimed link.
var formerFormats = []string{"3", "4", "5"}

// isFormerKey reports whether a key is of an entry that 1.0.0 and earlier versions wrote, and that is not read any more.
func isFormerKey(key []byte) bool {
	return len(key) > 0 && (key[0] == 'D' || key[0] == 'V' || key[0] == 'Z')
}

// checkFormatEntry refuses the entries of a format that is not known.
func checkFormatEntry(e codec.Entry) error {
	if found := string(e.Value); !e.Deleted && len(e.Key) == 1 && e.Key[0] == prefixFormat && found != Format && !slices.Contains(formerFormats, found) {
		return codec.UnknownFormat{Found: found, Known: Format}
	}
	return nil
}

func (w *Writer) putChunk(e codec.Entry) error {
	seq, is := ChunkOf(e)
	if !is || seq <= w.last {
		return nil
	}
	w.last = seq
	if w.record = codec.AppendEntry(w.record, e); len(w.record) < writtenAtOnce {
		return nil
	}
	return w.append()
}

// append appends the chunks that were put to the log.
func (w *Writer) append() error {
	if len(w.record) == 0 {
		return nil
	}
	if err := w.keys.db.Room(0); err != nil {
		return err
	}
	if _, err := w.log.Append(w.record); err != nil {
		return fmt.Errorf("the chunks of a backup cannot be written: %w", err)
	}
	w.record = w.record[:0]
	return nil
}

// Close ends the writing. When it returns nil, the journal is on disk and can be opened.
func (w *Writer) Close() error {
	return errors.Join(w.append(), w.keys.db.Close(), w.log.Close())
}

// Repair writes what can be read of the journal in dir into a new one in the directory to, which must be empty or missing.
// It reads the files of the database one by one. It changes nothing in dir. Damage is passed to wrong, with the file's path.
// lost are the ranges of keys in which links and event_ids may be lost.
func Repair(ctx context.Context, dir, to string, opt Options, wrong func(path string, err error)) (lost []badgerdb.Range, err error) {
	for _, part := range []string{logDir(dir), keysDir(dir)} {
		if _, err := os.Stat(part); err != nil {
			wrong(part, err)
		}
	}
	w, err := Create(to, opt.Log)
	if err != nil {
		return nil, err
	}
	lost, err = repairKeys(ctx, keysDir(dir), w, wrong)
	if err == nil {
		err = w.putLog(ctx, logDir(dir), wrong)
	}
	return lost, errors.Join(err, w.Close())
}

// repairKeys writes what can be read of the database in dir, and returns the ranges of keys in which some may be lost.
func repairKeys(ctx context.Context, dir string, w *Writer, wrong func(path string, err error)) (lost []badgerdb.Range, err error) {
	return badgerdb.EachEntry(ctx, dir, isKey, func(e codec.Entry) error {
		e.Key, e.Value = slices.Clone(e.Key), slices.Clone(e.Value)
		return w.Put(e)
	}, wrong)
}

// putLog writes the entries of a log.
func (w *Writer) putLog(ctx context.Context, dir string, wrong func(path string, err error)) (err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l, err := log.OpenReadOnly(dir)
	if err != nil {
		wrong(dir, err)
		return nil
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	for from := l.First(); from < l.End(); {
		err := l.Replay(from, func(_ log.Position, record []byte) error {
			return eachEntry(record, func(e codec.Entry, _ int) error {
				if seq, isChunk := ChunkOf(e); isChunk {
					if _, err := CheckEntry(e); err != nil {
						wrong(dir, fmt.Errorf("chunk %d: %w", seq, err))
						return nil
					}
				}
				e.Key, e.Value = slices.Clone(e.Key), slices.Clone(e.Value)
				return errors.Join(ctx.Err(), w.Put(e))
			})
		})
		damage, isDamage := errors.AsType[*log.Damage](err)
		if !isDamage {
			return err
		}
		wrong(damage.File, err)
		from = damage.Next
	}
	return nil
}

// keyBytes has the lengths of the keys of the database that are in backups, too.
var keyBytes = map[byte]int{prefixLink: 49, prefixFormer: formerKeyBytes, prefixLinked: 33, prefixDedupe: 33, prefixForgotten: 1}

func isKey(key []byte) bool { return len(key) > 0 && keyBytes[key[0]] == len(key) }
