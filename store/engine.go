package store

import (
	"context"
	"time"
)

// Engine is what the service stores in. Every engine passes the conformance suite in storetest.
//
// All methods may be called at once from many goroutines. A method that returns an error has
// changed nothing, except where it says otherwise. Errors that callers act on carry a Kind.
type Engine interface {
	Control
	Events

	// Directory is the in-memory view of the control data. A change is in it before the method
	// that made the change returns.
	Directory() *Directory

	// Ready returns nil while the engine accepts writes, else the reason why not. It does no I/O.
	Ready() error

	// Close stops accepting, finishes and answers what was accepted, and closes the files. It is
	// called once.
	Close() error
}

// Control is the engine's control data: partners, keys, merchants, tags. Each change is on disk when its
// method returns, and is made whole or not at all.
type Control interface {
	// AddPartner creates a partner. KindInvalid: name.
	AddPartner(ctx context.Context, name string) (Partner, error)
	// Partners returns all partners, oldest first.
	Partners(ctx context.Context) ([]Partner, error)
	// EnablePreverified gives a partner preverified access at a tracking domain (a full host name), or moves
	// it to another one; the partner's preverified tags move along. KindNotFound: partner.
	// KindInvalid: domain. KindConflict: another partner's tracking domain, or on a root domain that
	// a server-side tag has registered.
	EnablePreverified(ctx context.Context, id PartnerID, domain string) (Partner, error)

	// IssueKey creates a key and returns the only copy of its text. expiresIn 0 means never.
	// KindNotFound: partner.
	IssueKey(ctx context.Context, id PartnerID, expiresIn time.Duration) (Key, APIKey, error)
	// Keys returns a partner's keys, oldest first, revoked and expired ones too. KindNotFound: partner.
	Keys(ctx context.Context, id PartnerID) ([]Key, error)
	// RevokeKey revokes a key; revoking it again keeps the first time. KindNotFound: key.
	RevokeKey(ctx context.Context, id KeyID) (Key, error)

	// AddMerchant creates a merchant; name and domain were checked. KindNotFound: partner.
	AddMerchant(ctx context.Context, partner PartnerID, name, domain string) (Merchant, error)
	// Merchant returns a merchant with its tags, whoever owns it. KindNotFound: merchant.
	Merchant(ctx context.Context, id MerchantID) (Merchant, error)
	// Merchants returns one page of a partner's merchants with their tags, oldest first, and the number of all.
	Merchants(ctx context.Context, partner PartnerID, offset, limit int) ([]Merchant, int, error)

	// GenerateTag returns the merchant's tag of a type, and creates it where there is none yet: then created is true.
	// domain is the checked root domain of a server-side tag, ignored for the other types and
	// for a tag that exists. KindNotFound: merchant. KindConflict: another merchant's server-side tag
	// has the domain. KindInvalid: domain (a partner's tracking domain is on it), type (no
	// preverified access).
	GenerateTag(ctx context.Context, id MerchantID, t TagType, domain string) (tag Tag, created bool, err error)
	// Tag returns a tag, whoever owns it. KindNotFound: tag.
	Tag(ctx context.Context, id TagID) (Tag, error)
	// UpdateTag replaces a tag by what change makes of it (a transition of tag.go), in one
	// transaction. Its id, owner, type, label and domain do not change. KindNotFound: tag.
	UpdateTag(ctx context.Context, id TagID, change func(Tag) Tag) (Tag, error)
}

// Events is the engine's event data: events, identities and event_id marks, of one merchant each.
type Events interface {
	// Record resolves, links, deduplicates and appends marks in their order, and sets the Outcome
	// of each. When it returns nil, all of that is on disk: it survives a kill and a power cut, and
	// later calls of Events and Resolve see it.
	//
	// For each mark: without a muid, the first of its identifiers that is linked gives the muid,
	// else the outcome is Unresolved and nothing is kept. With a DedupeID recorded for the merchant
	// within DedupeWindow, the outcome is Duplicate and nothing changes. Otherwise the event is
	// appended, and where the mark has both a muid and identifiers, they are linked to it: the
	// newest link wins. A muid that was resolved links nothing.
	//
	// KindInvalid: a muid is longer than MaxMUIDLength; nothing was recorded.
	// KindUnavailable: the engine cannot take the marks, nothing was recorded, and a later try may
	// succeed. On any other error the marks may or may not have been recorded.
	//
	// ctx bounds the wait until the engine takes the marks: when it ends before, its error is returned and
	// nothing was recorded. Marks that were taken are waited for, since they alias the caller's memory.
	Record(ctx context.Context, marks []Mark) error

	// Resolve returns the muid of an identity: its own, which is then durably linked to the
	// identifiers beside it, or the one linked to the first identifier that has a link, or "".
	// Errors and ctx as of Record.
	Resolve(ctx context.Context, merchant MerchantID, id Identity) (MUID, error)

	// Events returns one page of a merchant's events. A merchant or tag without events gives an
	// empty page, and so does a range that ends before it starts. A name given twice counts once.
	// When ctx ends, the query stops soon after and its error is returned.
	Events(ctx context.Context, q Query) (Page, error)
}
