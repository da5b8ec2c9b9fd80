package journal

import (
	"context"
	"fmt"
	"slices"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/rules"
)

// link is where an identifier leads: the value of a key 'L'. The zero value is that of an identifier that was never linked.
type link struct {
	muid   []byte
	source store.LinkSource
	former [store.BySecret]uint8 // how many former links of the identifier there are, of each source but BySecret
}

// cookies is how many links ByCookie the identifier has, this one included.
func (l link) cookies() int {
	n := int(l.former[store.ByCookie])
	if l.muid != nil && l.source == store.ByCookie {
		n++
	}
	return n
}

// linkMark is the first byte of a link.
const linkMark = 0xff

func (l link) append(b []byte) []byte {
	b = append(b, linkMark, byte(l.source))
	return append(append(b, l.former[:]...), l.muid...)
}

// parseLink reads a link. Its muid aliases b.
func parseLink(b []byte) (l link, err error) {
	const head = 2 + len(l.former)
	if len(b) > head && b[0] == linkMark && b[1] <= byte(store.BySecret) {
		l.source = store.LinkSource(b[1])
		copy(l.former[:], b[2:])
		l.muid = b[head:]
	}
	if len(l.muid) == 0 || len(l.muid) > store.MaxMUIDLength {
		err = fmt.Errorf("%w: link", codec.ErrCorrupt)
	}
	return l, err
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

// getter returns the value of a key, which must not be changed.
type getter func(key []byte) (value []byte, found bool, err error)

// readLink returns the link with a key.
func readLink(get getter, key []byte) (l link, found bool, err error) {
	b, found, err := get(key)
	if found && err == nil {
		l, err = parseLink(b)
	}
	return l, found, err
}

// resolve returns the link of the first identifier that has one.
func resolve(get getter, m store.MerchantKey, id *store.Identity) (l link, err error) {
	for _, k := range id.Keys() {
		var buf [64]byte
		l, found, err := readLink(get, appendLinkKey(buf[:0], m, k))
		if found || err != nil {
			return l, err
		}
	}
	return link{}, nil
}

// link links the identifiers to the muid (store.Events, Record). It writes only links that are new or change.
func (t *transaction) link(m store.MerchantKey, id *store.Identity) error {
	looked, isLinked, bySecret := false, false, id.Source == store.BySecret
	for _, k := range id.Keys() {
		t.linkKey = appendLinkKey(t.linkKey[:0], m, k)
		key := t.linkKey
		if t.keys.known.has(key, id.MUID, bySecret) {
			continue
		}
		now, _, err := readLink(t.keys.getWritten, key)
		if err != nil {
			return err
		}
		same := string(now.muid) == string(id.MUID)
		if same && (!bySecret || now.source == store.BySecret) {
			if !t.keys.isWritten(key) { // what this transaction has written is not on disk yet
				t.keys.known.add(key, id.MUID, bySecret)
			}
			continue
		}
		if !looked {
			t.scratch = appendLinkedKey(t.scratch[:0], m, store.MUIDKey(id.MUID))
			if _, isLinked, err = t.keys.getWritten(t.scratch); err != nil {
				return err
			}
			if looked = true; !isLinked { // before the links: if one of them fails, a stranger must not be the first
				t.set(t.scratch, []byte{1}, 0)
			}
		}
		next := now
		if !same {
			if next, err = t.replace(m, k, now, []byte(id.MUID)); err != nil {
				return err
			}
		}
		next.source = rules.SourceOfLink(id.Source, next.source, isLinked, now.cookies())
		t.set(key, next.append(nil), 0)
	}
	return nil
}

// replace makes a link a former one, and returns the next one: a former one, if the identifier led to the muid before.
func (t *transaction) replace(m store.MerchantKey, k store.IdentityKey, now link, muid []byte) (next link, err error) {
	next = link{muid: muid, former: now.former}
	key := appendFormerKey(nil, m, k, muid)
	b, found, err := t.keys.getWritten(key)
	if err != nil {
		return next, err
	}
	if found {
		if next.source, _, err = parseFormer(b); err != nil {
			return next, err
		}
		if next.source != store.BySecret && next.former[next.source] > 0 {
			next.former[next.source]--
		}
		t.delete(key)
	}
	if now.muid == nil || !rules.KeepsFormerLink(now.source, int(next.former[store.ByAnyone])) {
		return next, nil
	}
	if now.source != store.BySecret {
		next.former[now.source]++
	}
	t.set(appendFormerKey(nil, m, k, now.muid), former(now.source, now.muid), 0)
	return next, nil
}

// LinksOf returns the links of an identifier, the former ones last.
func (j *Journal) LinksOf(ctx context.Context, m store.MerchantKey, k store.IdentityKey) ([]store.Link, error) {
	return j.findLinks(ctx, slices.Concat(m[:], k[:]), func(store.Link) bool { return true })
}

// Links returns the links of a merchant that belong to somebody, the former ones last.
func (j *Journal) Links(ctx context.Context, m store.MerchantKey, belongs func(store.Link) bool) ([]store.Link, error) {
	return j.findLinks(ctx, m[:], belongs)
}

// findLinks returns the links that belong to somebody. of is what their keys have in common behind
// the first byte. It fails with errLost when some of them may be lost.
func (j *Journal) findLinks(ctx context.Context, of []byte, belongs func(store.Link) bool) (links []store.Link, err error) {
	lost := j.Lost()
	if err := j.flush(); err != nil {
		return nil, err
	}
	err = j.keys.eachLink(ctx, of, 0, func(_ store.MerchantKey, l store.Link, _ bool) error {
		if belongs(l) {
			links = append(links, l)
		}
		return nil
	})
	key := append([]byte{prefixLink}, of...)
	if err == nil && slices.ContainsFunc(slices.Concat(lost, j.Lost()), func(r badgerdb.Range) bool { return r.Meets(key) }) { // as in read
		return nil, errLost
	}
	return links, err
}

// eachLink calls use with the links of the database that were written after the version since, the
// former ones last. of is what their keys have in common behind the first byte.
func (k *keyStore) eachLink(ctx context.Context, of []byte, since uint64, use func(m store.MerchantKey, l store.Link, former bool) error) error {
	for _, prefix := range []byte{prefixLink, prefixFormer} {
		if err := k.each(ctx, append([]byte{prefix}, of...), since, func(key, value []byte) error {
			m, l, err := parseAnyLink(key, value)
			if err != nil {
				return err
			}
			return use(m, l, prefix == prefixFormer)
		}); err != nil {
			return err
		}
	}
	return nil
}

// parseAnyLink reads a link or a former one.
func parseAnyLink(key, value []byte) (m store.MerchantKey, l store.Link, err error) {
	at := 1 + len(m)
	if len(key) < at+len(l.Identifier) {
		return m, l, fmt.Errorf("%w: key of a link", codec.ErrCorrupt)
	}
	copy(m[:], key[1:])
	copy(l.Identifier[:], key[at:])
	of := link{}
	if key[0] == prefixFormer {
		of.source, of.muid, err = parseFormer(value)
	} else {
		of, err = parseLink(value)
	}
	l.MUID, l.Source = store.MUID(of.muid), of.source
	return m, l, err
}

// removeLink removes a link, or a former one, unless the identifier was linked otherwise since.
func (t *transaction) removeLink(m store.MerchantKey, l store.Link) error {
	key := appendLinkKey(nil, m, l.Identifier)
	now, found, err := readLink(t.keys.getWritten, key)
	if err != nil {
		return err
	}
	if found && string(now.muid) == string(l.MUID) {
		t.delete(key)
	}
	t.delete(appendFormerKey(nil, m, l.Identifier, []byte(l.MUID)))
	return nil
}
