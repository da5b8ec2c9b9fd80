package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// followInterval is how often a node asks what other nodes have changed. NOTIFY would tell it sooner, but takes a lock of the
// whole server at each commit, and does not get through poolers.
const followInterval = 200 * time.Millisecond

// followTimeout is for one such question, and for a commit.
const followTimeout = 2 * time.Second

// keepChanges is how long entries of the table change are kept. A node that was stopped for longer must be started again.
const keepChanges = 24 * time.Hour

// follower keeps a node's directory up to date.
type follower struct {
	directory *store.Directory
	asked     atomic.Pointer[time.Time] // when the last question was put that has an answer
	lost      atomic.Bool               // entries were missed
	waits     atomic.Bool               // the last question was answered, but a commit after it still waits for the standbys

	flushes int64 // the number of the last flush that was seen; only follow uses it

	mu      sync.Mutex // held while entries are applied
	applied int64      // the number of the last one
}

// errMissed is for a node that was stopped for so long that entries were deleted before it had read them.
var errMissed = fmt.Errorf("%w: changes of the control data were missed", store.ErrNeedsRestart)

// entry is a line of the table change: a record of the control data that is new, has changed or was deleted.
type entry struct {
	seq    int64
	kind   entryKind
	record []byte
}

// entryKind says what the record of an entry is.
type entryKind string

const (
	partnerSet       entryKind = "partner"          // store.Partner
	partnerRemoved   entryKind = "partner removed"  // store.PartnerID
	keySet           entryKind = "key"              // store.Key
	keyRemoved       entryKind = "key removed"      // store.KeyID
	sessionSet       entryKind = "session"          // store.Session
	sessionRemoved   entryKind = "session removed"  // store.SessionID
	merchantSet      entryKind = "merchant"         // store.Merchant
	merchantsRemoved entryKind = "merchant removed" // []removedMerchant
	tagSet           entryKind = "tag"              // tagRecord
)

// tagRecord is a tag with the fields that its own JSON leaves out.
type tagRecord struct {
	store.Tag
	Host      string `json:"host"`
	ClaimLost bool   `json:"claimLost"`
}

func (t tagRecord) tag() store.Tag {
	tag := t.Tag
	tag.Host, tag.ClaimLost = t.Host, t.ClaimLost
	return tag
}

// removedMerchant is a merchant with its tags.
type removedMerchant struct {
	ID      store.MerchantID `json:"merchantId"`
	Partner store.PartnerID  `json:"partnerId"`
	Tags    []store.TagID    `json:"tags"`
}

// position returns the number of the last entry that was applied.
func (f *follower) position() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applied
}

// age is store.Directory.Age.
func (f *follower) age() time.Duration { return time.Since(*f.asked.Load()) }

// applyUpdate applies what was read. The caller has made sure that it is on the standbys.
func (f *follower) applyUpdate(u *update) error {
	if int64(len(u.entries)) != max(u.seen.change-u.after, 0) {
		f.lost.Store(true)
		return errMissed
	}
	return f.apply(u.entries)
}

// apply applies entries that follow each other, and passes over those that were applied before.
func (f *follower) apply(entries []entry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range entries {
		if e.seq <= f.applied {
			continue
		}
		if e.seq != f.applied+1 {
			f.lost.Store(true)
			return errMissed
		}
		if err := applyEntry(f.directory, e); err != nil {
			return fmt.Errorf("change %d: %w", e.seq, err)
		}
		f.applied = e.seq
	}
	return nil
}

// update is what the database has, as of one moment, that a node may not know yet.
type update struct {
	after   int64   // the number of the last entry that the node has applied
	entries []entry // all after it
	seen    snapshot
}

// read reads what follows the entry with the number after.
func (u *update) read(ctx context.Context, tx pgx.Tx, after int64) (err error) {
	u.after = after
	if u.entries, err = readEntries(ctx, tx, after); err != nil {
		return err
	}
	return u.seen.scan(tx.QueryRow(ctx, readSnapshot))
}

// readEntries reads the entries after a number.
func readEntries(ctx context.Context, tx pgx.Tx, after int64) (entries []entry, err error) {
	err = query(ctx, tx, func(rows pgx.Rows) error {
		var e entry
		err := rows.Scan(&e.seq, &e.kind, &e.record)
		entries = append(entries, e)
		return err
	}, "SELECT seq, kind, record FROM change WHERE seq > $1 ORDER BY seq", after)
	return entries, err
}

// applyEntry puts an entry into a directory.
func applyEntry(d *store.Directory, e entry) (err error) {
	decodeTo := func(v any) { err = json.Unmarshal(e.record, v) }
	switch e.kind {
	case partnerSet:
		var p store.Partner
		if decodeTo(&p); err == nil {
			d.SetPartner(p)
		}
	case partnerRemoved:
		var id store.PartnerID
		if decodeTo(&id); err == nil {
			d.RemovePartner(id)
		}
	case keySet:
		var k store.Key
		if decodeTo(&k); err == nil {
			d.SetKey(k)
		}
	case keyRemoved:
		var id store.KeyID
		if decodeTo(&id); err == nil {
			d.RemoveKey(id)
		}
	case sessionSet:
		var s store.Session
		if decodeTo(&s); err == nil {
			d.SetSession(s)
		}
	case sessionRemoved:
		var id store.SessionID
		if decodeTo(&id); err == nil {
			d.RemoveSession(id)
		}
	case merchantSet:
		var m store.Merchant
		if decodeTo(&m); err == nil {
			d.SetMerchant(m)
		}
	case merchantsRemoved:
		var removed []removedMerchant
		if decodeTo(&removed); err == nil {
			d.RemoveMerchants(withTags(removed)...)
		}
	case tagSet:
		var t tagRecord
		if decodeTo(&t); err == nil {
			d.SetTag(t.tag())
		}
	default:
		err = fmt.Errorf("unknown kind %q", e.kind)
	}
	return err
}

// withTags returns merchants as Directory.RemoveMerchants needs them.
func withTags(removed []removedMerchant) (merchants []store.Merchant) {
	for _, r := range removed {
		m := store.Merchant{ID: r.ID, Partner: r.Partner}
		for _, id := range r.Tags {
			m.Tags = append(m.Tags, store.Tag{ID: id})
		}
		merchants = append(merchants, m)
	}
	return merchants
}

// loadDirectory fills a new directory with all control data, as of one moment, and waits until the standbys have that. Otherwise a
// fail-over could lose a change that was read, and give its number to another one, such as a revoked key. This node would never apply that.
func (e *engine) loadDirectory(ctx context.Context) error {
	var asked time.Time
	var d *store.Directory
	var seen snapshot
	if err := e.read(ctx, func(tx pgx.Tx) error {
		asked, d = time.Now(), store.NewDirectory()
		if err := seen.scan(tx.QueryRow(ctx, readSnapshot)); err != nil {
			return err
		}
		return fillDirectory(ctx, tx, d)
	}); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	if err := e.confirmNow(bounded, seen); err != nil {
		return notOnStandbys(err)
	}
	d.SetAge(e.follower.age)
	e.follower.directory, e.follower.applied, e.follower.flushes = d, seen.change, seen.flush
	e.follower.asked.Store(&asked)
	return nil
}

// notOnStandbys returns the error of what was read, but not confirmed.
func notOnStandbys(err error) error {
	return fmt.Errorf("the database answers, but what it has may not be on the standbys: %w", err)
}

// fillDirectory puts all control data into an empty directory.
func fillDirectory(ctx context.Context, tx pgx.Tx, d *store.Directory) error {
	partners, err := list[store.Partner](ctx, tx, "SELECT record FROM partner")
	if err != nil {
		return err
	}
	for _, p := range partners {
		d.SetPartner(p)
	}
	if err := loadKeys(ctx, tx, d); err != nil {
		return err
	}
	if err := loadSessions(ctx, tx, d); err != nil {
		return err
	}
	if err := query(ctx, tx, func(rows pgx.Rows) error {
		var text []byte
		if err := rows.Scan(&text); err != nil {
			return err
		}
		m, err := decode[store.Merchant](text)
		if err == nil {
			d.SetMerchant(m)
		}
		return err
	}, "SELECT record FROM merchant"); err != nil {
		return err
	}
	tags, err := listTags(ctx, tx, "ORDER BY t.created")
	if err != nil {
		return err
	}
	for _, t := range tags {
		d.SetTag(t)
	}
	return nil
}

// loadKeys loads the API keys.
func loadKeys(ctx context.Context, tx pgx.Tx, d *store.Directory) error {
	return query(ctx, tx, func(rows pgx.Rows) error {
		var text []byte
		var used *time.Time
		if err := rows.Scan(&text, &used); err != nil {
			return err
		}
		k, err := decode[store.Key](text)
		if err != nil {
			return err
		}
		d.SetKey(k)
		if used != nil {
			d.SetLastUse(k.ID, *used)
		}
		return nil
	}, "SELECT record, used FROM api_key")
}

// follow follows the changes of other nodes until Close.
func (e *engine) follow() {
	e.repeat(followInterval, e.followOnce, func(err error) {
		if err != nil {
			e.log.Error("what other nodes have changed cannot be read: this node is not ready until it can", "error", err)
			return
		}
		e.log.Info("what other nodes have changed can be read again")
	})
}

// catchUp applies what other nodes have changed, and returns the number of the last flush. From then on the directory has the tags of all
// events up to it. more reads more as of the same moment.
//
// It makes a commit each time, even when there is nothing new. That shows whether commits reach the standbys.
func (e *engine) catchUp(ctx context.Context, more func(tx pgx.Tx) error) (flush int64, err error) {
	var u update
	asked, after := time.Now(), e.follower.position()
	if err := e.readNow(ctx, func(tx pgx.Tx) error {
		if err := u.read(ctx, tx, after); err != nil {
			return err
		}
		return more(tx)
	}); err != nil {
		e.follower.waits.Store(false)
		return 0, err
	}
	e.follower.waits.Store(true)
	err = e.confirmNow(ctx, u.seen)
	e.follower.waits.Store(err != nil && !errors.Is(err, errReplaced))
	if err != nil {
		return 0, notOnStandbys(err)
	}
	if err := e.follower.applyUpdate(&u); err != nil {
		return 0, err
	}
	e.follower.asked.Store(&asked)
	return u.seen.flush, nil
}

// followOnce catches up, and tells those who wait for events what other nodes have recorded. When that takes too long, it closes
// all connections: otherwise, everything that waits for a server that is stopped or cut off would wait until it is back.
func (e *engine) followOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	defer func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			e.hosts.drop()
			e.pool.Reset()
		}
	}()
	var news []uuid.UUID
	flushes, err := e.catchUp(ctx, func(tx pgx.Tx) error {
		news = nil
		return query(ctx, tx, func(rows pgx.Rows) error {
			var merchant uuid.UUID
			err := rows.Scan(&merchant)
			news = append(news, merchant)
			return err
		}, "SELECT DISTINCT unnest(merchants) FROM flush WHERE seq > $1 AND node <> $2", e.follower.flushes, e.node)
	})
	if err != nil {
		return err
	}
	e.follower.flushes = flushes
	e.watches.tell(news)
	return nil
}

// Ready implements store.Engine.
func (e *engine) Ready() error {
	if e.follower.lost.Load() {
		return errMissed
	}
	if age := e.follower.age(); age > store.MaxDirectoryAge {
		if e.follower.waits.Load() {
			return fmt.Errorf("the database answers, but its commits have waited for the standbys for %v", age.Round(time.Millisecond))
		}
		return fmt.Errorf("the database has not answered for %v", age.Round(time.Millisecond))
	}
	return nil
}
