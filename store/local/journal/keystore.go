package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/log"
)

// keyStore has the links and the remembered event_ids. Those that were written since the last flush are in memory, and in
// the log. All others are in a database.
type keyStore struct {
	db    *badgerdb.DB
	isNew bool // nothing was committed

	links linkCache  // the committer's
	known knownLinks // the committer's

	lost atomic.Pointer[[]badgerdb.Range] // the ranges of keys that damage has cost, until Refilled. It changes while no commit is under way

	mu     sync.RWMutex
	memory unflushed
}

// openKeys opens or creates the database in dir. lost are the ranges whose keys earlier damage has cost. It rebuilds a damaged
// database from what can be read, and calls rebuilding, with all ranges that are lost, before the new one replaces it.
func openKeys(dir string, logger *slog.Logger, lost []badgerdb.Range, rebuilding func(lost []badgerdb.Range) error) (*keyStore, error) {
	k, err := tryKeys(dir, logger)
	if damage := err; errors.Is(err, codec.ErrCorrupt) {
		if err = badgerdb.Rebuild(dir, logger, func(to string) (err error) {
			lost, err = copyKeys(context.Background(), dir, to, logger, damage, lost)
			return err
		}, func() error { return rebuilding(lost) }); err == nil {
			k, err = tryKeys(dir, logger)
		}
	}
	if err == nil {
		k.lost.Store(&lost)
	}
	return k, err
}

// tryKeys opens or creates the database in dir.
func tryKeys(dir string, logger *slog.Logger) (*keyStore, error) {
	db, err := badgerdb.Open(dir, logger)
	if err != nil {
		return nil, err
	}
	k := &keyStore{db: db}
	if err := k.checkFormat(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return k, nil
}

// copyKeys copies what can be read of a damaged database into a new one in the directory to. It adds what is lost to before.
func copyKeys(ctx context.Context, dir, to string, logger *slog.Logger, damage error, before []badgerdb.Range) (lost []badgerdb.Range, err error) {
	logger.Error("the database of links and event_ids is damaged: a new one is made of what can be read", "error", damage)
	keys, err := tryKeys(to, logger)
	if err != nil {
		return nil, err
	}
	w, err := newWriter(nil, keys)
	if err != nil {
		return nil, errors.Join(err, keys.db.Close())
	}
	found, err := repairKeys(ctx, dir, w, func(path string, err error) {
		logger.Error("a part of the links and event_ids cannot be read", "file", path, "error", err)
	})
	lost = slices.Clone(before)
	for _, r := range found {
		if !slices.ContainsFunc(lost, r.Equal) { // a rebuild that was cut off has found it before
			lost = append(lost, r)
		}
	}
	return lost, errors.Join(err, keys.db.Close())
}

// checkFormat refuses a database of another format version. The first commit writes the version into a new one. It reads all
// that a start needs: what is damaged is rebuilt (openKeys).
func (k *keyStore) checkFormat() error {
	found, has, err := k.db.Get([]byte{prefixFormat})
	if k.isNew = !has && k.db.MaxVersion() == 0; err == nil && !k.isNew && string(found) != Format {
		err = codec.UnknownFormat{Found: string(found), Known: Format}
	}
	if err == nil {
		_, err = k.number(prefixForgotten)
	}
	if err == nil {
		_, err = k.flushedUpTo()
	}
	return err
}

// get returns the newest value of a key that is on disk. The value must not be changed.
func (k *keyStore) get(key []byte) (value []byte, found bool, err error) {
	if value, deleted, found := k.unflushed(key, false); found {
		return value, !deleted, nil
	}
	// If a flush has ended since, it had no value of this key: what it writes stays in memory until it has ended.
	return k.read(key)
}

// getWritten is get with what the transaction that is under way has written. Only the committer calls it.
func (k *keyStore) getWritten(key []byte) (value []byte, found bool, err error) {
	if value, deleted, found := k.unflushed(key, true); found {
		return value, !deleted, nil
	}
	return k.read(key)
}

// cachedLink is getWritten for a link's key.
func (k *keyStore) cachedLink(key []byte) (value []byte, found bool, err error) {
	if value, deleted, found := k.unflushed(key, true); found {
		return value, !deleted, nil
	}
	return k.links.get(key, k.read)
}

// unflushed returns the newest entry of a key in memory: of those in the log, or of all.
func (k *keyStore) unflushed(key []byte, all bool) (value []byte, deleted, found bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	last := k.memory.onDisk
	if all {
		last = k.memory.len()
	}
	number := k.memory.get(key, last)
	if number == 0 {
		return nil, false, false
	}
	_, value, deleted = k.memory.at(number)
	return bytes.Clone(value), deleted, true
}

// isWritten reports whether the transaction that is under way has written a key.
func (k *keyStore) isWritten(key []byte) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.memory.get(key, k.memory.len()) > k.memory.onDisk
}

// read returns the value of a key in the database. It fails with errLost when the key may be lost.
func (k *keyStore) read(key []byte) (value []byte, found bool, err error) {
	lost := k.lost.Load()
	value, found, err = k.db.Get(key)
	// During Get, a refill may have ended, or a rebuilt database may have begun to count.
	if err == nil && !found && (isLost(lost, key) || isLost(k.lost.Load(), key)) {
		err = errLost
	}
	return value, found, notNow(err)
}

var errLost = fmt.Errorf("%w: this key may be lost, and is not written again yet", errNotNow)

// isLost reports whether a key that was not found may be lost until a refill writes it. A refill never writes former links.
func isLost(lost *[]badgerdb.Range, key []byte) bool {
	return lost != nil && (key[0] == prefixDedupe || key[0] == prefixLink || key[0] == prefixLinked) &&
		slices.ContainsFunc(*lost, func(r badgerdb.Range) bool { return r.Has(key) })
}

// orLost makes a getter for which a key that may be lost is not found.
func orLost(get getter) getter {
	return func(key []byte) (value []byte, found bool, err error) {
		if value, found, err = get(key); errors.Is(err, errLost) {
			err = nil
		}
		return value, found, err
	}
}

var errNotNow = store.Unavailable("links and event_ids cannot be read now")

// notNow makes damage of a table an error after which the client tries again: the table is rebuilt soon.
func notNow(err error) error {
	if damage, ok := errors.AsType[*badgerdb.Damage](err); ok {
		err = fmt.Errorf("%w: %w", errNotNow, damage)
	}
	return err
}

// set notes an entry of the transaction that is under way. Others see it after end.
func (k *keyStore) set(e codec.Entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.memory.set(e.Key, e.Value, e.Deleted)
	if e.Key[0] == prefixLink {
		k.links.drop(e.Key)
		k.known.drop(e.Key)
	}
}

// end ends a transaction. If its entries are in the log, others see them and its links are known; else end drops both.
func (k *keyStore) end(inLog bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !inLog {
		k.memory.cut()
	}
	for n := k.memory.onDisk + 1; n <= k.memory.len(); n++ {
		key, value, deleted := k.memory.at(n)
		if key[0] == prefixLink && !deleted && k.memory.get(key, k.memory.len()) == n {
			if l, err := parseLink(value); err == nil {
				k.known.add(key, store.MUID(l.muid), l.source == store.BySecret)
			}
		}
	}
	k.memory.onDisk = k.memory.len()
}

// inMemory returns how many entries are in memory.
func (k *keyStore) inMemory() int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.memory.len()
}

// eachUnflushed calls use with the newest entries of the keys in memory. They are valid until use returns.
func (k *keyStore) eachUnflushed(use func(key, value []byte)) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for n := range k.memory.onDisk {
		key, value, _ := k.memory.at(n + 1)
		if k.memory.get(key, k.memory.onDisk) == n+1 {
			use(key, value)
		}
	}
}

// begin takes what the next flush writes, if there is anything. No commit may be under way, and no other flush.
func (k *keyStore) begin() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.memory.flushing = k.memory.onDisk
	return k.memory.flushing > 0
}

// flush writes what begin has taken to the database, with this version; end is where the log ended then. After an error a
// later flush writes it. A merge may make a part of it readable before: all is in memory, too.
func (k *keyStore) flush(version uint64, end mark) error {
	k.mu.RLock()
	memory := k.memory // what is flushed does not change
	k.mu.RUnlock()
	expiresAt := uint64(time.Now().Add(dedupeTTL).Unix())
	put := func(key, value []byte, deleted bool) error {
		e := codec.Entry{Key: key, Value: value, Version: version, Deleted: deleted}
		if isEventID(key) && !deleted {
			e.ExpiresAt = expiresAt
		}
		return k.db.Put(e)
	}
	if memory.flushing > 0 {
		if err := k.db.Room(0); err != nil { // else what is put could not be flushed when the database is closed
			return err
		}
		if k.isNew {
			if err := put([]byte{prefixFormat}, []byte(Format), false); err != nil {
				return err
			}
		}
		for n := range memory.flushing {
			if err := put(memory.at(n + 1)); err != nil {
				return err
			}
		}
		if err := put([]byte{prefixFlushed}, end.encode(), false); err != nil {
			return err
		}
		k.isNew = false
	}
	if err := k.db.Flush(); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.memory.drop()
	return nil
}

// each calls use with all entries of the database whose keys begin with a prefix and that were
// written after the version since, in the order of the keys. use gets values of its own.
func (k *keyStore) each(ctx context.Context, prefix []byte, since uint64, use func(key, value []byte) error) error {
	return notNow(k.db.View(func(txn *badgerdb.Txn) error {
		return txn.Each(ctx, badgerdb.IteratorOptions{Prefix: prefix, Since: since}, func(e *codec.Entry) error {
			return use(bytes.Clone(e.Key), bytes.Clone(e.Value))
		})
	}))
}

// number returns the number that a key has; 0 when there is none.
func (k *keyStore) number(key byte) (uint64, error) {
	b, found, err := k.get([]byte{key})
	if err != nil || !found {
		return 0, err
	}
	if len(b) != 8 {
		return 0, codec.ErrCorrupt
	}
	return binary.BigEndian.Uint64(b), nil
}

// mark is a position in the log, and the checksum of the record before it (log.Before). A start may
// drop that record as torn, and others come in its place: then the mark does not count any more.
type mark struct {
	at  log.Position
	sum uint32 // 0: unknown
}

func (m mark) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, uint64(m.at)), m.sum)
}

// fits reports whether the log has the records before the mark, and not others in their place. Damage
// of them does not matter: the database has what they had, and it would be replaced by older entries
// if the rest of the records were read again.
func (m mark) fits(l *log.Log) bool {
	if m.at <= l.First() || m.at > l.End() {
		return false
	}
	sum, err := l.Before(m.at)
	if err != nil { // what is there is damaged, or in the middle of another record
		return mayBegin(l, m.at)
	}
	return sum == 0 || m.sum == 0 || sum == m.sum
}

// mayBegin reads the log up to a position before its end, and reports whether a record begins there:
// false when a sound one goes beyond it. It is true when damage hides that.
func mayBegin(l *log.Log, at log.Position) bool {
	errThere := errors.New("there")
	from := l.First()
	for from < at {
		err := l.Replay(from, func(begins log.Position, _ []byte) error {
			if from = begins; begins >= at {
				return errThere
			}
			return nil
		})
		damage, isDamage := errors.AsType[*log.Damage](err)
		switch {
		case !isDamage:
			return from == at
		case damage.Position <= at && at <= damage.Next:
			return true
		}
		from = damage.Next
	}
	return from == at
}

// flushedUpTo returns up to where the log was flushed; the zero mark when that is not known. Version 1.0.0 wrote no checksum.
func (k *keyStore) flushedUpTo() (m mark, err error) {
	b, found, err := k.get([]byte{prefixFlushed})
	switch {
	case err != nil || !found:
		return m, err
	case len(b) == 8:
		return mark{at: log.Position(binary.BigEndian.Uint64(b))}, nil
	case len(b) == 12:
		return mark{log.Position(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint32(b[8:])}, nil
	}
	return m, codec.ErrCorrupt
}
