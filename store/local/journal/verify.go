package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store/local/codec"
)

// Check is what Verify reports to. One goroutine makes all calls, and no transaction is open meanwhile.
type Check struct {
	Wrong   func(where string, err error)          // damage, other than of a chunk
	Damaged func(d DamagedChunk)                   // a chunk that cannot be read
	Events  func(seq uint64, events []codec.Event) // a chunk's events; valid until Events returns
	Read    func(done, total uint64)               // after each short read
}

// Counts is how many sound entries Verify has read.
type Counts struct{ Chunks, Links, Marks uint64 }

// OpenReadOnly opens an existing journal, which no other process has open, for Verify and for reading. It changes nothing.
// Damage of the logs, which the database does not show, is passed to wrong.
//
// After a kill, Badger would have to cut off the ends of its logs. So it gets a directory of links to the other files, and of
// copies of these logs.
func OpenReadOnly(dir string, opt Options, wrong func(where string, err error)) (j *Journal, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open %s: %w", dir, err)
		}
	}()
	j = &Journal{dir: dir, log: &badgerLog{log: opt.Log}, now: opt.Now}
	if j.db, j.shadow, err = openReadOnly(badgerOptions(dir), j.log, wrong); err != nil {
		return nil, err
	}
	if _, err = hasFormat(j.db); err != nil {
		return nil, errors.Join(err, j.CloseReadOnly())
	}
	return j, nil
}

// openReadOnly opens a database in a shadow of its directory, which is to be removed afterwards.
func openReadOnly(opt badger.Options, log *badgerLog, wrong func(where string, err error)) (db *badger.DB, shadow string, err error) {
	dir := opt.Dir
	if shadow, err = os.MkdirTemp("", "mtagd-verify-"); err != nil {
		return nil, "", err
	}
	if err = linkAll(dir, shadow, wrong); err == nil {
		err = catchDamage(func() (err error) {
			db, err = badger.OpenManaged(opt.WithDir(shadow).WithValueDir(shadow).WithLogger(log).WithReadOnly(true))
			return err
		})
	}
	if err == nil {
		err = log.failure()
	}
	if err == nil {
		return db, shadow, nil
	}
	if db != nil {
		err = errors.Join(err, db.Close())
	}
	return nil, "", errors.Join(err, os.RemoveAll(shadow))
}

// linkAll makes links in shadow to all files of dir, except to logs of memtables: of these it makes copies that end with the
// last whole transaction.
func linkAll(dir, shadow string, wrong func(where string, err error)) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		if filepath.Ext(path) != ".mem" {
			if err := os.Symlink(path, filepath.Join(shadow, f.Name())); err != nil {
				return err
			}
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if len(b) < logHeader {
			continue // a kill has left it
		}
		log := readMemLog(b)
		records, lost := log.survivors(b)
		if lost > 0 {
			wrong(filepath.Join(filepath.Base(dir), f.Name()), fmt.Errorf("%w: %d bytes of it cannot be read", codec.ErrCorrupt, lost))
		} else if log.corrected {
			wrong(filepath.Join(filepath.Base(dir), f.Name()), fmt.Errorf("%w: wrong bits, which the next start of the server corrects", codec.ErrCorrupt))
		}
		if err := os.WriteFile(filepath.Join(shadow, f.Name()), append(b[:logHeader:logHeader], records...), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// CloseReadOnly closes a journal that OpenReadOnly has opened.
func (j *Journal) CloseReadOnly() (err error) {
	if j.db != nil {
		err = j.db.Close()
	}
	return errors.Join(err, os.RemoveAll(j.shadow))
}

// Verify checks the tables' checksums, and decodes every entry. Entries are written meanwhile; it may see these or not. It
// returns an error only when ctx ends.
func (j *Journal) Verify(ctx context.Context, c Check) (Counts, error) {
	v := verifier{Check: c, j: j}
	tables := j.db.Tables()
	for _, t := range tables {
		v.total += uint64(t.KeyCount)
	}
	for _, t := range tables {
		if err := ctx.Err(); err != nil {
			return v.counts, err
		}
		v.table(tablePath(j.dir, t.ID))
		c.Read(0, v.total)
	}
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return v.counts, err
		}
		v.batch = v.batch[:0]
		if err := catchDamage(func() (err error) {
			more, err = v.readBatch()
			return err
		}); err != nil {
			c.Wrong("events", fmt.Errorf("what is behind key %x cannot be read: %w", v.next, err))
			more = false
		}
		for _, report := range v.batch {
			report()
		}
		c.Read(min(v.done, v.total), v.total)
	}
	return v.counts, nil
}

// verifier reads all entries, in batches with a transaction each.
type verifier struct {
	Check
	j           *Journal
	next        []byte   // the first key of the next batch
	batch       []func() // what the batch has to report
	done, total uint64
	counts      Counts
}

// table checks the checksums of a table, in memory: a memory fault while Badger reads would be one of the server.
func (v *verifier) table(path string) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return // a compaction has replaced it
	}
	if err == nil {
		var corrected bool
		if corrected, err = checkTable(b, false); corrected && err == nil {
			err = fmt.Errorf("%w: wrong bits, which the next start of the server corrects", codec.ErrCorrupt)
		}
	}
	if err != nil {
		v.Wrong(filepath.Join("events", filepath.Base(path)), err)
	}
}

// batchEntries is how many entries are read in one transaction, and batchChunks how many chunks.
const (
	batchEntries = 2000
	batchChunks  = 64
)

func (v *verifier) readBatch() (more bool, err error) {
	txn := v.j.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{})
	defer it.Close()
	entries, chunks := 0, 0
	for it.Seek(v.next); it.Valid(); it.Next() {
		item := it.Item()
		key := item.KeyCopy(nil)
		if entries == batchEntries || chunks == batchChunks {
			v.next = key
			return true, nil
		}
		v.next = append(key[:len(key):len(key)], 0)
		entries++
		v.done++
		if key[0] == prefixChunk && len(key) == 9 {
			chunks++
			v.chunk(item, key)
			continue
		}
		if err := v.entry(item, key); err != nil {
			v.batch = append(v.batch, func() { v.Wrong(fmt.Sprintf("events: entry %x", key), err) })
		}
	}
	return false, nil
}

// chunk decodes a chunk.
func (v *verifier) chunk(item *badger.Item, key []byte) {
	seq, _ := parseChunkKey(key) // the caller has checked the key
	events, err := readChunk(item, seq)
	if err != nil {
		v.batch = append(v.batch, func() { v.Damaged(DamagedChunk{seq, err}) })
		return
	}
	v.counts.Chunks++
	v.batch = append(v.batch, func() { v.Events(seq, events) })
}

// entry checks any other entry.
func (v *verifier) entry(item *badger.Item, key []byte) error {
	return catchDamage(func() error {
		return item.Value(func(b []byte) error {
			merchant := len(codec.MerchantKey{})
			switch {
			case key[0] == prefixFormat && len(key) == 1 && isFormat(b):
			case key[0] == prefixForgotten && len(key) == 1 && len(b) == 8:
			case key[0] == prefixFiller:
			case key[0] == prefixLink && len(key) == 1+merchant+32 && isLink(b):
				v.counts.Links++
			case key[0] == prefixFormer && len(key) == formerKeyBytes && isFormer(b):
				v.counts.Links++
			case key[0] == prefixLinked && len(key) == 1+merchant+muidHashBytes && len(b) == 1:
			case key[0] == prefixIndexed && len(key) == 1 && len(b) == 1:
			case (key[0] == prefixDedupe || key[0] == prefixOldDedupe) && len(key) == 1+merchant+16 && len(b) == 8:
				v.counts.Marks++
			default:
				return fmt.Errorf("%w: unknown key, or a value that does not fit it", codec.ErrCorrupt)
			}
			return nil
		})
	})
}
