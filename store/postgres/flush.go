package postgres

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
	"mtagd/store/rules"
)

// flush is one group on its way into the database: what it asks for, what the database says, and what follows from that.
type flush struct {
	id, node uuid.UUID
	now      *int64 // µs since 1970; nil: the database's clock
	items    []item
	fresh    map[dedupKey]freshness
	refuses  map[uuid.UUID]bool                       // merchants some of whose events are refused: they were deleted, or a person is suppressed
	removed  map[uuid.UUID]bool                       // merchants that were deleted
	refused  map[uuid.UUID]map[store.IdentityKey]bool // of these, persons whose events are refused
	known    links                                    // links of the database
	changed  links                                    // links that the group makes
	held     heldLinks                                // of held_link: those that the group may make again, and those that it makes
	kept     map[heldKey]bool                         // those of held that the group makes, or gives a greater source
	linkRows int                                      // that the group's links take, at most
	linked   map[muidKey]bool                         // muids that an identifier was linked to: those of the database that the group asks for, and the group's
	events   []event
	tallies  count.Deltas // of the events

	committed bool          // COMMIT has succeeded
	seen      conn.Snapshot // of the second commit: the flush and all before it
}

// item is a mark, or the link of a call of Resolve.
type item struct {
	merchant uuid.UUID
	mark     *store.Mark
	link     *store.Identity
	dedup    dedupKey // of a mark with an event_id
}

// dedupKey is a remembered event_id: the beginning of the SHA-256 of its event's name, a zero and the event_id.
type dedupKey struct {
	merchant uuid.UUID
	key      [16]byte
}

func newDedupKey(merchant uuid.UUID, name, id string) dedupKey {
	var buf [store.MaxEventNameLength + 1 + store.MaxDedupeIDLength]byte
	sum := sha256.Sum256(append(append(append(buf[:0], name...), 0), id...))
	return dedupKey{merchant, [16]byte(sum[:16])}
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

// freshness says whether the database has an event_id.
type freshness uint8

const (
	remembered freshness = iota // before this flush
	claimed                     // by this flush, for an event that was not recorded yet
	used                        // by an event of this flush
)

// event is an event that the flush writes.
type event struct {
	merchant uuid.UUID
	mark     *store.Mark
	muid     store.MUID
	byClaim  bool // store.Event
}

func newFlush(node uuid.UUID, now func() time.Time) *flush {
	f := &flush{id: uuid.New(), node: node, fresh: map[dedupKey]freshness{}, known: links{}, changed: links{},
		held: heldLinks{}, kept: map[heldKey]bool{}, linked: map[muidKey]bool{}}
	if now != nil {
		f.now = new(now().UnixMicro())
	}
	return f
}

func (f *flush) addLink(merchant uuid.UUID, id *store.Identity) {
	f.items = append(f.items, item{merchant: merchant, link: id})
}

func (f *flush) addMark(m *store.Mark) {
	merchant, _ := conn.KeyOf(m.Merchant) // Record has checked it
	i := item{merchant: merchant, mark: m}
	if m.DedupeID != "" {
		i.dedup = newDedupKey(merchant, m.Name, m.DedupeID)
		f.fresh[i.dedup] = remembered
	}
	f.items = append(f.items, i)
}

// decide sets the outcome of each mark, in their order (store.Events.Record).
func (f *flush) decide() {
	for _, i := range f.items {
		if i.link != nil {
			if f.refusal(i.merchant, i.link, i.link.MUID) == 0 {
				f.link(i.merchant, i.link)
			}
			continue
		}
		who := &i.mark.Identity
		muid, byClaim := who.MUID, false
		if muid == "" {
			l := f.resolve(i.merchant, who)
			muid, byClaim = l.muid, l.source != store.BySecret
		}
		if i.mark.Outcome = rules.Outcome(f.refusal(i.merchant, who, muid), muid); i.mark.Outcome != 0 {
			continue
		}
		if i.mark.DedupeID != "" {
			if f.fresh[i.dedup] != claimed {
				i.mark.Outcome = store.Duplicate
				continue
			}
			f.fresh[i.dedup] = used
		}
		if who.MUID != "" {
			f.link(i.merchant, who)
		}
		i.mark.Outcome = store.Recorded
		f.events = append(f.events, event{i.merchant, i.mark, muid, byClaim})
	}
}

// isEmpty reports whether nothing need be committed. A duplicate must be: the event that it repeats is visible, but it may not have
// got to the standbys. The commit of this flush waits for both. The same goes for a link that is there.
func (f *flush) isEmpty() bool {
	return len(f.events)+len(f.changed) == 0 && !slices.ContainsFunc(f.items, func(i item) bool {
		return i.link != nil || i.mark.Outcome == store.Duplicate
	})
}

// resolve returns the link of the first identifier that has one, by the group or before it.
func (f *flush) resolve(merchant uuid.UUID, who *store.Identity) link {
	for _, k := range who.Keys() {
		if l := f.linkOf(linkKey{merchant, k}); l.muid != "" {
			return l
		}
	}
	return link{}
}

func (f *flush) linkOf(at linkKey) link {
	if l, ok := f.changed[at]; ok {
		return l
	}
	return f.known[at]
}

// link links the identifiers to the muid (store.Events, Record). Links that are there are not written.
func (f *flush) link(merchant uuid.UUID, who *store.Identity) {
	muid := newMUIDKey(merchant, who.MUID)
	isLinked := f.linked[muid]
	for _, k := range who.Keys() {
		at := linkKey{merchant, k}
		now := f.linkOf(at)
		held := heldKey{at, who.MUID}
		before, isHeld := f.held[held]
		source := max(rules.SourceOfLink(who.Source, isLinked, now.held[store.ByCookie]), before)
		if now.muid == who.MUID && now.source >= source {
			continue
		}
		next := link{who.MUID, source, now.held}
		if isHeld && before < source || !isHeld && rules.KeepsFormerLink(source, now.held[store.ByAnyone]) {
			if isHeld {
				next.held[before]--
			}
			next.held[source]++
			f.held[held], f.kept[held] = source, true
		}
		f.changed[at] = next
		f.linked[muid] = true
	}
}

// refusal returns why events of a person are refused; 0: they are not.
func (f *flush) refusal(merchant uuid.UUID, who *store.Identity, muid store.MUID) store.Outcome {
	switch {
	case !f.refuses[merchant]:
		return 0
	case f.removed[merchant]:
		return store.Removed
	case rules.IsSuppressed(f.refused[merchant], who, muid):
		return store.Suppressed
	}
	return 0
}

// merchants returns the merchants of the group, sorted.
func (f *flush) merchants() []uuid.UUID {
	all := map[uuid.UUID]bool{}
	for _, i := range f.items {
		all[i.merchant] = true
	}
	return slices.SortedFunc(maps.Keys(all), conn.CompareUUIDs)
}

func compareLinks(a, b linkKey) int {
	return cmp.Or(conn.CompareUUIDs(a.merchant, b.merchant), bytes.Compare(a.key[:], b.key[:]))
}

func compareDedups(a, b dedupKey) int {
	return cmp.Or(conn.CompareUUIDs(a.merchant, b.merchant), bytes.Compare(a.key[:], b.key[:]))
}

// nowOf is the time in µs since 1970 in a statement: that of a parameter if it has one, else the database's clock.
func nowOf(parameter string) string {
	return "coalesce(" + parameter + "::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
}

var (
	// Locks are taken in the order of the keys, so that two flushes never wait for each other.
	rememberIDs = `INSERT INTO dedup (merchant, key, seen) SELECT w.merchant, w.key, n.now
		FROM unnest($1::uuid[], $2::bytea[]) AS w(merchant, key), (SELECT ` + nowOf("$3") + ` AS now) AS n ORDER BY 1, 2
		ON CONFLICT (merchant, key) DO UPDATE SET seen = excluded.seen WHERE dedup.seen <= excluded.seen - ` +
		strconv.FormatInt(store.DedupeWindow.Microseconds(), 10) + ` RETURNING merchant, key`

	nextReceipt = `SELECT setval('receipt', greatest(last_value + 1, ` + nowOf("$1") + `)) FROM receipt`
)

const (
	// Few merchants have such rows, so most flushes ask no further.
	readRefusing = `SELECT w.merchant, ` + isRemoved + ` FROM unnest($1::uuid[]) AS w(merchant)
		WHERE ` + isRemoved + ` OR EXISTS (SELECT FROM record s WHERE s.kind = 'suppressed' AND s.id > w.merchant::text || '/' AND s.id < w.merchant::text || '0'
			AND s.body IS NOT NULL)`

	isRemoved = `EXISTS (SELECT FROM record r WHERE r.kind = 'removals' AND r.id = w.merchant::text AND r.body IS NOT NULL)`

	readRefused = `SELECT w.merchant, w.key FROM unnest($1::uuid[], $2::bytea[]) AS w(merchant, key)
		WHERE EXISTS (SELECT FROM record s WHERE s.kind = 'suppressed' AND s.id = w.merchant::text || '/' || encode(w.key, 'hex') AND s.body IS NOT NULL)`

	forgetIDs = `DELETE FROM dedup WHERE merchant = $1 AND key = ANY($2)`

	writeLinks = `INSERT INTO link (merchant, key, muid) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bytea[]) ORDER BY 1, 2
		ON CONFLICT (merchant, key) DO UPDATE SET muid = excluded.muid WHERE link.muid <> excluded.muid`

	// A link that was claimed before may be trusted now.
	readHeldLinks = `SELECT h.merchant, h.key, h.muid, h.source FROM unnest($2::bytea[], $3::bytea[]) AS w(key, muid)
		JOIN held_link h ON h.merchant = $1 AND h.key = w.key AND h.muid = w.muid`

	writeHeldLinks = `INSERT INTO held_link (merchant, key, muid, source) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::smallint[])
		ON CONFLICT (merchant, key, muid) DO UPDATE SET source = excluded.source WHERE held_link.source < excluded.source`

	readLinkedMUIDs = `SELECT hash FROM linked_muid WHERE merchant = $1 AND hash = ANY($2)`

	writeLinkedMUIDs = `INSERT INTO linked_muid (merchant, hash) SELECT * FROM unnest($1::uuid[], $2::bytea[]) ON CONFLICT DO NOTHING`

	writeEvents = `INSERT INTO event (merchant, seq, idx, at, bot, tag, name, muid, raw, by_claim)
		SELECT w.merchant, currval('receipt'), w.idx - 1, w.at, w.bot, w.tag, w.name, w.muid, w.raw, w.by_claim
		FROM unnest($1::uuid[], $2::bigint[], $3::boolean[], $4::text[], $5::text[], $6::bytea[], $7::bytea[], $8::boolean[]) WITH ORDINALITY
		AS w(merchant, at, bot, tag, name, muid, raw, by_claim, idx)`

	writeFlush = `INSERT INTO flush (merchant, id, node, seq, merchants) VALUES ($1, $2, $3, currval('receipt'), $4)`

	// When the node stops in the middle of a flush, the server ends it, so that its locks are free again. A wait for a lock ends long
	// before flushTimeout, even two of them in a row. Then it is certain that nothing is committed.
	// Citus writes to one shard after the other, in one order: so two flushes never wait for each other.
	//
	// COMMIT does not wait for the standbys: commitNothing does. With Citus, COMMIT waits too, because the coordinator's
	// later commit says nothing about the standbys of the workers.
	setFlush = `SELECT set_config('jit', 'off', true), set_config('citus.multi_shard_modify_mode', 'sequential', true),
		set_config('idle_in_transaction_session_timeout', '5s', true), set_config('lock_timeout', '2s', true),
		set_config('synchronous_commit', CASE WHEN ` + conn.CitusInstalled + ` THEN ` + conn.Durably + ` ELSE 'off' END, true)`

	takeReceiptLock = `SELECT pg_advisory_xact_lock($1)`
)

// ask is the first round trip.
func (f *flush) ask(ctx context.Context, session *pgx.Conn) error {
	for k := range f.fresh {
		f.fresh[k] = remembered // this may be the second attempt
	}
	clear(f.known)
	clear(f.held)
	clear(f.linked)
	f.refuses = nil
	b := &pgx.Batch{}
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue(setFlush)
	b.Queue(readRefusing, f.merchants()).Query(f.scanRefusing)
	if len(f.fresh) > 0 {
		keys := slices.SortedFunc(maps.Keys(f.fresh), compareDedups)
		merchants, hashes := splitDedups(keys)
		b.Queue(rememberIDs, merchants, hashes, f.now).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var k dedupKey
				var key []byte
				if err := rows.Scan((*[16]byte)(&k.merchant), &key); err != nil {
					return err
				}
				k.key = [16]byte(key)
				f.fresh[k] = claimed
			}
			return rows.Err()
		})
	}
	for merchant, keys := range f.wantedLinks() {
		b.Queue(readLinks, merchant, keys).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				if err := f.known.scan(rows); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	}
	for merchant, wanted := range f.wantedHeld() {
		b.Queue(readHeldLinks, merchant, wanted.keys, wanted.muids).Query(f.held.scan)
	}
	for merchant, hashes := range f.wantedMUIDs() {
		b.Queue(readLinkedMUIDs, merchant, hashes).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var hash []byte
				if err := rows.Scan(&hash); err != nil {
					return err
				}
				f.linked[muidKey{merchant, [16]byte(hash)}] = true
			}
			return rows.Err()
		})
	}
	if err := session.SendBatch(ctx, b).Close(); err != nil || len(f.refuses) == 0 {
		return err
	}
	return f.askRefused(ctx, session)
}

func (f *flush) scanRefusing(rows pgx.Rows) error {
	f.refuses, f.removed, f.refused = map[uuid.UUID]bool{}, map[uuid.UUID]bool{}, map[uuid.UUID]map[store.IdentityKey]bool{}
	for rows.Next() {
		var merchant uuid.UUID
		var removed bool
		if err := rows.Scan(&merchant, &removed); err != nil {
			return err
		}
		f.refuses[merchant], f.removed[merchant] = true, removed
	}
	return rows.Err()
}

// identity returns whose item it is.
func (i *item) identity() *store.Identity {
	if i.link != nil {
		return i.link
	}
	return &i.mark.Identity
}

// wantedMUIDs returns what the group has to know of its muids: of those that a cookie links to identifiers, whether there was a link before.
func (f *flush) wantedMUIDs() map[uuid.UUID][][]byte {
	wanted := map[uuid.UUID][][]byte{}
	seen := map[muidKey]bool{}
	for _, i := range f.items {
		who := i.identity()
		if who.Source != store.ByCookie || who.MUID == "" || len(who.Keys()) == 0 {
			continue
		}
		if k := newMUIDKey(i.merchant, who.MUID); !seen[k] {
			seen[k] = true
			wanted[i.merchant] = append(wanted[i.merchant], k.hash[:])
		}
	}
	return wanted
}

// wantedLinks returns the identifiers of the group, by merchant.
func (f *flush) wantedLinks() map[uuid.UUID][][]byte {
	wanted := map[uuid.UUID][][]byte{}
	seen := map[linkKey]bool{}
	for _, i := range f.items {
		for _, k := range i.identity().Keys() {
			if at := (linkKey{i.merchant, k}); !seen[at] {
				seen[at] = true
				wanted[i.merchant] = append(wanted[i.merchant], k[:])
			}
		}
	}
	return wanted
}

// keysAndMUIDs are links, as parameters of a statement.
type keysAndMUIDs struct{ keys, muids [][]byte }

// wantedHeld returns the links that the group may make, by merchant. Where one was made before, it comes back with its source.
func (f *flush) wantedHeld() map[uuid.UUID]*keysAndMUIDs {
	wanted := map[uuid.UUID]*keysAndMUIDs{}
	seen := map[heldKey]bool{}
	for _, i := range f.items {
		who := i.identity()
		for _, k := range who.Keys() {
			held := heldKey{linkKey{i.merchant, k}, who.MUID}
			if who.MUID == "" || seen[held] {
				continue
			}
			seen[held] = true
			of := wanted[i.merchant]
			if of == nil {
				of = &keysAndMUIDs{}
				wanted[i.merchant] = of
			}
			of.keys, of.muids = append(of.keys, k[:]), append(of.muids, []byte(who.MUID))
		}
	}
	return wanted
}

// scan adds rows.
func (h heldLinks) scan(rows pgx.Rows) error {
	for rows.Next() {
		var k heldKey
		var key, muid []byte
		var source store.LinkSource
		if err := rows.Scan((*[16]byte)(&k.merchant), &key, &muid, &source); err != nil {
			return err
		}
		k.key, k.muid = store.IdentityKey(key), store.MUID(muid)
		h[k] = source
	}
	return rows.Err()
}

// askRefused finds out whose events are refused, of those in the group.
func (f *flush) askRefused(ctx context.Context, session *pgx.Conn) error {
	persons := map[linkKey]bool{}
	for _, i := range f.items {
		if !f.refuses[i.merchant] || f.removed[i.merchant] {
			continue
		}
		who := i.identity()
		for _, k := range who.Keys() {
			persons[linkKey{i.merchant, k}] = true
			if l := f.known[linkKey{i.merchant, k}]; l.muid != "" {
				persons[linkKey{i.merchant, store.MUIDKey(l.muid)}] = true
			}
		}
		if who.MUID != "" {
			persons[linkKey{i.merchant, store.MUIDKey(who.MUID)}] = true
		}
	}
	wanted := slices.SortedFunc(maps.Keys(persons), compareLinks)
	return conn.Query(ctx, session, func(rows pgx.Rows) error {
		var merchant uuid.UUID
		var key []byte
		if err := rows.Scan((*[16]byte)(&merchant), &key); err != nil {
			return err
		}
		if f.refused[merchant] == nil {
			f.refused[merchant] = map[store.IdentityKey]bool{}
		}
		f.refused[merchant][store.IdentityKey(key)] = true
		return nil
	}, readRefused, merchantsOf(wanted), keysIn(wanted))
}

// write is the second round trip, with both commits. When it returns nil, the second one is on the standbys, and so is everything before
// it. When COMMIT fails, the server skips what follows.
func (f *flush) write(ctx context.Context, session *pgx.Conn) error {
	b := &pgx.Batch{}
	unused := map[uuid.UUID][][]byte{}
	for k, state := range f.fresh {
		if state == claimed {
			unused[k.merchant] = append(unused[k.merchant], k.key[:])
		}
	}
	for merchant, keys := range unused { // in any order: this transaction has locked the rows
		b.Queue(forgetIDs, merchant, keys)
	}
	if len(f.changed) > 0 {
		f.queueLinks(b)
	}
	// Without events there is nothing to number. The flush is written all the same: it says that the rest is committed.
	b.Queue(takeReceiptLock, conn.LockReceipt)
	b.Queue(nextReceipt, f.now)
	if len(f.events) > 0 {
		f.queueEvents(b)
	}
	merchants := f.withEvents()
	b.Queue(writeFlush, f.merchants()[0], f.id, f.node, merchants)
	b.Queue("COMMIT").Exec(func(pgconn.CommandTag) error {
		f.committed = true
		return nil
	})
	b.Queue(conn.CommitNothing).QueryRow(func(row pgx.Row) error { return f.seen.Scan(row, nil, nil) })
	if err := session.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	return conn.CheckReplicated(session.PgConn())
}

// queueLinks writes the links, and what stays of them when others replace them.
func (f *flush) queueLinks(b *pgx.Batch) {
	at := slices.SortedFunc(maps.Keys(f.changed), compareLinks)
	muids := make([][]byte, len(at))
	for i, k := range at {
		muids[i] = []byte(f.changed[k].muid)
	}
	b.Queue(writeLinks, merchantsOf(at), keysIn(at), muids)
	kept := slices.SortedFunc(maps.Keys(f.kept), func(a, b heldKey) int {
		return cmp.Or(compareLinks(a.linkKey, b.linkKey), cmp.Compare(a.muid, b.muid))
	})
	merchants, keys, sources := make([]uuid.UUID, len(kept)), make([][]byte, len(kept)), make([]int16, len(kept))
	heldMUIDs := make([][]byte, len(kept))
	for i := range kept {
		k := &kept[i]
		merchants[i], keys[i], heldMUIDs[i], sources[i] = k.merchant, k.key[:], []byte(k.muid), int16(f.held[*k])
	}
	b.Queue(writeHeldLinks, merchants, keys, heldMUIDs, sources)
	linked := map[muidKey]bool{}
	for at, l := range f.changed {
		linked[newMUIDKey(at.merchant, l.muid)] = true
	}
	for _, k := range kept {
		linked[newMUIDKey(k.merchant, k.muid)] = true
	}
	f.linkRows = len(at) + len(kept) + len(linked)
	queueLinkedMUIDs(b, slices.SortedFunc(maps.Keys(linked), func(a, b muidKey) int {
		return cmp.Or(conn.CompareUUIDs(a.merchant, b.merchant), bytes.Compare(a.hash[:], b.hash[:]))
	}))
}

func queueLinkedMUIDs(b *pgx.Batch, linked []muidKey) {
	merchants, hashes := make([]uuid.UUID, len(linked)), make([][]byte, len(linked))
	for i := range linked {
		merchants[i], hashes[i] = linked[i].merchant, linked[i].hash[:]
	}
	b.Queue(writeLinkedMUIDs, merchants, hashes)
}

// withEvents returns the merchants that have events in the flush, sorted.
func (f *flush) withEvents() []uuid.UUID {
	all := map[uuid.UUID]bool{}
	for i := range f.events {
		all[f.events[i].merchant] = true
	}
	sorted := slices.SortedFunc(maps.Keys(all), conn.CompareUUIDs)
	if sorted == nil {
		sorted = []uuid.UUID{}
	}
	return sorted
}

func (f *flush) queueEvents(b *pgx.Batch) {
	n := len(f.events)
	merchants, at, bots := make([]uuid.UUID, n), make([]int64, n), make([]bool, n)
	tags, names, muids, raws, byClaim := make([]string, n), make([]string, n), make([][]byte, n), make([][]byte, n), make([]bool, n)
	f.tallies = count.Deltas{}
	for i, e := range f.events {
		m := e.mark
		merchants[i], at[i], bots[i] = e.merchant, m.Time.UnixMicro(), m.Bot
		tags[i], names[i], muids[i], raws[i] = string(m.Tag), m.Name, []byte(e.muid), m.Raw
		byClaim[i] = e.byClaim
		f.tallies.Add(e.merchant, at[i], tags[i], names[i], m.Bot, count.SizeOf(len(m.Raw), len(e.muid), m.Name, string(m.Tag)), 1)
	}
	b.Queue(writeEvents, merchants, at, bots, tags, names, muids, raws, byClaim)
	b.Queue(count.WriteDeltas, f.tallies.Columns()...)
}

func splitDedups(keys []dedupKey) (merchants []uuid.UUID, hashes [][]byte) {
	merchants, hashes = make([]uuid.UUID, len(keys)), make([][]byte, len(keys))
	for i := range keys {
		merchants[i], hashes[i] = keys[i].merchant, keys[i].key[:]
	}
	return merchants, hashes
}
