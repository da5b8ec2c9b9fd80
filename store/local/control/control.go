// Package control stores the control data of the embedded engine in one bbolt file: partners, keys, merchants, tags, and
// who has which domain. It implements store.Control. All of it except documents and the audit log is also in memory, where requests are
// answered from. Each change is one synced transaction. It is checked against what is in memory: what must be unique is a
// domain, a label, one tag of a type for each merchant.
//
//	inspect.go    what a data directory contains, before anything is opened
//	tags.go       generate, read and update tags
//	merchants.go  merchants with their tags
//	partners.go   partners and their tracking domains
//	keys.go       API keys, and when each was last used
//	sessions.go   who is signed in to the web console
//	claims.go     who has which root domain
//	delete.go     delete merchants and partners; which events are still to be removed
//	erasures.go   the erasure of persons; whose events are refused
//	retention.go  how long events are kept
//	once.go       calls that may be repeated: idempotency keys
//	audit.go      who changed what
//	documents.go  records of other parts of the service
//	control.go    Data: changes
//	open.go       opens control.db: checks and loads all of it
//	state.go      what is in memory
//	counts.go     what the limits of a partner need to know of its tags
//	moveout.go    what a move to another engine copies
//	movein.go     takes what a move from another engine copies
//	snapshot.go   the control data as of one moment, for a backup; the id of the data directory
//	verify.go     checks all records
//	salvage.go    writes what can be read of a damaged file into a new one
//	read.go       reads all of a file, and what is wrong with it
//	records.go    the bytes of records, their seals and sums
//
// # What is in control.db
//
// The file is of format "2". Its buckets, with key → value (Partner, Key, Merchant, Tag, Removal, Erasure, Session and AuditEntry stand for the
// JSON of these types; ids and hosts are plain text):
//
//	meta        "format" → version, without a seal; "id" → id of the data directory, once it was backed up; "sums" → see below;
//	            "retention" → days that events are kept by default, -1 for ever
//	partners    partner id → Partner
//	keys        key id → Key
//	uses        key id → when the key was last used (RFC 3339)
//	merchants   merchant id → Merchant with "ordinal", its place among its partner's merchants
//	tags        tag id → Tag
//	domains     root domain → id of the server-side tag that has the claim to it
//	replies     partner id, "/", SHA-256 of an idempotency key in hexadecimal → what the call with this key has created (reply)
//	removals    merchant id → Removal: a merchant that was deleted, and whose events are still to be removed
//	expiries    merchant id → Removal: an attempt has failed to remove its events that are past the retention
//	erasures    erasure id → Erasure
//	sessions    session id → Session; the file of an earlier version gets this bucket, and expiries, when it is opened
//	suppressed  merchant id, "/", store.IdentityKey in hexadecimal → erasure id: events of this person are refused
//	documents   kind, "/", merchant id, "/", id → a document; added to a file like sessions
//	log         AuditID, time in nanoseconds since 1970 (8 bytes each, big endian) → AuditEntry
//
// Each value ends with a seal: the XXH64 (8 bytes, big endian) of bucket, key and value, each after its length (4 bytes, big
// endian). So a record that has moved to another key is damaged too. "sums" has for each bucket its name (length-prefixed), the
// number of its records (uvarint) and the sum of their seals modulo 2^64 (8 bytes, big endian); "format" and "sums" itself do
// not count. It changes in the transaction of each change, whose id is the number of a bucket without a name and with sum 0. So
// records that are missing or too old are noticed.
//
// # Damage
//
// Open reads the whole file, before bbolt does, and checks the pages (package boltfile), the seals and the sums.
//
//   - When no record is lost, as with one wrong bit or a damaged page that has none, the file is rebuilt: a new one is written beside
//     it, and replaces it. The seals and the sums prove that nothing is missing.
//   - A record that is damaged otherwise is out of service, with everything that belongs to it: a partner with its merchants, a
//     merchant with its tags. Its requests fail, which is logged with the record's name; they never find it missing. Everything
//     else goes on. An audit entry is listed as damaged.
//   - A change that needs to know what a damaged record says fails too. No tag is made while a tag or a claim is damaged: it may
//     be the merchant's tag of this type, or have the label. No domain is claimed while a claim or a partner is damaged. Nothing
//     is deleted while a record is damaged that may belong to it.
//   - When it is not known which records are damaged, as on a page that cannot be read, Open fails. "mtagd repair" makes a new
//     file of the others: zeros over a page lose at most the records that were on it.
//
// What the disk does to the file later does not reach requests. A change that meets damage fails, and changes nothing.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/space"
)

// Data implements store.Control.
type Data struct {
	db   *bolt.DB // nil with OpenReadOnly
	file *os.File // with OpenReadOnly
	path string
	dir  *store.Directory
	now  func() time.Time
	log  *slog.Logger

	AuditLimits store.AuditLimits // of the audit log; set before the first change

	// Changing is called with the Sum that a change will make, before it is committed; its error keeps the change from being made.
	// Changed is called when the change is on disk. Both are set before the first change, and may be nil.
	Changing func(sum uint64) error
	Changed  func()

	writing sync.Mutex                  // held while a change is made
	frozen  error                       // guarded by writing: why nothing is changed now; nil: changes are made
	sums    sums                        // guarded by writing
	counts  map[store.PartnerID]*counts // guarded by writing
	stored  map[store.KeyID]time.Time   // guarded by writing: the last uses as stored

	suppressing atomic.Bool // somebody's events may be refused

	mu    sync.RWMutex // held while state changes, which takes microseconds
	state *state

	broken atomic.Pointer[error] // why nothing is changed until the next start; nil: changes are made
}

// fileName is the name of the file in the data directory.
const fileName = "control.db"

// format2 is the version of the file's layout. The next version must be "5", not "3": a start that finds a version with one bit
// other than "2" takes it for "2". "5" differs in three bits, so it is refused, even with one wrong bit.
const format2 = "2"

// Close closes the file.
func (d *Data) Close() error {
	if d.db == nil {
		return d.file.Close()
	}
	return d.db.Close()
}

// Sum returns a number that identifies all records. It is not known when the record with the sums of all buckets is damaged: then
// nothing can be changed.
func (d *Data) Sum() (sum uint64, known bool) {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.sums.sum(), d.sums != nil
}

// Directory returns the in-memory view of the control data, as store.Engine describes it.
func (d *Data) Directory() *store.Directory { return d.dir }

// change collects what one transaction changes. What it reads is d.state as it was before.
type change struct {
	d       *Data
	ctx     context.Context
	writes  []write
	entries []store.AuditEntry // of the audit log, which are among writes
	publish []func()           // puts the changes into memory, in this order
}

// put replaces a record. Once that is on disk, publish puts it into memory.
func put[V any](c *change, bucket, key string, v V, publish func(s *state)) error {
	w, err := newWrite(bucket, key, v)
	c.writes = append(c.writes, w)
	c.publish = append(c.publish, func() { publish(c.d.state) })
	return err
}

// delete deletes a record.
func (c *change) delete(bucket, key string, publish func(s *state)) {
	c.writes = append(c.writes, write{bucket, key, nil})
	c.publish = append(c.publish, func() { publish(c.d.state) })
}

func (c *change) putPartner(p store.Partner) error {
	return put(c, inPartners, string(p.ID), p, func(s *state) {
		s.setPartner(p)
		c.d.dir.SetPartner(p)
	})
}

func (c *change) putKey(k store.Key) error {
	return put(c, inKeys, string(k.ID), k, func(s *state) {
		s.setKey(k)
		c.d.dir.SetKey(k)
	})
}

func (c *change) putMerchant(m merchant) error {
	return put(c, inMerchants, string(m.ID), m, func(s *state) {
		s.setMerchant(m)
		c.d.dir.SetMerchant(m.Merchant)
	})
}

// putTag replaces a tag, or adds it. It is complete: Host and ClaimLost are set.
func (c *change) putTag(t store.Tag) error {
	return put(c, inTags, string(t.ID), t, func(s *state) {
		s.setTag(t)
		c.d.publish(t)
	})
}

func (c *change) putDomain(domain string, id store.TagID) {
	c.writes = append(c.writes, write{inDomains, domain, []byte(id)})
	c.publish = append(c.publish, func() { c.d.state.domains[domain] = id })
}

func (c *change) deleteDomain(domain string) {
	c.delete(inDomains, domain, func(s *state) { delete(s.domains, domain) })
}

// publish puts a tag that is new or has changed into the directory and into its partner's counts. The caller holds d.writing,
// or nobody else has d yet.
func (d *Data) publish(t store.Tag) {
	_, known := d.dir.Tag(t.ID)
	d.countsOf(t.Partner).set(t, !known)
	d.dir.SetTag(t)
}

// countsOf returns the counts of a partner. The caller holds d.writing.
func (d *Data) countsOf(partner store.PartnerID) *counts {
	c := d.counts[partner]
	if c == nil {
		c = &counts{unverified: map[store.TagID]time.Time{}}
		d.counts[partner] = c
	}
	return c
}

// update makes a change in one synced transaction, and then in memory. build adds what is to be changed; when that is nothing,
// nothing is written. KindUnavailable: the disk is full.
func (d *Data) update(ctx context.Context, build func(c *change) error) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := cmp.Or(ctx.Err(), d.frozen); err != nil {
		return err
	}
	c := &change{d: d, ctx: ctx}
	err := build(c)
	if err == nil && len(c.writes) > 0 {
		err = d.store(c)
	}
	if space.IsFull(err) && !errors.Is(err, store.ErrNeedsRestart) {
		return store.Unavailable("the disk is full")
	}
	if err != nil || len(c.writes) == 0 {
		return err
	}
	store.LogAudit(d.log, c.entries)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, publish := range c.publish {
		publish()
	}
	return nil
}

// store makes a change on disk. Nothing is written any more
//
//   - after a panic, as bbolt may hold a lock or wrong pages,
//   - after a failed commit. Its meta page may have been written but not synced. Then bbolt would build the next change on
//     this one, which neither the memory nor the sums have. A full disk is no reason while the meta page is the old one.
func (d *Data) store(c *change) error {
	if broken := d.broken.Load(); broken != nil {
		return *broken
	}
	next := maps.Clone(d.sums)
	returned := false
	var committing int // the transaction whose commit has begun; 0: none
	err := boltfile.CatchDamage(fileName, func() error {
		err := d.db.Update(func(tx *bolt.Tx) error {
			if err := c.dropOldest(tx, next); err != nil {
				return err
			}
			if err := storeAll(tx, next, c.writes); err != nil {
				return err
			}
			if d.Changing != nil {
				if err := d.Changing(next.sum()); err != nil {
					return err
				}
			}
			committing = tx.ID()
			return nil
		})
		returned = true
		return err
	})
	switch {
	case err == nil:
		d.sums = next
		if d.Changed != nil {
			d.Changed()
		}
	case !returned:
		d.broken.Store(&err)
		d.log.Error("control.db is damaged: nothing is changed in it until the next start, which checks it", "error", err)
	case committing != 0 && !(space.IsFull(err) && d.isBefore(committing)):
		err = fmt.Errorf("%w: a change of %s could not be committed: %w", store.ErrNeedsRestart, fileName, err)
		d.broken.Store(&err)
		d.log.Error("a change of control.db could not be committed: until the next start nothing is changed in it, and no event is accepted",
			"error", err)
	}
	return err
}

// isBefore reports whether bbolt would build the next change on one before the transaction id.
func (d *Data) isBefore(id int) bool {
	before := false
	err := boltfile.CatchDamage(fileName, func() error {
		return d.db.View(func(tx *bolt.Tx) error {
			before = tx.ID() < id
			return nil
		})
	})
	return err == nil && before
}

// Failure returns a store.ErrNeedsRestart once a commit has failed: the control data cannot be changed until a restart. It takes
// no lock. A panic of bbolt is none, because a restart might refuse the damaged file, while everything in memory is served.
func (d *Data) Failure() error {
	if broken := d.broken.Load(); broken != nil && errors.Is(*broken, store.ErrNeedsRestart) {
		return *broken
	}
	return nil
}

// view reads what is in memory.
func (d *Data) view(ctx context.Context, read func(s *state) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	return read(d.state)
}
