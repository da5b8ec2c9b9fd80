package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/log"
)

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

// isKey reports whether a key is one of the database.
func isKey(key []byte) bool {
	n := map[byte]int{prefixLink: 49, prefixFormer: formerKeyBytes, prefixLinked: 33, prefixDedupe: 33, prefixForgotten: 1}
	return len(key) > 0 && n[key[0]] == len(key)
}
