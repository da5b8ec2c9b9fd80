package journal

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// KeyReader gets links and remembered event_ids. What it gets stays as it is.
type KeyReader struct {
	Link func(m codec.MerchantKey, l store.Link, former bool) error
	// EventID gets the 16 bytes of an event_id's key, and when the event was received (µs since 1970).
	EventID func(m codec.MerchantKey, key []byte, seen int64) error
}

// Keys passes the links and the remembered event_ids that were written after the commit since, and some that were written
// before. It returns the last commit that it has read. It fails while some may be lost. A former link that is in use again is not passed as removed.
func (j *Journal) Keys(ctx context.Context, since uint64, use KeyReader) (version uint64, err error) {
	version = j.Version()
	if len(j.Lost()) > 0 {
		return 0, store.Unavailable("lost links and event_ids are not written again yet: go on when /readyz of the service names no damage")
	}
	if err := j.flush(); err != nil {
		return 0, err
	}
	return version, j.keys.pass(ctx, since, use)
}

func (k *keyStore) pass(ctx context.Context, since uint64, use KeyReader) error {
	if err := k.eachLink(ctx, nil, since, use.Link); err != nil {
		return err
	}
	return k.each(ctx, []byte{prefixDedupe}, since, func(key, value []byte) error {
		m := codec.MerchantKey(key[1:])
		seen, err := parseReceived(value)
		if err != nil {
			return err
		}
		return use.EventID(m, key[1+len(m):], seen)
	})
}

// PutLink writes a link. Of several of the same identifier, the one with the greatest version counts.
func (w *Writer) PutLink(m codec.MerchantKey, l store.Link, version uint64) error {
	muid := []byte(l.MUID)
	return cmp.Or(
		w.Put(codec.Entry{Key: appendLinkKey(nil, m, l.Identifier), Value: link{muid: muid, source: l.Source}.append(nil), Version: version}),
		w.Put(codec.Entry{Key: appendFormerKey(nil, m, l.Identifier, muid), Deleted: true, Version: version}))
}

// PutFormer writes a link that another one has replaced, by the same rule as PutLink.
func (w *Writer) PutFormer(m codec.MerchantKey, l store.Link, version uint64) error {
	muid := []byte(l.MUID)
	return w.Put(codec.Entry{Key: appendFormerKey(nil, m, l.Identifier, muid), Value: former(l.Source, muid), Version: version})
}

// PutEventID writes a remembered event_id, by the same rule as PutLink. The key is the one that Keys passes, and must not
// change afterwards. seen is when the event was received (µs since 1970).
func (w *Writer) PutEventID(m codec.MerchantKey, key []byte, seen int64, version uint64) error {
	return w.Put(codec.Entry{Key: slices.Concat([]byte{prefixDedupe}, m[:], key), Value: binary.BigEndian.AppendUint64(nil, uint64(seen)),
		Version: version, ExpiresAt: uint64(max(time.UnixMicro(seen).Add(dedupeTTL).Unix(), 1))})
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
