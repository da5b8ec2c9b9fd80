package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store"
)

// Reclaim removes the value logs that have only deleted chunks. Chunks are written and deleted in the order of receipt. So a log is
// dead if the next log begins with a chunk that Forget may have deleted, and no earlier chunk is left in it.
//
// Badger learns that from compactions, many logs later. Its garbage collection does not help: it moves deleted chunks to a new log,
// and behind damage it loses chunks that are not deleted. So Reclaim enters the logs in Badger's list of files that are removed when
// the last iterator is closed, and then closes one. Tables may still point into these logs for a while, below a tombstone.
func (j *Journal) Reclaim() error {
	j.collecting.Lock()
	defer j.collecting.Unlock()
	if j.snapshots > 0 {
		return nil // it may need what was deleted since
	}
	dead, err := j.deadLogs()
	if err != nil || len(dead) == 0 {
		return err
	}
	return catchFault(func() error {
		j.removeLogs(dead)
		return nil
	})
}

// removeLogs removes value logs. Badger has no method for that, so it uses Badger's private fields.
func (j *Journal) removeLogs(ids []uint32) {
	vlog := reflect.ValueOf(j.db).Elem().FieldByName("vlog")
	lock := (*sync.RWMutex)(unsafe.Pointer(vlog.FieldByName("filesLock").UnsafeAddr()))
	list := (*[]uint32)(unsafe.Pointer(vlog.FieldByName("filesToBeDeleted").UnsafeAddr()))
	lock.Lock()
	for _, id := range ids {
		if !slices.Contains(*list, id) {
			*list = append(*list, id)
		}
	}
	lock.Unlock()
	txn := j.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixFormat}}).Close()
}

// deadLogs returns the numbers of the value logs that have only deleted chunks.
func (j *Journal) deadLogs() (dead []uint32, err error) {
	forgotten, err := j.Forgotten()
	if err != nil || forgotten == 0 {
		return nil, err
	}
	var left []uint64 // chunks that were not deleted: they are damaged, or a kill came first
	if err := catchFault(func() error {
		return j.eachChunk(0, forgotten, func(at uint64, _ *badger.Item) bool {
			left = append(left, at)
			return true
		})
	}); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, err
	}
	var logs []uint32
	for _, f := range files {
		name, isLog := strings.CutSuffix(f.Name(), ".vlog")
		if id, err := strconv.ParseUint(name, 10, 32); isLog && err == nil {
			logs = append(logs, uint32(id))
		}
	}
	slices.Sort(logs)
	first := make([]uint64, len(logs))
	for i, id := range logs {
		if first[i], err = firstChunk(filepath.Join(j.dir, fmt.Sprintf("%06d.vlog", id))); err != nil {
			return nil, err
		}
		if i > 0 && first[i-1] != unknownChunk && first[i] < first[i-1] {
			first[i] = unknownChunk // Badger has moved it there
		}
	}
	end := uint64(unknownChunk) // all chunks of the log are before it
	for i, id := range slices.Backward(logs) {
		from := uint64(0) // no chunk of the log is before it: those of a commit are in any order
		if i > 0 && first[i-1] != unknownChunk {
			from = first[i-1]
		}
		if end <= forgotten+1 && !slices.ContainsFunc(left, func(seq uint64) bool { return seq >= from && seq < end }) {
			dead = append(dead, id)
		}
		end = min(end, first[i])
	}
	return dead, nil
}

// unknownChunk is greater than the number of any chunk.
const unknownChunk = math.MaxUint64

// firstChunk returns the number of the first chunk in a value log; unknownChunk when there is none or it is damaged.
func firstChunk(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	head := make([]byte, 2*(maxChunkBytes+store.MaxEventBytes))
	n, err := f.ReadAt(head, logHeader)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	key, size, ok := recordSize(head[:n])
	if !ok || crc32.Checksum(head[:size-crc32.Size], castagnoli) != binary.BigEndian.Uint32(head[size-crc32.Size:]) {
		return unknownChunk, nil
	}
	seq, err := parseChunkKey(y.ParseKey(key))
	if err != nil {
		return unknownChunk, nil
	}
	return seq, nil
}
