package journal

import (
	"bytes"
	"hash/maphash"
	"slices"

	"mtagd/store"
)

// unflushed has the entries that may not be in the database yet, in the order of writing. Most are of event_ids, which take
// about 70 bytes each, without pointers that the garbage collector would follow.
type unflushed struct {
	bytes   []byte // key, value, key, value …
	entries []unflushedEntry
	newest  []uint32 // hash table: of each bucket, the number of its newest entry; 0: there is none
	seed    maphash.Seed

	// Entries up to these numbers. The first one has the number 1.
	flushing int // are being written to the database, or could not be written to it
	onDisk   int // are in the log; the others are of the transaction that is under way
}

type unflushedEntry struct {
	from       uint32 // where the key begins in bytes
	before     uint32 // the number of the bucket's entry before this one; 0: there is none
	key, value uint16 // lengths
	check      uint16 // bits of the key's hash, so that most other keys of the bucket need not be read
	deleted    bool
}

// buckets is how many buckets the hash table has. It takes 1 MB. With flushEntries, a third of the buckets have an entry.
const buckets = 256 << 10

// eventIDKey is a whole key of a remembered event_id.
type eventIDKey [1 + len(store.MerchantKey{}) + 16]byte

func isEventID(key []byte) bool {
	return len(key) == len(eventIDKey{}) && key[0] == prefixDedupe
}

func (u *unflushed) len() int { return len(u.entries) }

// at returns an entry, which must not be changed.
func (u *unflushed) at(number int) (key, value []byte, deleted bool) {
	e := &u.entries[number-1]
	b := u.bytes[e.from:]
	return b[:e.key:e.key], b[e.key : e.key+e.value : e.key+e.value], e.deleted
}

// bucket returns the place of a key's bucket in the hash table, and the check of the key's entries.
func (u *unflushed) bucket(key []byte) (newest *uint32, check uint16) {
	hash := maphash.Bytes(u.seed, key)
	return &u.newest[hash%buckets], uint16(hash >> 48)
}

// get returns the newest entry of a key with a number up to last; 0: there is none.
func (u *unflushed) get(key []byte, last int) (number int) {
	if len(u.entries) == 0 {
		return 0
	}
	newest, check := u.bucket(key)
	for number = int(*newest); number > 0; number = int(u.entries[number-1].before) {
		if number > last || u.entries[number-1].check != check {
			continue
		}
		if found, _, _ := u.at(number); bytes.Equal(found, key) {
			break
		}
	}
	return number
}

// set adds an entry.
func (u *unflushed) set(key, value []byte, deleted bool) {
	if u.newest == nil {
		u.newest, u.seed = make([]uint32, buckets), maphash.MakeSeed()
	}
	newest, check := u.bucket(key)
	u.entries = append(u.entries, unflushedEntry{uint32(len(u.bytes)), *newest, uint16(len(key)), uint16(len(value)), check, deleted})
	u.bytes = append(append(u.bytes, key...), value...)
	*newest = uint32(len(u.entries))
}

// cut drops the entries of the transaction that is under way, the last one first.
func (u *unflushed) cut() {
	for n := len(u.entries); n > u.onDisk; n-- {
		key, _, _ := u.at(n)
		newest, _ := u.bucket(key)
		e := u.entries[n-1]
		*newest = e.before
		u.entries, u.bytes = u.entries[:n-1], u.bytes[:e.from]
	}
}

// drop drops the entries that were flushed.
func (u *unflushed) drop() {
	if u.flushing == 0 {
		return
	}
	was := *u
	if u.entries, u.bytes = u.entries[:0], u.bytes[:0]; len(was.entries) > 2*flushEntries {
		u.entries, u.bytes = nil, nil // the database could not be written for a while
	}
	clear(u.newest)
	for n := was.flushing; n < len(was.entries); n++ {
		key, value, deleted := was.at(n + 1) // in place, it moves towards the front
		u.set(key, value, deleted)
	}
	u.onDisk, u.flushing = was.onDisk-was.flushing, 0
}

// knownLinks is a set of links that are on disk: an event that repeats one needs no look-up. Only the committer uses it.
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
	if k.buckets == nil {
		return // a start replays the log: nothing is known yet
	}
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
