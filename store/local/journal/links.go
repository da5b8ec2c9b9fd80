package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/person"
)

// link is where an identifier leads: the value of a key 'L'. The zero value is that of an identifier that was never linked.
type link struct {
	muid   []byte
	source store.LinkSource
	former [store.BySecret]uint8 // how many former links of the identifier there are, of each source but BySecret
}

// linkMark begins a link. It is in no UTF-8. Earlier versions wrote only the muid; such a link is claimed.
const linkMark = 0xff

func (l link) append(b []byte) []byte {
	b = append(b, linkMark, byte(l.source))
	return append(append(b, l.former[:]...), l.muid...)
}

// parseLink reads a link. Its muid aliases b.
func parseLink(b []byte) (l link, err error) {
	const head = 2 + len(l.former)
	switch {
	case len(b) > 0 && b[0] != linkMark:
		l.muid = b
	case len(b) > head && b[1] <= byte(store.BySecret):
		l.source = store.LinkSource(b[1])
		copy(l.former[:], b[2:])
		l.muid = b[head:]
	}
	if len(l.muid) == 0 || len(l.muid) > store.MaxMUIDLength {
		err = fmt.Errorf("%w: link", codec.ErrCorrupt)
	}
	return l, err
}

func isLink(b []byte) bool {
	_, err := parseLink(b)
	return err == nil
}

// former returns the value of a key 'H'.
func former(source store.LinkSource, muid []byte) []byte {
	return append([]byte{byte(source)}, muid...)
}

func parseFormer(b []byte) (source store.LinkSource, muid []byte, err error) {
	if len(b) < 2 || b[0] > byte(store.BySecret) || len(b) > 1+store.MaxMUIDLength {
		return 0, nil, fmt.Errorf("%w: former link", codec.ErrCorrupt)
	}
	return store.LinkSource(b[0]), b[1:], nil
}

func isFormer(b []byte) bool {
	_, _, err := parseFormer(b)
	return err == nil
}

// readLink returns the link with a key.
func readLink(txn *badger.Txn, key []byte) (l link, found bool, err error) {
	found, err = lookup(txn, key, func(b []byte) (err error) {
		l, err = parseLink(bytes.Clone(b))
		return err
	})
	return l, found, err
}

// resolve returns the link of the first identifier that has one.
func resolve(txn *badger.Txn, m codec.MerchantKey, id *store.Identity) (l link, err error) {
	for _, k := range id.Keys() {
		var buf [64]byte
		l, found, err := readLink(txn, appendLinkKey(buf[:0], m, k))
		if found || err != nil {
			return l, err
		}
	}
	return link{}, nil
}

// link links the identifiers to the muid (store.Events, Record). It writes only links that are new or change.
func (t *transaction) link(m codec.MerchantKey, id *store.Identity) error {
	looked, isLinked, source := false, false, store.ByAnyone
	for _, k := range id.Keys() {
		key := t.arena.key(func(b []byte) []byte { return appendLinkKey(b, m, k) })
		now, _, err := readLink(t.txn, key)
		if err != nil {
			return err
		}
		same := string(now.muid) == string(id.MUID)
		if same && (id.Source != store.BySecret || now.source == store.BySecret) {
			continue
		}
		if !looked {
			if isLinked, err = t.isLinked(m, id.MUID); err != nil {
				return err
			}
			looked, source = true, person.SourceOf(id.Source, isLinked || !t.indexed)
		}
		next := now
		if !same {
			if next, err = t.replace(m, k, now, []byte(id.MUID)); err != nil {
				return err
			}
		}
		next.source = max(next.source, source)
		if err := t.set(badger.NewEntry(key, next.append(nil))); err != nil {
			return err
		}
	}
	if !looked || isLinked {
		return nil
	}
	return t.set(badger.NewEntry(t.arena.key(func(b []byte) []byte { return appendLinkedKey(b, m, store.MUIDKey(id.MUID)) }), []byte{1}))
}

// isLinked reports whether an identifier was linked to a muid before.
func (t *transaction) isLinked(m codec.MerchantKey, muid store.MUID) (bool, error) {
	var buf [64]byte
	return lookup(t.txn, appendLinkedKey(buf[:0], m, store.MUIDKey(muid)), func([]byte) error { return nil })
}

// replace makes a link a former one, and returns the one that replaces it. That was a former one itself if the identifier led to the muid
// before.
func (t *transaction) replace(m codec.MerchantKey, k store.IdentityKey, now link, muid []byte) (next link, err error) {
	next = link{muid: muid, former: now.former}
	key := appendFormerKey(nil, m, k, muid)
	found, err := lookup(t.txn, key, func(b []byte) error {
		next.source, _, err = parseFormer(b)
		return err
	})
	if err != nil {
		return next, err
	}
	if found {
		if next.source != store.BySecret && next.former[next.source] > 0 {
			next.former[next.source]--
		}
		if err := t.delete(key); err != nil {
			return next, err
		}
	}
	n := 0
	if now.source != store.BySecret {
		n = int(next.former[now.source])
	}
	if now.muid == nil || !person.KeepsFormer(now.source, n) {
		return next, nil
	}
	if now.source != store.BySecret {
		next.former[now.source]++
	}
	return next, t.set(badger.NewEntry(appendFormerKey(nil, m, k, now.muid), former(now.source, now.muid)))
}

// LinksOf returns the links of an identifier, former ones included.
func (j *Journal) LinksOf(ctx context.Context, m codec.MerchantKey, k store.IdentityKey) (links []store.Link, err error) {
	for _, prefix := range []byte{prefixLink, prefixFormer} {
		if err := j.eachOf(ctx, slices.Concat([]byte{prefix}, m[:], k[:]), nil, func(item *badger.Item) error {
			l, err := itemLink(item)
			links = append(links, l)
			return err
		}); err != nil {
			return nil, err
		}
	}
	return links, nil
}

// Links returns the links of a merchant that belong to somebody, up to a number of them, the former ones last. from is nil, or the next
// that the call before has returned. next is nil when there are no more.
func (j *Journal) Links(ctx context.Context, m codec.MerchantKey, from []byte, most int, belongs func(store.Link) bool) (links []store.Link, next []byte, err error) {
	errMore := errors.New("there are more links")
	for _, prefix := range []byte{prefixLink, prefixFormer} {
		if from != nil && from[0] != prefix {
			continue
		}
		err := j.eachOf(ctx, append([]byte{prefix}, m[:]...), from, func(item *badger.Item) error {
			l, err := itemLink(item)
			if err != nil || !belongs(l) {
				return err
			}
			if len(links) == most {
				next = item.KeyCopy(nil)
				return errMore
			}
			links = append(links, l)
			return nil
		})
		if errors.Is(err, errMore) {
			return links, next, nil
		}
		if err != nil {
			return nil, nil, err
		}
		from = nil
	}
	return links, nil, nil
}

// itemLink reads an item that is a link or a former one.
func itemLink(item *badger.Item) (of store.Link, err error) {
	err = item.Value(func(b []byte) error {
		k, l, err := parseAnyLink(item.Key(), b)
		of = store.Link{Identifier: k, MUID: store.MUID(l.muid), Source: l.source}
		return err
	})
	return of, err
}

// parseAnyLink reads a link or a former one.
func parseAnyLink(key, value []byte) (k store.IdentityKey, l link, err error) {
	at := 1 + len(codec.MerchantKey{})
	if len(key) < at+len(k) {
		return k, l, fmt.Errorf("%w: key of a link", codec.ErrCorrupt)
	}
	copy(k[:], key[at:])
	if key[0] == prefixFormer {
		l.source, l.muid, err = parseFormer(value)
	} else {
		l, err = parseLink(value)
	}
	return k, l, err
}

// removeLink removes a link, or a former one, unless the identifier was linked otherwise since.
func (t *transaction) removeLink(m codec.MerchantKey, l store.Link) error {
	key := appendLinkKey(nil, m, l.Identifier)
	now, found, err := readLink(t.txn, key)
	if err != nil {
		return err
	}
	if found && string(now.muid) == string(l.MUID) {
		err = t.delete(key)
	}
	return errors.Join(err, t.delete(appendFormerKey(nil, m, l.Identifier, []byte(l.MUID))))
}

// indexedAtOnce is how many links are put into the index of muids in one commit, at most.
const indexedAtOnce = 10_000

// indexLinks puts all links of earlier versions into the index of muids. Until it is complete, no link of ByCookie is trusted. It goes on
// from the beginning after a kill.
func (j *Journal) indexLinks(ctx context.Context) error {
	var muids [][]byte // keys of the index
	write := func() error {
		err := j.committer.edit(func(t *transaction) error {
			for _, key := range muids {
				if err := t.set(badger.NewEntry(key, []byte{1})); err != nil {
					return err
				}
			}
			return nil
		})
		muids = nil
		return err
	}
	for _, prefix := range []byte{prefixLink, prefixFormer} {
		if err := j.eachOf(ctx, []byte{prefix}, nil, func(item *badger.Item) error {
			return item.Value(func(b []byte) error {
				_, l, err := parseAnyLink(item.Key(), b)
				if err != nil {
					return err
				}
				muids = append(muids, appendLinkedKey(nil, codec.MerchantKey(item.Key()[1:]), store.MUIDKey(l.muid)))
				if len(muids) < min(indexedAtOnce, int(j.db.MaxBatchCount()/2)) {
					return nil
				}
				return write()
			})
		}); err != nil {
			return err
		}
	}
	if err := write(); err != nil {
		return err
	}
	if err := j.committer.edit(func(t *transaction) error { return t.set(badger.NewEntry([]byte{prefixIndexed}, []byte{1})) }); err != nil {
		return err
	}
	j.committer.indexed.Store(true)
	return nil
}

// startIndex makes sure that all links are in the index of muids: at once if there are none, else in the background.
func (j *Journal) startIndex() error {
	txn := j.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	indexed, err := lookup(txn, []byte{prefixIndexed}, func([]byte) error { return nil })
	if err != nil || indexed {
		j.committer.indexed.Store(indexed)
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	j.indexing.stop = stop
	hasLinks := errors.New("there are links")
	err = j.eachOf(ctx, []byte{prefixLink}, nil, func(*badger.Item) error { return hasLinks })
	if err == nil {
		return j.indexLinks(ctx)
	}
	if !errors.Is(err, hasLinks) {
		return err
	}
	j.indexing.Go(func() {
		if err := j.indexLinks(ctx); err != nil && ctx.Err() == nil {
			j.log.log.Error("links of an earlier version are not indexed: until the next start, links by the cookie of the tag host count as claimed", "error", err)
		}
	})
	return nil
}
