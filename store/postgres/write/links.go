package write

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
)

// linkKey is an identifier of a merchant's user.
type linkKey struct {
	merchant uuid.UUID
	key      store.IdentityKey
}

// link is where an identifier leads. The zero value is that of an identifier that was never linked.
type link struct {
	muid   store.MUID
	source store.LinkSource
	held   [store.BySecret + 1]int // links of the identifier in held_link, by source; BySecret is not counted before
}

// links are those of identifiers.
type links map[linkKey]link

// readLinks looks up links of one merchant.
const readLinks = `SELECT l.merchant, l.key, l.muid, coalesce(h.source, 0),
	(SELECT count(*) FROM held_link c WHERE c.merchant = $1 AND c.key = l.key AND c.source = 0),
	(SELECT count(*) FROM held_link c WHERE c.merchant = $1 AND c.key = l.key AND c.source = 1)
	FROM link l LEFT JOIN held_link h ON h.merchant = $1 AND h.key = l.key AND h.muid = l.muid WHERE l.merchant = $1 AND l.key = ANY($2)`

// reading returns where a row of readLinks is read into, and what adds its link.
func (l links) reading() (into []any, add func() error) {
	var k linkKey
	var key, muid []byte
	var found link
	return []any{&k.merchant, &key, &muid, &found.source, &found.held[store.ByAnyone], &found.held[store.ByCookie]}, func() error {
		k.key, found.muid = store.IdentityKey(key), store.MUID(muid)
		l[k] = found
		return nil
	}
}

// ofFirst returns the link of the first identifier that has one.
func (l links) ofFirst(merchant uuid.UUID, who *store.Identity) link {
	for _, k := range who.Keys() {
		if found := l[linkKey{merchant, k}]; found.muid != "" {
			return found
		}
	}
	return link{}
}

func merchantsOf(keys []linkKey) []uuid.UUID {
	return conn.Map(keys, func(k *linkKey) uuid.UUID { return k.merchant })
}

func keysIn(keys []linkKey) [][]byte {
	return conn.Map(keys, func(k *linkKey) []byte { return k.key[:] })
}

func compareLinks(a, b linkKey) int {
	return cmp.Or(conn.CompareUUIDs(a.merchant, b.merchant), bytes.Compare(a.key[:], b.key[:]))
}

// muidKey is a muid that an identifier was linked to: the beginning of store.MUIDKey.
type muidKey struct {
	merchant uuid.UUID
	hash     [16]byte
}

func newMUIDKey(merchant uuid.UUID, muid store.MUID) muidKey {
	hash := store.MUIDKey(muid)
	return muidKey{merchant, [16]byte(hash[:16])}
}

// heldKey is an identifier, and a muid that it was linked to.
type heldKey struct {
	linkKey
	muid store.MUID
}

// heldLinks are rows of held_link.
type heldLinks map[heldKey]store.LinkSource

const (
	writeLinks = `INSERT INTO link (merchant, key, muid) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bytea[]) ORDER BY 1, 2
		ON CONFLICT (merchant, key) DO UPDATE SET muid = excluded.muid WHERE link.muid <> excluded.muid`

	readHeldLinks = `SELECT h.key, h.muid, h.source FROM unnest($2::bytea[], $3::bytea[]) AS w(key, muid)
		JOIN held_link h ON h.merchant = $1 AND h.key = w.key AND h.muid = w.muid`

	writeHeldLinks = `INSERT INTO held_link (merchant, key, muid, source) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::smallint[])
		ON CONFLICT (merchant, key, muid) DO UPDATE SET source = excluded.source WHERE held_link.source < excluded.source`

	readLinkedMUIDs = `SELECT hash FROM linked_muid WHERE merchant = $1 AND hash = ANY($2)`

	writeLinkedMUIDs = `INSERT INTO linked_muid (merchant, hash) SELECT * FROM unnest($1::uuid[], $2::bytea[]) ON CONFLICT DO NOTHING`
)

// Links are links to write.
type Links struct {
	current map[linkKey]store.MUID // the current muid of each identifier
	held    heldLinks              // all links, former ones included
}

func NewLinks() Links { return Links{map[linkKey]store.MUID{}, heldLinks{}} }

// Add adds a link. A former link is not the identifier's current one.
func (l Links) Add(merchant uuid.UUID, key store.IdentityKey, muid store.MUID, source store.LinkSource, former bool) {
	at := linkKey{merchant, key}
	if !former {
		l.current[at] = muid
	}
	held := heldKey{at, muid}
	l.held[held] = max(l.held[held], source)
}

// Queue writes the links, in the order of their keys, so that two flushes never deadlock. It returns the largest number of
// rows that they can take.
func (l Links) Queue(b *pgx.Batch) (rows int) {
	at := slices.SortedFunc(maps.Keys(l.current), compareLinks)
	held := slices.SortedFunc(maps.Keys(l.held), func(a, b heldKey) int {
		return cmp.Or(compareLinks(a.linkKey, b.linkKey), cmp.Compare(a.muid, b.muid))
	})
	all := map[muidKey]bool{}
	for _, k := range at {
		all[newMUIDKey(k.merchant, l.current[k])] = true
	}
	for _, k := range held {
		all[newMUIDKey(k.merchant, k.muid)] = true
	}
	muids := slices.SortedFunc(maps.Keys(all), func(a, b muidKey) int {
		return cmp.Or(conn.CompareUUIDs(a.merchant, b.merchant), bytes.Compare(a.hash[:], b.hash[:]))
	})
	b.Queue(writeLinks, merchantsOf(at), keysIn(at), conn.Map(at, func(k *linkKey) []byte { return []byte(l.current[*k]) }))
	b.Queue(writeHeldLinks, conn.Map(held, func(k *heldKey) uuid.UUID { return k.merchant }), conn.Map(held, func(k *heldKey) []byte { return k.key[:] }),
		conn.Map(held, func(k *heldKey) []byte { return []byte(k.muid) }), conn.Map(held, func(k *heldKey) int16 { return int16(l.held[*k]) }))
	b.Queue(writeLinkedMUIDs, conn.Map(muids, func(k *muidKey) uuid.UUID { return k.merchant }), conn.Map(muids, func(k *muidKey) []byte { return k.hash[:] }))
	return len(at) + len(held) + len(muids)
}
