package move

import (
	"context"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Data is an engine's data as a move reads it, on both sides.
type Data interface {
	// Events passes the events that were received after one moment and up to another (µs since 1970). A source passes them in the
	// order of receipt. Events of merchants that were deleted may be left out. An event is valid until use returns.
	Events(ctx context.Context, after, upTo uint64, use func(*Event) error) error
	// Keys passes links and remembered event_ids that were written after a moment, or more of them, in any order, and returns
	// the moment up to which it has read. A key is valid until use returns, but its slices stay as they are.
	Keys(ctx context.Context, since uint64, use func(*Key) error) (moment uint64, err error)
	// Control returns all control data but sessions and the audit log.
	Control(ctx context.Context) (*Control, error)
	// Audit passes the entries of the audit log after one, the oldest first.
	Audit(ctx context.Context, after store.AuditID, use func(*store.AuditEntry) error) error
}

// Source is an engine whose data moves.
type Source interface {
	Data

	// ID returns what tells this store from all others.
	ID(ctx context.Context) (string, error)
	// Hold keeps the engine from removing events until release is called. held ends with ctx. It also ends when the hold is lost, so
	// that the engine may remove events again; then context.Cause(held) says so.
	Hold(ctx context.Context) (held context.Context, release func(), err error)
	// PassesAllLinks reports whether each call of Keys passes all links, and the event_ids of the last minutes again. Otherwise a call
	// passes only what was written since the given moment.
	PassesAllLinks() bool
	// Last returns when the last event on disk was received (µs since 1970); 0 when there is none.
	Last(ctx context.Context) (uint64, error)
	// Usage returns how many events merchants have, from another place than Events reads. It is asked while the source is frozen.
	Usage(ctx context.Context, merchants []store.MerchantID) ([]store.Usage, error)
	// Freeze makes the engine refuse events and changes of control data with KindUnavailable, and returns when those that it
	// accepted before are on disk. When the process ends, the engine goes on.
	Freeze(ctx context.Context) (Frozen, error)
}

// Frozen is a source that accepts nothing.
type Frozen interface {
	// Commit marks the source as moved to a target. Whoever opens it later is told so.
	Commit(ctx context.Context, to Place) error
	// Release lets the source go on, unless it was marked. It may be called more than once, but not beside Commit.
	Release()
}

// Place says which store is the target of a move. A source that has moved keeps it.
type Place struct {
	Name string // for people, without secrets. It changes when a store is mounted elsewhere, or reached through another host
	ID   string // what Source.ID returns when the target moves on later; "" if an earlier version noted the move
}

// Is reports whether p, which a source has kept, is the same store as other.
func (p Place) Is(other Place) bool {
	if p.ID == "" {
		return p.Name == other.Name
	}
	return p.ID == other.ID
}

// Target is a store that is being filled. Nobody can open it until Finish.
type Target interface {
	Data

	// Begin prepares the target for the data of a source. It returns how far an earlier move of the same source has got, as
	// Add has noted it: 0 when the target is new. It fails when the target has other data. What is left of data that has moved
	// out of the target is replaced if the source has that data now, and is other data if another store has it.
	Begin(ctx context.Context, source string) (at uint64, err error)
	// Clear removes everything that was added.
	Clear(ctx context.Context) error
	// Add adds events, and notes how far the move is. Both are on disk when it returns, or neither is.
	Add(ctx context.Context, b *Batch) error
	// Index prepares all events so far for reading. It is called once, before the source is frozen; what Add adds after it is prepared
	// at once.
	Index(ctx context.Context) error
	// AddKeys adds links and remembered event_ids, or replaces them.
	AddKeys(ctx context.Context, keys []Key) error
	// LastAudit returns the last entry that AddAudit has added; 0 when there is none. AddAudit adds entries after it.
	LastAudit(ctx context.Context) (store.AuditID, error)
	AddAudit(ctx context.Context, entries []store.AuditEntry) error
	// SetControl replaces the control data.
	SetControl(ctx context.Context, c *Control) error
	// Ready notes that everything is there, with the events up to a moment, and returns which store the target is.
	Ready(ctx context.Context, upTo uint64) (Place, error)
	// Finish lets the target be opened, once it is ready. It does nothing when the target is open already.
	Finish(ctx context.Context) error
}

// Event is an event of any merchant.
type Event struct {
	Merchant codec.MerchantKey
	At       codec.Position
	Time     int64 // event_time, µs since 1970
	Tag      string
	Name     string
	Bot      bool
	MUID     []byte
	ByClaim  bool // store.Event
	Raw      []byte
}

// Batch is events in the order of receipt.
type Batch struct {
	Events []Event
	UpTo   uint64 // with them, the target has all events up to this receipt

	bytes []byte // of the events
}

// add adds a copy of an event.
func (b *Batch) add(e *Event) {
	copied := *e
	start := len(b.bytes)
	b.bytes = append(append(b.bytes, e.MUID...), e.Raw...)
	middle, end := start+len(e.MUID), len(b.bytes)
	copied.MUID, copied.Raw = b.bytes[start:middle:middle], b.bytes[middle:end:end] // stays valid when bytes grows
	b.Events = append(b.Events, copied)
}

// Key is a link, or a remembered event_id.
type Key struct {
	Merchant codec.MerchantKey
	Key      []byte // store.IdentityKey of a link; for an event_id, the first 16 bytes of the SHA-256 of name, zero byte and event_id
	Seen     int64  // of an event_id: when it was received, µs since 1970

	// Of a link.
	MUID   []byte
	Source store.LinkSource
	Former bool // another link of the identifier has replaced it
}

// kind tells links with other sources, and former ones, apart.
func (k *Key) kind() []byte {
	kind := byte(k.Source) << 1
	if k.Former {
		kind |= 1
	}
	return []byte{kind}
}

// Link returns the link that k is.
func (k *Key) Link() store.Link {
	return store.Link{Identifier: store.IdentityKey(k.Key), MUID: store.MUID(k.MUID), Source: k.Source}
}

// IsLink reports whether k is a link.
func (k *Key) IsLink() bool { return len(k.Key) == len(store.IdentityKey{}) }

// Control is all control data but sessions and the audit log. Each list is in the order of its keys, and nil when it is empty.
type Control struct {
	Retention  store.Retention
	Partners   []store.Partner
	Keys       []Issued
	Merchants  []Merchant
	Tags       []store.Tag // Host and ClaimLost are not set
	Claims     []Claim
	Replies    []Reply
	Removals   []store.Removal
	Erasures   []store.Erasure
	Suppressed []Suppressed
	Files      []File
	Documents  []store.Document // those that are kept
}

// File is a certificate, its key, or what else the CA needs (package certs). Path has the form a/b/c.
type File struct {
	Path    string
	Content []byte
}

// Issued is an API key.
type Issued struct {
	store.Key
	LastUse int64 `json:"lastUse"` // µs since 1970; 0: never
}

// Merchant is a merchant without its tags.
type Merchant struct {
	store.Merchant
	Ordinal uint64 `json:"ordinal"` // in the order of the partner's merchants
}

// Claim says which tag has the claim to a root domain.
type Claim struct {
	Domain string
	Tag    store.TagID
}

// Reply is what a call with an idempotency key has created.
type Reply struct {
	Partner store.PartnerID
	Key     string // SHA-256 of the idempotency key, in hexadecimal
	At      time.Time

	// A merchant, as it was created.
	Merchant  store.MerchantID
	Name      string
	Domain    string
	Secret    bool // store.Merchant.IdentityRequiresSecret
	CreatedAt time.Time

	IssuedKey store.KeyID
}

// Suppressed is a person whose events are refused.
type Suppressed struct {
	Merchant store.MerchantID
	Key      store.IdentityKey
	Erasure  store.ErasureID
}
