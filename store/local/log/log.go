// Package log is an append-only log of byte strings on disk: a write-ahead log. It knows nothing of what it stores.
//
//	log.go     Log: open, close, positions; what is promised
//	append.go  Append: one write and one sync; what happens after an error; Trim
//	replay.go  Replay and Read; Damage; where the last file ends: torn, or damaged
//	file.go    the format of a file and of a record; corrects one wrong bit
//	spare.go   the next file, allocated in advance
//
// # What is promised
//
// Append returns when the record is on disk. Only then may the next one be written, so after a crash at most the last
// record is incomplete, and it was never acknowledged. Open drops such a torn record and says so in the log.
//
// A record that was acknowledged and cannot be read as it was written is damage. Replay stops there with a *Damage that
// names the file and the offset, and where the next sound record is; the caller decides whether to go on there. Damage
// stays in its file, and is reported by each Replay, until Trim removes the file.
//
// A file that is missing, or in which nothing is sound, is damage too. Between two other files it shows in the positions
// and the chain. A missing last file shows in the file before it: a file is cut off behind its last record when the next
// record goes to another file. The cut is not synced, so a power cut in the same seconds can undo it. A missing first file,
// or only file, is noticed only by a caller who knows a position in it.
//
// A torn record and a damaged last one are told apart by zeros: files are new and full of zeros, so each sector of 512
// bytes that did not reach the disk is zero. A bad last record without a zero sector, and with its end, is damaged. Two
// assumptions remain. A disk writes a sector as a whole or not at all; on one that does not, a torn record can be reported
// as damage. And a last record of which a whole sector was overwritten with zeros after it was acknowledged is taken for
// torn, as is one that has a zero sector in its payload and is damaged elsewhere. Both can only happen to the last record:
// after the next Append, a bad record is always reported as damage.
//
// After a failed write or sync a file is never written again. The kernel marks pages clean though they did not reach the
// disk, so a second sync would succeed and mean nothing. The next Append begins a new file at the end of the last
// acknowledged record. What was acknowledged stays where it is: it was synced before, and because every record begins at
// a new page of 4 KiB, no write ever touches a page of another record. A restart cannot know whether the last sync
// succeeded. Therefore Open writes the last record again, to a new file, and syncs it, before anything is built on it.
//
// # Format
//
// Numbers are little endian. Checksums are CRC-32C. The first block of 4 KiB of a file is its header:
//
//	 0  magic "mtag log"
//	 8  version 1                    (4 bytes)
//	12  chain: checksum of the last record before this file; 0 when that was damaged or there is none
//	16  log id                       (8 bytes, random, the same in all files)
//	24  position of the first record (8 bytes)
//	32  number of the first record   (8 bytes)
//	40  size of the file             (8 bytes; it may be shorter when a later file exists)
//	48  checksum of bytes 0 to 48
//	52  one byte 0xa5
//
// The name of a file is a number that grows with each new file, a dash, and the log id, both in hexadecimal. Of files with
// the same first position the one with the highest number counts. A file counts up to the first position of the next one:
// what comes behind was never acknowledged. A file whose header is zero is not in use yet.
// Records leave at least one block of a file free: a file that is cut off is shorter than its header says.
//
// Records follow the header without gaps, each filled up with zeros to a whole number of blocks:
//
//	 0  checksum of bytes 4 to 40
//	 4  length of the payload
//	 8  position                     (8 bytes)
//	16  number, one more than that of the record before (8 bytes)
//	24  chain: bytes 0 to 4 of the record before
//	28  checksum of the payload
//	32  log id                       (8 bytes)
//	40  payload
//	    one byte 0xa5
//
// The position counts the bytes of all records before it. It, the log id and the chain keep a record from passing for
// another one: a copy elsewhere, one of another log, one whose predecessor is missing.
//
// # Why none of the existing logs
//
// hashicorp/raft-wal (0.4) writes a batch with one sync, into allocated files. But it takes any bad frame for a torn write,
// cuts the log there and goes on in the same file, checks only the last batch, and keeps its segments in a second database.
// tidwall/wal (1.2) has no checksums, does not allocate, and goes on with a file after a failed sync. etcd's wal (3.7)
// chains its checksums and knows torn from damaged by zero sectors, as this package does. But it is bound to raft's
// messages, cannot read one record, writes pages of acknowledged records again, repairs by truncating, and leaves a failed
// sync to a caller who exits. None writes over zeros: each sync costs a commit of the file system's journal.
package log

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"mtagd/store/local/durable"
	"mtagd/store/local/space"
)

// Position names a record: the bytes that the records before it take in the log. Positions grow, and none is used twice.
type Position uint64

// MaxRecord is the largest payload of a record, in bytes.
const MaxRecord = 16 << 20

// DefaultFileSize is the size of a file, in bytes; a larger record gets a larger one. Two files are allocated at any time.
const DefaultFileSize = 4 << 20

// firstSize is the size of the file that Open begins, if others are larger: Open waits until its zeros are on disk.
const firstSize = 512 << 10

// Log is an open log. Any method may be called at any time, but appends run one after the other.
type Log struct {
	dir    string
	id     uint64
	logger *slog.Logger
	spares *spares

	files atomic.Pointer[[]*file] // in the order of their positions; the last one is written to. Replaced, not changed
	end   atomic.Uint64           // the position of the next record

	listing  sync.Mutex // protects leftover, and the replacing of files
	leftover []*file    // to be removed

	writing sync.Mutex // held by Append; protects what follows
	buffer  []byte     // a block for the header of a file, then a record
	chain   chain
	offset  int64 // where the next record goes in the last file
	failed  bool  // a write to the last file failed
	closed  bool

	readOnly bool
}

// chain is what a record has to continue.
type chain struct {
	sum    uint32 // of the last record
	number uint64 // of the next record
}

// Open opens the log in an existing directory, which it alone uses. It drops a torn last record, writes the last record
// again, and removes files without records. It writes a file, or on a full disk nothing. Damaged records are no error
// here, but in Replay. A *Damage of Open is a file of another log.
func Open(dir string, logger *slog.Logger) (*Log, error) {
	return openWith(dir, logger, DefaultFileSize)
}

func openWith(dir string, logger *slog.Logger, fileSize int64) (*Log, error) {
	l := &Log{dir: dir, logger: logger}
	if err := l.open(func(files, unused []*file) error { return l.start(files, unused, fileSize) }); err != nil {
		return nil, err
	}
	return l, nil
}

// OpenReadOnly opens a log that nobody writes to, for Replay and Read. It changes nothing, and skips a torn last record.
func OpenReadOnly(dir string) (*Log, error) {
	l := &Log{dir: dir, readOnly: true, logger: slog.New(slog.DiscardHandler)}
	return l, l.open(func(files, unused []*file) error {
		l.files.Store(&files)
		l.leftover = unused // for Close
		if len(files) == 0 {
			return nil
		}
		last := files[len(files)-1]
		t, err := last.findTail(true)
		l.chain = t.after
		l.end.Store(uint64(last.position(t.end())))
		return err
	})
}

// open opens all files, and calls start with them.
func (l *Log) open(start func(files, unused []*file) error) error {
	files, unused, err := l.openFiles()
	if err == nil {
		err = start(files, unused)
	}
	if err != nil {
		for _, f := range slices.Concat(files, unused) {
			_ = f.Close()
		}
		return fmt.Errorf("log: %w", err)
	}
	return nil
}

// openFiles opens all files, reads their headers, and sorts them by position. Unused files have no records that count.
func (l *Log) openFiles() (files, unused []*file, err error) {
	names, err := filepath.Glob(filepath.Join(l.dir, "*"+suffix))
	if err != nil {
		return nil, nil, err
	}
	l.id = rand.Uint64()
	var unplaced []*file
	for _, name := range names {
		f, err := openFile(name)
		if err != nil {
			return files, unused, err
		}
		used, err := f.readHeader()
		switch {
		case !used:
			unused = append(unused, f)
		case err == nil && f.number == 0:
			unplaced = append(unplaced, f)
		default:
			files = append(files, f)
			if f.id != files[0].id {
				err = f.damage(0, errors.New("the file is of another log"))
			}
			l.id = f.id
		}
		if err != nil {
			return files, append(unused, unplaced...), err
		}
	}
	slices.SortFunc(files, func(a, b *file) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.count, b.count))
	})
	for i, f := range unplaced {
		if files, err = place(f, files); err != nil {
			return files, append(unused, unplaced[i:]...), err
		}
	}
	for i := len(files) - 2; i >= 0; i-- {
		if files[i].first == files[i+1].first {
			unused = append(unused, files[i])
			files = slices.Delete(files, i, i+1)
		}
	}
	return files, unused, nil
}

// start finds the end of the log and begins a new file there.
func (l *Log) start(files, unused []*file, size int64) error {
	count := uint64(0)
	for _, f := range slices.Concat(files, unused) {
		count = max(count, f.count)
	}
	t := tail{chain: chain{number: 1}, after: chain{number: 1}}
	first := Position(0)
	if len(files) > 0 {
		f := files[len(files)-1]
		var err error
		if t, err = f.findTail(true); err != nil {
			return err
		}
		if t.torn {
			l.logger.Warn("log: an incomplete last record is dropped; it was not acknowledged", "file", f.Name(), "offset", t.end())
		}
		first = f.position(t.cut)
	}
	// Unused files go first, so that a full disk has room for the new one.
	for _, f := range unused {
		if err := f.remove(); err != nil {
			return err
		}
	}
	l.spares = &spares{dir: l.dir, id: l.id, size: size, count: count}
	f, err := l.spares.create(max(min(size, firstSize), block+int64(len(t.last))+block), true)
	if err == nil {
		err = f.begin(header{chain: t.chain.sum, id: l.id, first: first, number: t.chain.number}, t.last)
	}
	l.chain, l.offset = t.after, block+int64(len(t.last))
	switch n := len(files) - 1; {
	case space.IsFull(err) && n >= 0: // Append writes to a new file once there is room
		l.logger.Warn("log: the disk is full: nothing can be appended until there is room for a file")
		f, l.offset, l.failed, err = files[n], t.end(), true, nil
	case err != nil:
	case n >= 0 && files[n].first == first:
		err = files[n].remove()
		files[n] = f
	default:
		if n >= 0 {
			err = os.Truncate(files[n].Name(), t.cut) // what is behind is in the new file, or was never acknowledged
		}
		files = append(files, f)
	}
	if err != nil {
		return err
	}
	l.files.Store(&files)
	l.end.Store(uint64(f.position(l.offset)))
	l.spares.start()
	return durable.SyncPath(l.dir)
}

// First returns the position from which on the log has records.
func (l *Log) First() Position {
	if files := *l.files.Load(); len(files) > 0 {
		return files[0].first
	}
	return l.End() // OpenReadOnly of a directory without files
}

// End returns the position of the next record.
func (l *Log) End() Position { return Position(l.end.Load()) }

// Close closes the log. What was appended is already on disk.
func (l *Log) Close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var errs []error
	if !l.readOnly {
		errs = append(errs, l.spares.close())
	}
	l.listing.Lock()
	defer l.listing.Unlock()
	for _, f := range slices.Concat(*l.files.Load(), l.leftover) {
		if err := f.Close(); !errors.Is(err, os.ErrClosed) { // remove has closed it
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
