package write

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
)

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
	writeEvents = `INSERT INTO event (merchant, seq, idx, at, bot, tag, name, muid, raw, by_claim, client)
		SELECT w.merchant, currval('receipt'), w.idx - 1, w.at, w.bot, w.tag, w.name, w.muid, w.raw, w.by_claim, nullif(w.client, '')
		FROM unnest($1::uuid[], $2::bigint[], $3::boolean[], $4::text[], $5::text[], $6::bytea[], $7::bytea[], $8::boolean[], $9::bytea[]) WITH ORDINALITY
		AS w(merchant, at, bot, tag, name, muid, raw, by_claim, client, idx)`

	// Few merchants have such rows, so most flushes ask no further.
	readRefusing = `SELECT w.merchant, ` + isRemoved + ` FROM unnest($1::uuid[]) AS w(merchant)
		WHERE ` + isRemoved + ` OR EXISTS (SELECT FROM record s WHERE s.kind = 'suppressed' AND s.id > w.merchant::text || '/' AND s.id < w.merchant::text || '0'
			AND s.body IS NOT NULL)`

	isRemoved = `EXISTS (SELECT FROM record r WHERE r.kind = 'removals' AND r.id = w.merchant::text AND r.body IS NOT NULL)`

	readRefused = `SELECT w.merchant, w.key FROM unnest($1::uuid[], $2::bytea[]) AS w(merchant, key)
		WHERE EXISTS (SELECT FROM record s WHERE s.kind = 'suppressed' AND s.id = w.merchant::text || '/' || encode(w.key, 'hex') AND s.body IS NOT NULL)`

	forgetIDs = `DELETE FROM dedup WHERE merchant = $1 AND key = ANY($2)`

	writeFlush = `INSERT INTO flush (merchant, id, node, seq, merchants) VALUES ($1, $2, $3, currval('receipt'), $4)`

	// When the node stops in the middle of a flush, the server ends the flush and releases its locks. Even two waits for
	// locks in a row end long before flushTimeout. Then it is certain that nothing was committed. Citus writes to one shard
	// after the other, in one order: so two flushes never wait for each other. With it, COMMIT waits for the standbys, because
	// the coordinator's later commit (conn.CommitNothing) does not cover those of the workers.
	setFlush = `SELECT set_config('jit', 'off', true), set_config('citus.multi_shard_modify_mode', 'sequential', true),
		set_config('idle_in_transaction_session_timeout', '5s', true), set_config('lock_timeout', '2s', true),
		set_config('synchronous_commit', CASE WHEN ` + conn.CitusInstalled + ` THEN ` + conn.Durably + ` ELSE 'off' END, true),
		pg_advisory_xact_lock_shared($1)`

	takeReceiptLock = `SELECT pg_advisory_xact_lock($1)`
)

// sendQuestions is the first round trip.
func (f *flush) sendQuestions(ctx context.Context, session *pgx.Conn) error {
	for k := range f.fresh {
		f.fresh[k] = remembered // this may be the second attempt
	}
	clear(f.links)
	clear(f.held)
	clear(f.linked)
	f.refuses = map[uuid.UUID]refusals{}
	b := &pgx.Batch{}
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue(setFlush, conn.LockRefusals)
	var of uuid.UUID // the merchant of a row
	var removed bool
	conn.Queue(b, []any{&of, &removed}, func() error {
		f.refuses[of] = refusals{removed, map[store.IdentityKey]bool{}}
		return nil
	}, readRefusing, f.allMerchants())
	var key, muid []byte
	if len(f.fresh) > 0 {
		keys := slices.SortedFunc(maps.Keys(f.fresh), func(a, b dedupKey) int {
			return cmp.Or(conn.CompareUUIDs(a.merchant, b.merchant), bytes.Compare(a.key[:], b.key[:]))
		})
		merchants, hashes := conn.Map(keys, func(k *dedupKey) uuid.UUID { return k.merchant }), conn.Map(keys, func(k *dedupKey) []byte { return k.key[:] })
		conn.Queue(b, []any{&of, &key}, func() error {
			f.fresh[dedupKey{of, [16]byte(key)}] = claimed
			return nil
		}, rememberIDs, merchants, hashes, f.now)
	}
	var source store.LinkSource
	into, addLink := f.links.reading()
	for merchant, w := range f.wanted() {
		conn.Queue(b, into, addLink, readLinks, merchant, w.keys)
		if len(w.heldKeys) > 0 { // a link that was claimed before may be trusted now
			conn.Queue(b, []any{&key, &muid, &source}, func() error {
				f.held[heldKey{linkKey{merchant, store.IdentityKey(key)}, store.MUID(muid)}] = source
				return nil
			}, readHeldLinks, merchant, w.heldKeys, w.heldMUIDs)
		}
		if len(w.muids) > 0 {
			conn.Queue(b, []any{&key}, func() error {
				f.linked[muidKey{merchant, [16]byte(key)}] = true
				return nil
			}, readLinkedMUIDs, merchant, w.muids)
		}
	}
	if err := session.SendBatch(ctx, b).Close(); err != nil || len(f.refuses) == 0 {
		return err
	}
	return f.askRefused(ctx, session)
}

// wanted lists the links of a merchant that a group must read.
type wanted struct {
	keys                [][]byte // its identifiers
	heldKeys, heldMUIDs [][]byte // the links that the group may make: those that exist are returned with their source
	muids               [][]byte // muids that a cookie links to identifiers: were they linked before?
}

// wanted returns the links that the group must read, by merchant.
func (f *flush) wanted() map[uuid.UUID]*wanted {
	all := map[uuid.UUID]*wanted{}
	keys, held, muids := map[linkKey]bool{}, map[heldKey]bool{}, map[muidKey]bool{}
	for _, i := range f.items {
		who, of := i.who, i.who.Keys()
		if len(of) == 0 {
			continue
		}
		w := all[i.merchant]
		if w == nil {
			w = &wanted{}
			all[i.merchant] = w
		}
		for _, k := range of {
			at := linkKey{i.merchant, k}
			if !keys[at] {
				keys[at] = true
				w.keys = append(w.keys, k[:])
			}
			if h := (heldKey{at, who.MUID}); who.MUID != "" && !held[h] {
				held[h] = true
				w.heldKeys, w.heldMUIDs = append(w.heldKeys, k[:]), append(w.heldMUIDs, []byte(who.MUID))
			}
		}
		if who.Source != store.ByCookie || who.MUID == "" {
			continue
		}
		if k := newMUIDKey(i.merchant, who.MUID); !muids[k] {
			muids[k] = true
			w.muids = append(w.muids, k.hash[:])
		}
	}
	return all
}

// askRefused finds out whose events are refused, of those in the group.
func (f *flush) askRefused(ctx context.Context, session *pgx.Conn) error {
	persons := map[linkKey]bool{}
	for _, i := range f.items {
		if r, some := f.refuses[i.merchant]; !some || r.removed {
			continue
		}
		for _, k := range i.who.Keys() {
			persons[linkKey{i.merchant, k}] = true
			if l := f.links[linkKey{i.merchant, k}]; l.muid != "" {
				persons[linkKey{i.merchant, store.MUIDKey(l.muid)}] = true
			}
		}
		if i.who.MUID != "" {
			persons[linkKey{i.merchant, store.MUIDKey(i.who.MUID)}] = true
		}
	}
	all := slices.SortedFunc(maps.Keys(persons), compareLinks)
	var merchant uuid.UUID
	var key []byte
	return conn.Query(ctx, session, []any{&merchant, &key}, func() error {
		f.refuses[merchant].persons[store.IdentityKey(key)] = true
		return nil
	}, readRefused, merchantsOf(all), keysIn(all))
}

// sendWrites is the second round trip, with both commits. When it returns nil, the second commit and everything before it
// are on the standbys. When COMMIT fails, the server skips the rest.
func (f *flush) sendWrites(ctx context.Context, session *pgx.Conn) error {
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
		rows := NewLinks()
		for at := range f.changed {
			rows.current[at] = f.links[at].muid
		}
		for k := range f.kept {
			rows.held[k] = f.held[k]
		}
		f.linkRows = rows.Queue(b)
	}
	// Without events there is nothing to number. The flush is written all the same: it says that the rest is committed.
	b.Queue(takeReceiptLock, conn.LockReceipt)
	b.Queue(nextReceipt, f.now)
	if len(f.events) > 0 {
		f.queueEvents(b)
	}
	merchants := f.withEvents()
	b.Queue(writeFlush, f.allMerchants()[0], f.id, f.node, merchants)
	b.Queue("COMMIT").Exec(func(pgconn.CommandTag) error {
		f.committed = true
		return nil
	})
	b.Queue(conn.CommitNothing).QueryRow(func(row pgx.Row) error { return f.seen.ReadFrom(row, nil, nil) })
	if err := session.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	return conn.CheckReplicated(session.PgConn())
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
	f.deltas = count.Deltas{}
	for i := range f.events {
		e := &f.events[i]
		m := e.mark
		f.deltas.Add(e.merchant, m.Time.UnixMicro(), string(m.Tag), m.Name, m.Bot, count.SizeOf(len(m.Raw), len(e.muid), m.Name, string(m.Tag)), 1)
	}
	b.Queue(writeEvents, conn.Map(f.events, func(e *item) uuid.UUID { return e.merchant }),
		conn.Map(f.events, func(e *item) int64 { return e.mark.Time.UnixMicro() }),
		conn.Map(f.events, func(e *item) bool { return e.mark.Bot }),
		conn.Map(f.events, func(e *item) string { return string(e.mark.Tag) }),
		conn.Map(f.events, func(e *item) string { return e.mark.Name }),
		conn.Map(f.events, func(e *item) []byte { return []byte(e.muid) }),
		conn.Map(f.events, func(e *item) []byte { return e.mark.Raw }),
		conn.Map(f.events, func(e *item) bool { return e.mark.ByClaim }),
		conn.Map(f.events, func(e *item) []byte { return e.mark.Client }))
	b.Queue(count.WriteDeltas, f.deltas.Columns()...)
}
