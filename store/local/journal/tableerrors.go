package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Badger ignores two errors of tables, and loses data by that:
//
//   - A block whose checksum is wrong counts as the end of its table. A read then finds nothing. A compaction leaves out the
//     rest of the table, and deletes the table.
//   - When a compaction cannot write or sync a new table, it leaves the table out, and deletes those it was made from.
//
// Badger has no hooks for them, but variables that serve as hooks. A read that met a damaged block fails. A compaction
// stops: it waits for the end of the process, which keeps the tables that it would delete. No more events are accepted
// then, and what is there can be read. At the next start precheck checks all tables, and names the one that is damaged.
func init() {
	y.ErrChecksumMismatch = checksumMismatch{}
	sync := syncManifest
	syncManifest = func(f *os.File) error {
		err := sync(f)
		path, linkErr := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		if a, found := allocators.Load(filepath.Dir(path)); found && linkErr == nil {
			a.(*allocator).beforeDeletion(err)
		}
		return err
	}
}

// syncManifest is the variable by which Badger syncs MANIFEST. After that it deletes the tables that it has replaced.
//
//go:linkname syncManifest github.com/dgraph-io/badger/v4.syncFunc
var syncManifest func(f *os.File) error

// damagedBlocks counts reads of damaged blocks in any journal of the process.
var damagedBlocks atomic.Int64

var errDamagedBlock = fmt.Errorf("a table is damaged: %w", codec.ErrCorrupt)

// get is txn.Get, except that it fails when it has met a damaged block, in which the key may be.
func get(txn *badger.Txn, key []byte) (*badger.Item, error) {
	damaged := damagedBlocks.Load()
	item, err := txn.Get(key)
	if damagedBlocks.Load() != damaged {
		return nil, errDamagedBlock
	}
	return item, err
}

// catchFault calls do, which reads from files that Badger maps. When the disk cannot be read, that is a memory fault, which
// would end the process. catchFault makes it an error: the next read may succeed.
func catchFault(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if _, isFault := p.(interface{ Addr() uintptr }); !isFault {
			panic(p)
		}
		err = fmt.Errorf("%w: events/: %v", store.Unavailable("the disk cannot be read"), p)
	}()
	return do()
}

// checksumMismatch is Badger's error for a wrong checksum. Badger formats it at once, in the goroutine that has read the
// block.
type checksumMismatch struct{}

func (checksumMismatch) Error() string {
	stack := make([]byte, 16<<10)
	calls := string(stack[:runtime.Stack(stack, false)])
	if !strings.Contains(calls, "verifyCheckSum") {
		return "checksum mismatch" // of a value, or while a table is opened: Badger returns these errors
	}
	damagedBlocks.Add(1)
	if strings.Contains(calls, "subcompact") {
		allocators.Range(func(_, a any) bool {
			a.(*allocator).fail("a table of events is damaged")
			return true
		})
		select {}
	}
	return "checksum mismatch"
}

// fail makes the journal refuse events, and Close leave Badger open.
func (a *allocator) fail(meaning string) {
	if a.failed.CompareAndSwap(nil, &meaning) {
		a.log.Error("a table cannot be read or written: no more events are accepted. Restart the service", "reason", meaning)
	}
}

// failure returns an error after a call of fail, else nil.
func (a *allocator) failure() error {
	if meaning := a.failed.Load(); meaning != nil {
		return errors.New(*meaning)
	}
	return nil
}

// noteTable opens a table that Badger is about to write. A sync of this descriptor reports every error of writing the table
// since, even one that Badger has met before and ignored.
func (a *allocator) noteTable(path string) {
	f, err := os.Open(path)
	if err != nil {
		return // the file system refuses to open files; Badger will notice too
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.newTables = append(a.newTables, f)
}

// beforeDeletion syncs the new tables. When one of them or MANIFEST could not be synced, it never returns.
func (a *allocator) beforeDeletion(err error) {
	if a.isOpening() && err != nil {
		return // Badger returns the error
	}
	a.mu.Lock()
	tables := a.newTables
	a.newTables = nil
	a.mu.Unlock()
	for _, f := range tables {
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		return
	}
	a.fail("a table in " + a.dir + " cannot be written: " + err.Error())
	select {}
}
