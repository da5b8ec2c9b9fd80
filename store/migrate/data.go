package migrate

import (
	"context"
	"slices"

	"mtagd/store"
	"mtagd/store/rules"
)

// Data is what a store has, as it is read in the source, and again in the target.
type Data interface {
	// Events passes the events that were received after one moment and up to another (µs since 1970), those of each
	// merchant in the order of receipt. Those of deleted merchants may be left out. An event is valid until use returns.
	Events(ctx context.Context, after, upTo uint64, use func(*Event) error) error
	// Keys passes links and remembered event_ids that were written after a moment, or more of them, in any order, and
	// returns the moment up to which it has read. A key is valid until use returns, but its slices stay as they are.
	Keys(ctx context.Context, since uint64, use func(*Key) error) (moment uint64, err error)
	// Control returns all control data but sessions and the audit log.
	Control(ctx context.Context) (*Control, error)
	// Audit passes the entries of the audit log after one, the oldest first.
	Audit(ctx context.Context, after store.AuditID, use func(*store.AuditEntry) error) error
	// Usage returns how many events merchants have, from another place than Events reads.
	Usage(ctx context.Context, merchants []store.MerchantID) ([]store.Usage, error)
}

// Source is a store that is copied.
type Source interface {
	Data

	// Latest is store.Feed.Latest.
	Latest(ctx context.Context) (store.Cursor, error)
}

// Live is a source that serves while it is copied.
type Live interface {
	Source

	// Hold finishes a removal of events that was cut off, and keeps the store from removing others until release is called.
	Hold(ctx context.Context) (release func(), err error)
	// Freeze makes the store refuse events and changes of control data with KindUnavailable, and returns when those that it
	// accepted before are on disk. When the process ends, the store goes on.
	Freeze(ctx context.Context) (Frozen, error)
}

// Frozen is a source that accepts nothing.
type Frozen interface {
	// MarkMoved marks the source as moved to a target. Whoever opens it later is told so.
	MarkMoved(ctx context.Context, to Place) error
	// Thaw lets the source go on, unless it was marked. It may be called more than once, but not beside MarkMoved.
	Thaw()
}

// Place says which store has the data of a source that has moved.
type Place struct {
	Name string `json:"to"`           // for people, without secrets. It changes when a store is reached through another host
	ID   string `json:"id,omitempty"` // of the store
}

// Target is a store that is being filled. Nobody else can open it before everything is there and was compared.
type Target interface {
	Data

	// Add adds a portion of what the source has.
	Add(ctx context.Context, p Portion) error
	// SetControl replaces the control data.
	SetControl(ctx context.Context, c *Control) error
	// Index makes what was added ready to be read. That are all events up to a moment. Only a Successor takes more after it.
	Index(ctx context.Context, upTo uint64) error
}

// Portion is what is written together.
type Portion struct {
	Events []Event            // those of each merchant in the order of receipt
	Keys   []Key              // which may replace others
	Audit  []store.AuditEntry // for the end of the audit log
}

// Successor is a target that takes over from a live source.
type Successor interface {
	Target
	// BeginFilling prepares the target. It removes what a run has left that was cut off, and fails when there is other data.
	BeginFilling(ctx context.Context) error

	// Ready notes that everything is there, with the events up to a moment, and returns which store the target is.
	Ready(ctx context.Context, upTo uint64) (Place, error)
	// Finish lets the target be opened, once it is ready. It does nothing when the target is open already.
	Finish(ctx context.Context) error
}

// Event is an event of any merchant.
type Event struct {
	Merchant store.MerchantKey
	At       store.Position
	Time     int64 // event_time, µs since 1970
	Tag      string
	Name     string
	Bot      bool
	MUID     []byte
	store.Details
	Raw []byte
}

// Key is a link, or a remembered event_id.
type Key struct {
	Merchant store.MerchantKey
	Key      []byte // store.IdentityKey of a link; store.RememberedKey of an event_id
	Seen     int64  // of an event_id: when it was received, µs since 1970

	// Of a link.
	MUID   []byte
	Source store.LinkSource
	Former bool // another link of the identifier has replaced it
}

// kind tells links with other sources, and former ones, apart.
func (k *Key) kind() byte {
	kind := byte(k.Source) << 1
	if k.Former {
		kind |= 1
	}
	return kind
}

// IsLink reports whether k is a link.
func (k *Key) IsLink() bool { return len(k.Key) == len(store.IdentityKey{}) }

// Control is all control data but sessions and the audit log.
type Control struct {
	Records   []rules.Record   // in the order of their kinds and keys
	Files     []File           // in the order of their paths
	Documents []store.Document // those that are kept (store.DocumentKind.IsKept), in the order of store.CompareDocuments
}

// count returns how many records there are of a kind.
func (c *Control) count(kind string) (n int) {
	for _, r := range c.Records {
		if r.Kind == kind {
			n++
		}
	}
	return n
}

// dropOrphans leaves out documents whose merchant was deleted: a database deletes them later.
func (c *Control) dropOrphans() {
	known := map[store.MerchantID]bool{"": true}
	for _, r := range c.Records {
		if r.Kind == rules.Merchants {
			known[store.MerchantID(r.Key)] = true
		}
	}
	c.Documents = slices.DeleteFunc(c.Documents, func(doc store.Document) bool { return !known[doc.Merchant] })
}

// File is a certificate, its key, or what else the CA needs (package certs). Path has the form a/b/c.
type File struct {
	Path    string
	Content []byte
}
