package journal

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/migrate"
)

// Keys passes the links and the remembered event_ids that were written after the commit since, and some that were written
// before. It returns the last commit that it has read. It fails while some may be lost. A former link that is in use again is
// not passed as removed.
func (j *Journal) Keys(ctx context.Context, since uint64, use func(*migrate.Key) error) (version uint64, err error) {
	version = j.Version()
	if len(j.Lost()) > 0 {
		return 0, store.Unavailable("lost links and event_ids are not written again yet: go on when /readyz of the service names no damage")
	}
	if err := j.flush(); err != nil {
		return 0, err
	}
	if err := j.keys.eachLink(ctx, nil, since, func(m store.MerchantKey, l store.Link, isFormer bool) error {
		return use(&migrate.Key{Merchant: m, Key: l.Identifier[:], MUID: []byte(l.MUID), Source: l.Source, Former: isFormer})
	}); err != nil {
		return 0, err
	}
	return version, j.keys.each(ctx, []byte{prefixDedupe}, since, func(key, value []byte) error {
		m := store.MerchantKey(key[1:])
		seen, err := parseReceived(value)
		if err != nil {
			return err
		}
		return use(&migrate.Key{Merchant: m, Key: key[1+len(m):], Seen: seen})
	})
}

// PutKey writes a link or a remembered event_id. Of several links of one identifier, or event_ids
// with one key, the one with the greatest version counts.
func (w *Writer) PutKey(k *migrate.Key, version uint64) error {
	if !k.IsLink() {
		return w.Put(codec.Entry{Key: slices.Concat([]byte{prefixDedupe}, k.Merchant[:], k.Key), Value: binary.BigEndian.AppendUint64(nil, uint64(k.Seen)),
			Version: version, ExpiresAt: uint64(max(time.UnixMicro(k.Seen).Add(dedupeTTL).Unix(), 1))})
	}
	identifier := store.IdentityKey(k.Key)
	asFormer := codec.Entry{Key: appendFormerKey(nil, k.Merchant, identifier, k.MUID), Version: version}
	if k.Former {
		asFormer.Value = former(k.Source, k.MUID)
		return w.Put(asFormer)
	}
	asFormer.Deleted = true
	return cmp.Or(
		w.Put(codec.Entry{Key: appendLinkKey(nil, k.Merchant, identifier), Value: link{muid: k.MUID, source: k.Source}.append(nil), Version: version}),
		w.Put(asFormer))
}

// PutForgotten notes that the chunks up to last are not in the journal, because the archive has them. New chunks get greater
// numbers. The version must be greater than those of all other entries.
func (w *Writer) PutForgotten(last, version uint64) error {
	return w.Put(codec.Entry{Key: []byte{prefixForgotten}, Value: binary.BigEndian.AppendUint64(nil, last), Version: max(version, last+1)})
}

// Pause refuses marks and links with an error, and returns when those that were accepted before are on disk. When ctx ends
// before that, they are accepted again.
func (j *Journal) Pause(ctx context.Context, refuse error) error {
	q := j.committer.queue
	q.Pause(refuse)
	for {
		if requests, bytes := q.Length(); requests == 0 && bytes == 0 {
			return nil
		}
		if err := store.Sleep(ctx, time.Millisecond); err != nil {
			q.Pause(nil)
			return err
		}
	}
}

// Resume ends a pause.
func (j *Journal) Resume() { j.committer.queue.Pause(nil) }
