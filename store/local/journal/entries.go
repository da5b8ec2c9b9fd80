package journal

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// entries are the newest entries of some keys, in memory. Most are of event_ids: they take about 80 bytes each, and no
// pointer that the garbage collector would follow.
type entries struct {
	eventIDs map[eventIDKey]int64 // when the event was received (µs since 1970), or deletedID
	others   map[string]keyed
}

// eventIDKey is a whole key of a remembered event_id.
type eventIDKey [1 + len(codec.MerchantKey{}) + 16]byte

const deletedID = math.MinInt64

// keyed is the value of a key, or says that the key was deleted.
type keyed struct {
	value     []byte // it never changes
	expiresAt uint64 // s since 1970; 0: never
	deleted   bool
}

func newEntries() entries { return entries{map[eventIDKey]int64{}, map[string]keyed{}} }

func isEventID(key []byte) bool {
	return len(key) == len(eventIDKey{}) && key[0] == prefixDedupe
}

// set notes an entry. Of an event_id it keeps the time of receipt: the entry expires dedupeTTL after it was written to the
// database.
func (e entries) set(key []byte, v keyed) {
	switch {
	case isEventID(key) && v.deleted:
		e.eventIDs[eventIDKey(key)] = deletedID
	case isEventID(key) && len(v.value) == 8:
		e.eventIDs[eventIDKey(key)] = int64(binary.BigEndian.Uint64(v.value))
	default:
		e.others[string(key)] = v
	}
}

func (e entries) get(key []byte) (v keyed, found bool) {
	if isEventID(key) {
		received, found := e.eventIDs[eventIDKey(key)]
		if !found || received == deletedID {
			return keyed{deleted: true}, found
		}
		return keyed{value: binary.BigEndian.AppendUint64(nil, uint64(received))}, true
	}
	v, found = e.others[string(key)]
	return v, found
}

func (e entries) len() int { return len(e.eventIDs) + len(e.others) }

// add adds newer entries.
func (e entries) add(newer entries) {
	maps.Copy(e.eventIDs, newer.eventIDs)
	maps.Copy(e.others, newer.others)
}

func (e entries) clone() entries { return entries{maps.Clone(e.eventIDs), maps.Clone(e.others)} }

func (e entries) clear() {
	clear(e.eventIDs)
	clear(e.others)
}

// each calls use with the entries, in any order. They are valid until use returns.
func (e entries) each(use func(key []byte, v keyed) error) error {
	expiresAt := uint64(time.Now().Add(dedupeTTL).Unix())
	var key, value []byte
	for id, received := range e.eventIDs {
		key = append(key[:0], id[:]...)
		v := keyed{deleted: true}
		if received != deletedID {
			value = binary.BigEndian.AppendUint64(value[:0], uint64(received))
			v = keyed{value: value, expiresAt: expiresAt}
		}
		if err := use(key, v); err != nil {
			return err
		}
	}
	for name, v := range e.others {
		key = append(key[:0], name...)
		if err := use(key, v); err != nil {
			return err
		}
	}
	return nil
}

// knownLinks is a set of links that are on disk: an event that repeats one of them needs no look-up. Only the committer uses it.
type knownLinks struct {
	seed    maphash.Seed
	buckets [][knownInBucket]uint64 // by the key of the link, the newest one first; 0: there is none
	b       []byte
}

// The links of half a million visitors take 4 MB. A bucket is a cache line.
const (
	knownBuckets  = 64 << 10
	knownInBucket = 8
)

// place returns the bucket of a key, and 16 bits by which its links are found there to be dropped.
func (k *knownLinks) place(key []byte) (bucket *[knownInBucket]uint64, tag uint64) {
	if k.buckets == nil {
		k.seed, k.buckets = maphash.MakeSeed(), make([][knownInBucket]uint64, knownBuckets)
	}
	hash := maphash.Bytes(k.seed, key)
	return &k.buckets[hash%knownBuckets], hash>>48 | 1
}

// find returns the bucket of a link, and what the bucket has of it: 48 bits of a hash which nobody can foresee, and the tag.
func (k *knownLinks) find(key []byte, muid store.MUID, bySecret bool) (bucket *[knownInBucket]uint64, link uint64) {
	bucket, tag := k.place(key)
	k.b = append(append(k.b[:0], key...), 0)
	if bySecret {
		k.b[len(key)] = 1
	}
	k.b = append(k.b, muid...)
	return bucket, maphash.Bytes(k.seed, k.b)<<16 | tag
}

// has reports whether the link with a key leads to a muid, and if bySecret is true, by the merchant's secret.
func (k *knownLinks) has(key []byte, muid store.MUID, bySecret bool) bool {
	bucket, link := k.find(key, muid, bySecret)
	return slices.Contains(bucket[:], link)
}

func (k *knownLinks) add(key []byte, muid store.MUID, bySecret bool) {
	bucket, link := k.find(key, muid, bySecret)
	copy(bucket[1:], bucket[:])
	bucket[0] = link
}

// drop drops a key, which gets another value.
func (k *knownLinks) drop(key []byte) {
	bucket, tag := k.place(key)
	for i, link := range bucket {
		if uint16(link) == uint16(tag) {
			bucket[i] = 0
		}
	}
}

// linkCache has links that the committer has read from the database: most are of identifiers that come without a muid.
// People often send several events in a row. Only the committer uses it.
type linkCache struct {
	young, old map[string]cachedLink
}

type cachedLink struct {
	value []byte
	found bool
}

// cachedLinks is how many links young has before it becomes old. All of them take about 5 MB.
const cachedLinks = 16 << 10

// get returns the value of a link's key, and reads it when it is not in the cache.
func (c *linkCache) get(key []byte, read getter) (value []byte, found bool, err error) {
	l, has := c.young[string(key)]
	if !has {
		if l, has = c.old[string(key)]; !has {
			if l.value, l.found, err = read(key); err != nil {
				return nil, false, err
			}
		}
		if len(c.young) >= cachedLinks || c.young == nil {
			c.young, c.old = map[string]cachedLink{}, c.young
		}
		c.young[string(key)] = l
	}
	return l.value, l.found, nil
}

// drop drops a key, which gets another value.
func (c *linkCache) drop(key []byte) {
	delete(c.young, string(key))
	delete(c.old, string(key))
}
