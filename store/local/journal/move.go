package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Keys passes the links and the remembered event_ids that were written after the commit since: of a link the identifier and the
// muid, of an event_id its 16 bytes and its value. Key and value stay as they are. It returns the last commit that it has read.
func (j *Journal) Keys(ctx context.Context, since uint64, use func(m codec.MerchantKey, key, value []byte) error) (version uint64, err error) {
	version = j.Version()
	err = catchFault(func() error {
		blocks := damagedBlocks.Load()
		if err := eachKeyIn(ctx, j.db, since, use); err != nil {
			return err
		}
		if damagedBlocks.Load() != blocks {
			return errDamagedBlock
		}
		return nil
	})
	return version, err
}

func eachKeyIn(ctx context.Context, db *badger.DB, since uint64, use func(m codec.MerchantKey, key, value []byte) error) error {
	txn := db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	for _, prefix := range []byte{prefixLink, prefixDedupe} {
		if err := eachKey(ctx, txn, prefix, since, use); err != nil {
			return err
		}
	}
	return nil
}

func eachKey(ctx context.Context, txn *badger.Txn, prefix byte, since uint64, use func(m codec.MerchantKey, key, value []byte) error) error {
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefix}, SinceTs: since})
	defer it.Close()
	for n := 0; ; n++ {
		if n == 0 {
			it.Rewind()
		} else {
			it.Next()
		}
		if !it.Valid() {
			return nil
		}
		if n%1000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		k := bytes.Clone(it.Item().Key()[1:])
		value, err := it.Item().ValueCopy(nil)
		if err != nil {
			return err
		}
		if err := use(codec.MerchantKey(k), k[len(codec.MerchantKey{}):], value); err != nil {
			return err
		}
	}
}

// PutLink writes a link. Of several with the same key, the one with the greatest version counts. muid must not change afterwards.
func (w *Writer) PutLink(m codec.MerchantKey, k store.IdentityKey, muid []byte, version uint64) error {
	return w.Put(codec.Entry{Key: appendLinkKey(nil, m, k), Value: muid, Version: version})
}

// PutEventID writes a remembered event_id, by the same rule as PutLink. The key is the one that Keys passes, and must not change
// afterwards. seen is when the event was received (µs since 1970).
func (w *Writer) PutEventID(m codec.MerchantKey, key []byte, seen int64, version uint64) error {
	return w.Put(codec.Entry{Key: slices.Concat([]byte{prefixDedupe}, m[:], key), Value: binary.BigEndian.AppendUint64(nil, uint64(seen)),
		Version: version, ExpiresAt: uint64(max(time.UnixMicro(seen).Add(dedupeTTL).Unix(), 1))})
}

// Flush writes what was put. Then Keys passes it.
func (w *Writer) Flush() error {
	err := w.batch.Flush()
	w.batch = w.db.NewManagedWriteBatch()
	return err
}

// Keys is Journal.Keys.
func (w *Writer) Keys(ctx context.Context, use func(m codec.MerchantKey, key, value []byte) error) error {
	return eachKeyIn(ctx, w.db, 0, use)
}

// PutForgotten notes that chunks up to a number are elsewhere. New chunks will have greater numbers. The version must be greater than
// those of all other entries.
func (w *Writer) PutForgotten(last, version uint64) error {
	version = max(version, last+1)
	return cmp.Or(
		w.Put(codec.Entry{Key: []byte{prefixFormat}, Value: []byte(formatForgotten), Version: version}),
		w.Put(codec.Entry{Key: []byte{prefixForgotten}, Value: binary.BigEndian.AppendUint64(nil, last), Version: version}))
}

// Pause refuses marks and links with an error, and returns when those that were accepted before are on disk. When ctx ends before
// that, they are accepted again.
func (j *Journal) Pause(ctx context.Context, refuse error) error {
	q := j.committer.queue
	q.Pause(refuse)
	for {
		if requests, bytes := q.Length(); requests == 0 && bytes == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			q.Pause(nil)
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// Resume ends a pause.
func (j *Journal) Resume() { j.committer.queue.Pause(nil) }
