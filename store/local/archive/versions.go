package archive

import (
	"sync"

	"mtagd/store/local/badgerdb"
)

// versions has the version of the last commit that was flushed, and the versions that are being read. Readers read as of that commit: while
// Badger writes a later one, they would see a part of it, and only what was flushed is in tables. Compactions keep what they need.
type versions struct {
	mu      sync.Mutex
	done    sync.Cond // a version is no longer read
	last    uint64    // of the last commit that was flushed
	readers map[uint64]int
	kept    uint64 // compactions keep what is needed to read as of this version, and later ones
}

// start sets that version.
func (v *versions) start(db *badgerdb.DB, last uint64) {
	v.done.L = &v.mu
	v.readers = map[uint64]int{}
	v.last, v.kept = last, last
	db.Keep(last)
}

// keep makes Badger keep the oldest version that is being read. The caller holds mu, or no other goroutine has the archive
// yet.
func (v *versions) keep(db *badgerdb.DB) {
	if oldest := v.oldest(); oldest != v.kept {
		v.kept = oldest
		db.Keep(oldest)
	}
}

func (v *versions) oldest() uint64 {
	oldest := v.last
	for version := range v.readers {
		oldest = min(oldest, version)
	}
	return oldest
}

// set notes that commits up to a version were flushed.
func (v *versions) set(db *badgerdb.DB, last uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = last
	v.keep(db)
}

// acquire returns that version, which can be read until release.
func (v *versions) acquire() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.readers[v.last]++
	return v.last
}

func (v *versions) release(db *badgerdb.DB, version uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.readers[version]--; v.readers[version] == 0 {
		delete(v.readers, version)
	}
	v.keep(db)
	v.done.Broadcast()
}

// wait waits until all readers read that version. The caller holds Archive.writing.
func (v *versions) wait() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for v.oldest() < v.last {
		v.done.Wait()
	}
}

// view reads the data as of the last flush.
func (a *Archive) view(read func(txn *badgerdb.Txn) error) error {
	version := a.versions.acquire()
	defer a.versions.release(a.db, version)
	return a.db.View(version, read)
}

// viewNewest reads the newest data that was flushed. The caller holds writing, or can use commits of which only a part is visible.
func (a *Archive) viewNewest(read func(txn *badgerdb.Txn) error) error {
	return a.db.View(newest, read)
}
