package store

import (
	"context"
	"time"
)

// Engine is what the service stores in. Every engine passes the conformance suite in storetest.
//
// All methods may be called from many goroutines at once. A method that returns an error has changed nothing, except
// where it says otherwise. An error that callers act on carries a Kind.
//
// When a method is called with a context that has ended, it changes nothing and returns the context's error. When the
// context ends during the call, a query stops soon and returns that error; a change is either made whole and
// returns nil, or not made.
type Engine interface {
	Control
	Events

	// Directory is the in-memory view of the control data. A change is in it before the method that made the change
	// returns. Changes that other machines make, where several share a store, are in it within MaxDirectoryAge.
	Directory() *Directory

	// Ready returns nil while the engine accepts writes and its directory is no older than MaxDirectoryAge. Else it
	// returns the reason why not. It does no I/O.
	Ready() error

	// Close stops accepting, finishes what was accepted, and closes the files. It is called once.
	Close() error
}

// MaxDirectoryAge is how old a directory may be while its engine is ready.
const MaxDirectoryAge = time.Second

// Control is the engine's control data: partners, keys, merchants, tags. Each change is on disk when its method returns,
// and is made whole or not at all.
type Control interface {
	// AddPartner creates a partner. KindInvalid: name.
	AddPartner(ctx context.Context, name string) (Partner, error)
	// Partners returns all partners, oldest first.
	Partners(ctx context.Context) ([]Partner, error)
	// EnablePreverified gives a partner preverified access at a tracking domain (a full host name), or moves its access
	// to another one, together with the partner's preverified tags. KindNotFound: partner. KindInvalid: domain.
	// KindConflict: the domain is another partner's tracking domain, or is on a root domain that a server-side tag has
	// registered.
	EnablePreverified(ctx context.Context, id PartnerID, domain string) (Partner, error)

	// IssueKey creates a key and returns the only copy of its text. With expiresIn 0 it never expires.
	// KindNotFound: partner.
	IssueKey(ctx context.Context, id PartnerID, expiresIn time.Duration) (Key, APIKey, error)
	// Keys returns a partner's keys, oldest first, with revoked and expired ones. KindNotFound: partner.
	Keys(ctx context.Context, id PartnerID) ([]Key, error)
	// RevokeKey revokes a key. A key that is revoked again keeps the first time. KindNotFound: key.
	RevokeKey(ctx context.Context, id KeyID) (Key, error)

	// AddMerchant creates a merchant. The caller has checked name and domain. KindNotFound: partner.
	AddMerchant(ctx context.Context, partner PartnerID, name, domain string) (Merchant, error)
	// Merchant returns a merchant with its tags, whoever owns it. KindNotFound: merchant.
	Merchant(ctx context.Context, id MerchantID) (Merchant, error)
	// Merchants returns one page of a partner's merchants with their tags, oldest first, and the number of all.
	Merchants(ctx context.Context, partner PartnerID, offset, limit int) ([]Merchant, int, error)

	// GenerateTag returns the merchant's tag of a type. When there is none it creates one, and created is true. domain
	// is the root domain of a new server-side tag, which the caller has checked; else it is ignored.
	// KindNotFound: merchant. KindConflict: another merchant's server-side tag has the domain. KindInvalid: domain (a
	// partner's tracking domain is on it), type (no preverified access).
	GenerateTag(ctx context.Context, id MerchantID, t TagType, domain string) (tag Tag, created bool, err error)
	// Tag returns a tag, whoever owns it. KindNotFound: tag.
	Tag(ctx context.Context, id TagID) (Tag, error)
	// UpdateTag replaces a tag by change(tag), a transition of tag.go, in one transaction, and returns the new tag. The
	// engine may call change more than once, with the tag as it then is, and stores the last result. So change must be
	// pure: its result depends on the tag alone, and it has no other effect. It must not change the tag's id, owner,
	// type, label or domain. KindNotFound: tag.
	UpdateTag(ctx context.Context, id TagID, change func(Tag) Tag) (Tag, error)
}

// Events is the engine's event data: events, identity links and event_id marks. Each belongs to one merchant.
type Events interface {
	// Record resolves, deduplicates, links and appends marks in their order, and sets the Outcome of each. When it
	// returns nil, all of that is on disk: it survives a kill and a power cut, and later calls of Events and Resolve see
	// it. For each mark:
	//
	//  1. A mark without a muid gets the muid of its first identifier that is linked to one. Without such an identifier
	//     the outcome is Unresolved, and nothing is kept.
	//  2. When an event of the merchant with the same DedupeID was recorded within DedupeWindow, the outcome is Duplicate,
	//     and nothing changes.
	//  3. The identifiers of a mark that came with a muid are linked to it; the newest link counts. A muid from step 1
	//     links nothing.
	//  4. The event is appended, and the outcome is Recorded.
	//
	// KindInvalid: a muid is longer than MaxMUIDLength; nothing was recorded. KindUnavailable: the engine cannot accept the
	// marks now; nothing was recorded, and a later call may succeed. After any other error the marks may or may not be
	// recorded.
	//
	// ctx counts until the engine accepts the marks: when it ends before that, nothing is recorded and its error is
	// returned. Once accepted, marks are always waited for, as the engine reads them from the caller's memory.
	Record(ctx context.Context, marks []Mark) error

	// Resolve returns the muid of an identity. An identity with a muid keeps it, and its identifiers are durably linked to
	// it. For an identity without one it is the muid of the first identifier that is linked to one, or "". Errors and
	// ctx are as with Record.
	Resolve(ctx context.Context, merchant MerchantID, id Identity) (MUID, error)

	// Events returns one page of a merchant's events, and the number of all events of the query, both as of one moment.
	// The page is empty for a merchant or tag without events, and for a range that ends before it starts. A name that
	// is given twice counts once. When ctx ends, the query stops soon and its error is returned.
	Events(ctx context.Context, q Query) (Page, error)
}
