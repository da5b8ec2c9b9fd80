package journal

import (
	"bytes"
	"context"
	"math"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store/local/codec"
)

// Keys passes the links and the remembered event_ids that were written after the commit since: of a link the identifier and the
// muid, of an event_id its 16 bytes and its value. Key and value stay as they are. It returns the last commit that it has read.
func (j *Journal) Keys(ctx context.Context, since uint64, use func(m codec.MerchantKey, key, value []byte) error) (version uint64, err error) {
	version = j.Version()
	err = catchFault(func() error {
		blocks := damagedBlocks.Load()
		txn := j.db.NewTransactionAt(math.MaxUint64, false)
		defer txn.Discard()
		for _, prefix := range []byte{prefixLink, prefixDedupe} {
			if err := eachKey(ctx, txn, prefix, since, use); err != nil {
				return err
			}
		}
		if damagedBlocks.Load() != blocks {
			return errDamagedBlock
		}
		return nil
	})
	return version, err
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
