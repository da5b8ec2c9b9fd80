// Package rules has the rules of control data, once for all engines: partners, keys, sessions, merchants, tags, claims, what
// calls with an idempotency key have created, erasures and removals. It implements store.Control, and what the engines need
// beside it.
//
// All of it is in memory (State), where requests are answered from; only the audit log is not. A Driver keeps it: it stores
// the records of each change in one transaction, and gives its turn to one change after the other, on whatever machine. The
// rules run on what is in memory; what they return is written, and once it is on disk, Data.Apply puts it into memory and
// into the directory. The changes of other machines come in the same way.
//
// A new kind of record needs these steps, and nothing in the engines:
//
//  1. Its type, its limits, its checks and its methods in Control: package store.
//  2. A constant and a line in kinds (records.go), a map in State (state.go). With an index, methods that set and remove
//     it (apply.go).
//  3. Its methods here: reads with view, changes with update, put, delete and audit. If it belongs to a merchant or a
//     partner, deleteMerchants or DeletePartner delete it too (delete.go).
//  4. Nothing for a move to another engine: it copies all records but sessions (Moved).
//  5. Its sentences in package storetest. Over a driver in memory: go test ./store/storetest -run TestConformance/memory.
//
// In this order:
//
//	rules.go      Driver, Data, changes
//	records.go    the kinds of records, and their bytes
//	state.go      what is in memory
//	apply.go      puts what was read, and changes, into memory
//	partners.go, keys.go, sessions.go, merchants.go, tags.go, claims.go,
//	once.go, delete.go, erasures.go, retention.go   the rules
//	counts.go     what the limits of a partner need to know of its tags
//	marks.go      what becomes of a mark
//	personaldata.go   what is stored of a person, and how it is erased
//	persons.go    what belongs to a person: links, and events by their muid or by the identifiers in their bodies
//	links.go      which source a link has, and which former ones are kept
//	documents.go  destinations of events
//	repair.go     compares records, and repairs what is left of damaged ones
package rules

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"mtagd/store"
)

// Driver keeps records and the audit log. Where its methods fail, nothing was changed, except where the error has
// KindUncertain.
type Driver interface {
	// Update makes one change. It waits for its turn, passes changes that others have made to Apply, calls build, stores
	// what it returns in one transaction, and passes the records to Apply. When that is nothing, it stores nothing.
	Update(ctx context.Context, build func(t Turn) (Change, error)) error
	// Now returns the time, once all changes that were committed before the call were passed to Apply.
	Now(ctx context.Context) (time.Time, error)
	// Audit is store.Control.Audit.
	Audit(ctx context.Context, q store.AuditQuery) ([]store.AuditEntry, error)
	// ReadDocuments returns documents of a kind in the order of store.CompareDocuments. Without a merchant it returns all.
	// With one, it returns the merchant's documents; an id selects the document with this id, and an id with a slash at its
	// end the documents whose ids begin with it. Damaged documents are left out, except one that its id selects.
	ReadDocuments(ctx context.Context, kind store.DocumentKind, m *store.MerchantID, id string) ([]store.Document, error)
}

// Turn is what a change needs to know from its driver.
type Turn struct {
	Now       time.Time
	LastEntry store.AuditID // of the audit log; 0: none
}

// Change is what one change writes. No record is in it twice.
type Change struct {
	Records []Record
	Entries []store.AuditEntry // of the audit log; MayBeRefused says which of them the driver may refuse
}

// Data implements store.Control.
type Data struct {
	// Removing is called after a change that leaves something to remove in the background. It may be set before the first
	// change.
	Removing func()

	// People has the events and links of persons. It is set before the first use.
	People People

	driver Driver
	log    *slog.Logger
	dir    *store.Directory

	suppressing atomic.Bool // somebody's events may be refused

	mu      sync.RWMutex // held while state changes, which takes microseconds
	state   *State
	removed []store.Merchant // guarded by mu: by the Apply that is under way

	destinationChanges  int64            // guarded by mu
	changedDestinations map[string]int64 // key → the number of its last change; guarded by mu
}

// New returns the data that was loaded, and puts it into a new directory.
func New(driver Driver, loaded *Loading, log *slog.Logger) *Data {
	d := &Data{Removing: func() {}, driver: driver, log: log, dir: store.NewDirectory(), state: newState(), changedDestinations: map[string]int64{}}
	d.apply(loaded.all)
	return d
}

// Equals reports, for tests of a driver, whether d has the same in memory as other, which was just loaded: what one change
// after the other has built must be what all records build.
func (d *Data) Equals(other *Data) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return reflect.DeepEqual(d.state, other.state)
}

// Directory returns the in-memory view of the control data, as store.Engine describes it.
func (d *Data) Directory() *store.Directory { return d.dir }

// change collects what one change writes. What it reads is d.state as it was before.
type change struct {
	Change
	d    *Data
	ctx  context.Context
	now  time.Time // UTC
	last store.AuditID
	at   map[[2]string]int // the place of each record
	err  error             // a record cannot be encoded: the change fails

	removing bool // something is left to remove in the background
}

// update makes a change, if the context's check still allows it (store.WithCheck). build adds what is to be changed; when that
// is nothing, nothing is written.
func (d *Data) update(ctx context.Context, build func(c *change) error) error {
	var made *change
	err := d.driver.Update(ctx, func(t Turn) (Change, error) {
		if err := store.Check(ctx); err != nil {
			return Change{}, err
		}
		made = &change{d: d, ctx: ctx, now: t.Now.UTC(), last: t.LastEntry, at: map[[2]string]int{}}
		if err := build(made); err != nil {
			return Change{}, err
		}
		return made.Change, made.err
	})
	if err != nil {
		return err
	}
	store.LogAudit(d.log, made.Entries)
	if made.removing {
		d.Removing()
	}
	return nil
}

// write replaces a record; a nil value deletes it.
func (c *change) write(kind, key string, value []byte) {
	id := [2]string{kind, key}
	if i, again := c.at[id]; again {
		c.Records[i].Value = value
		return
	}
	c.at[id] = len(c.Records)
	c.Records = append(c.Records, Record{kind, key, value})
}

func (c *change) put(kind, key string, v any) {
	value, err := json.Marshal(v)
	c.err = cmp.Or(c.err, err)
	c.write(kind, key, value)
}

func (c *change) delete(kind, key string) { c.write(kind, key, nil) }

// audit adds entries to the audit log.
func (c *change) audit(entries ...store.AuditEntry) {
	for _, entry := range entries {
		c.last++
		c.Entries = append(c.Entries, entry.Complete(c.ctx, c.last, c.now))
	}
}

// viewed is view for one result.
func viewed[T any](ctx context.Context, d *Data, read func(s *State, now time.Time) (T, error)) (result T, err error) {
	err = d.view(ctx, func(s *State, now time.Time) error {
		result, err = read(s, now)
		return err
	})
	return result, err
}

// view reads what is in memory, with all changes that were made before.
func (d *Data) view(ctx context.Context, read func(s *State, now time.Time) error) error {
	now, err := d.driver.Now(ctx)
	if err != nil {
		return err
	}
	return d.look(ctx, func(s *State) error { return read(s, now.UTC()) })
}

// Now implements removal.Engine.
func (d *Data) Now(ctx context.Context) (time.Time, error) { return d.driver.Now(ctx) }

// look is view without the latest changes of other machines.
func (d *Data) look(ctx context.Context, read func(s *State) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	return read(d.state)
}

// Audit implements store.Control.
func (d *Data) Audit(ctx context.Context, q store.AuditQuery) ([]store.AuditEntry, error) {
	return d.driver.Audit(ctx, q)
}

// tidied bounds how many records of a kind one call of Tidy drops.
const tidied = 1000

// Tidy stores when keys and sessions were last used, and deletes replies that are too old to be given again, and sessions
// that have ended. KeepTidy calls it now and then, so that no request has to write; an engine calls it once more when it
// closes.
func (d *Data) Tidy(ctx context.Context) error {
	return d.update(ctx, func(c *change) error {
		c.dropReplies()
		c.dropSessions()
		c.noteSeen()
		return c.noteUses()
	})
}

// KeepTidy calls tidy, which calls Tidy, once in store.KeyUseDelay until ctx ends.
func (d *Data) KeepTidy(ctx context.Context, tidy func(ctx context.Context) error) {
	for store.Sleep(ctx, store.KeyUseDelay) == nil {
		if err := tidy(ctx); err != nil && ctx.Err() == nil {
			d.log.Error("it cannot be stored when API keys and sessions were last used, and old records cannot be deleted", "error", err)
		}
	}
}

// ID returns the id of the data. Data without one gets it now.
func (d *Data) ID() (string, error) { return d.newID(false) }

// ReplaceID gives the data another id, because it has become another one: it was restored. It ends all sessions, as
// some of them may have been ended since the backup.
func (d *Data) ReplaceID() (id string, err error) { return d.newID(true) }

func (d *Data) newID(replace bool) (id string, err error) {
	err = d.update(context.Background(), func(c *change) error {
		if id = d.state.id; id != "" && !replace {
			return nil
		}
		if replace {
			for s := range d.state.sessions {
				c.delete(Sessions, string(s))
			}
		}
		id = rand.Text()[:16]
		c.write(Meta, metaID, []byte(id))
		return nil
	})
	return id, err
}
