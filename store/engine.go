package store

import (
	"context"
	"time"
)

// Engine stores all data of the service. Every engine passes the tests in storetest.
//
// All methods may be called from many goroutines at once. A method that returns an error has changed nothing, except
// where it says otherwise. An error that callers act on carries a Kind.
//
// When a method is called with a context that has ended, it changes nothing and returns the context's error. When the
// context ends during the call, a query stops soon and returns that error; a change is either made as a whole, and the
// method returns nil, or not made at all.
type Engine interface {
	Control
	Events
	Feed
	Persons
	Documents

	// Directory returns the in-memory view of the control data. A change is in it before the method that made the change
	// returns. Where several machines share a store, the changes of the others are in it within MaxDirectoryAge.
	Directory() *Directory

	// Ready returns nil while the engine accepts writes and its directory is no older than MaxDirectoryAge. Otherwise
	// it returns the reason, for operators. The reason is ErrNeedsRestart when a restart would help. Ready does no I/O.
	Ready() error

	// FreeSpace returns how many bytes events may still take before the engine refuses them. It does no I/O.
	FreeSpace() (bytes uint64)

	// Verify reads all data, checks every checksum, and compares what must agree. It passes what is wrong to v.Found, and
	// returns an error only when it could not finish. It changes no data, except that an engine may set damage aside that it
	// finds. Events are recorded and listed meanwhile; those that are recorded after the call began may be left out.
	Verify(ctx context.Context, v Verification) (Verified, error)

	// Close stops accepting marks, finishes what was accepted, and closes the files. It is called once.
	Close() error
}

// MaxDirectoryAge is how old a directory may be while its engine is ready.
const MaxDirectoryAge = time.Second

// OnceWindow is how long an engine remembers the calls with an idempotency key, and MaxOnce how many of them for each
// partner: when there are more, it forgets the oldest.
const (
	OnceWindow = 24 * time.Hour
	MaxOnce    = 10_000
)

// Control is the engine's control data: partners, keys, merchants, tags. Each change is on disk when its method returns,
// and is made as a whole or not at all.
//
// The comments give the errors of each method: the kind, and what it is about. A change of a partner may also fail with
// ErrAuditFull.
type Control interface {
	// AddPartner creates a partner. KindInvalid: name.
	AddPartner(ctx context.Context, name string) (Partner, error)
	// Partners returns all partners, oldest first.
	Partners(ctx context.Context) ([]Partner, error)
	// UpdatePartner replaces a partner by change(partner), as UpdateTag does with a tag. change must not change the
	// partner's id, creation time or tracking domain. KindNotFound: partner.
	UpdatePartner(ctx context.Context, id PartnerID, change func(Partner) Partner) (Partner, error)
	// DeletePartner deletes a partner with its keys, and its merchants as DeleteMerchant does. KindNotFound: partner.
	// KindConflict: it has merchants, and withMerchants is not set.
	DeletePartner(ctx context.Context, id PartnerID, withMerchants bool) (Partner, error)
	// EnablePreverified gives a partner preverified access at a tracking domain (a full host name). When the partner has
	// access already, it moves the access and the partner's preverified tags to this domain. KindNotFound: partner.
	// KindInvalid: domain. KindConflict: the domain is another partner's tracking domain, or it is on a root domain that
	// a server-side tag has claimed. A claim that is free is lost.
	EnablePreverified(ctx context.Context, id PartnerID, domain string) (Partner, error)

	// IssueKey creates a key and returns the only copy of its text. KindNotFound: partner. KindLimited: the partner has
	// MaxKeys valid keys. KindMismatch: a key was issued with opt.Once before (AddMerchant); its text cannot be given again.
	IssueKey(ctx context.Context, id PartnerID, opt KeyOptions) (Key, APIKey, error)
	// Keys returns a partner's keys, oldest first, including revoked and expired ones. KindNotFound: partner.
	Keys(ctx context.Context, id PartnerID) ([]Key, error)
	// RevokeKey revokes a key. A key that is revoked again keeps its first RevokedAt. KindNotFound: key. KindConflict: it is
	// the partner's last valid key of scope Full, and evenLast is not set.
	RevokeKey(ctx context.Context, id KeyID, evenLast bool) (Key, error)

	// AddLink makes a link that signs in to the web console, for a partner or, when the id is empty, for operators. It
	// returns the only copy of its text. KindNotFound: partner.
	AddLink(ctx context.Context, partner PartnerID) (Session, SessionText, error)
	// BeginSession begins a session with a key, whose text the caller has checked. It returns the only copy of the session's
	// text. KindNotFound: key (it is not valid any more).
	BeginSession(ctx context.Context, id KeyID) (Session, SessionText, error)
	// Link returns the link with a text, and does not use it up. KindNotFound: link (there is none with this text, it was
	// used, it has expired, or its partner was deleted).
	Link(ctx context.Context, link SessionText) (Session, error)
	// UseLink begins a session with a link, which nobody can use again. KindNotFound: link, as with Link.
	UseLink(ctx context.Context, link SessionText) (Session, SessionText, error)
	// EndSession ends a session: the next request with it is refused. KindNotFound: session.
	EndSession(ctx context.Context, id SessionID) error
	// EndSessions ends all sessions of a partner, or of operators when the id is empty, and all links that were not used. It
	// returns how many these are. KindNotFound: partner.
	EndSessions(ctx context.Context, partner PartnerID) (int, error)

	// AddMerchant creates a merchant. The caller has checked name and domain. When m.Once is set, and a call for the
	// same partner had the same one within OnceWindow, it returns the merchant of that call as it was created, and
	// changes nothing. KindNotFound: partner. KindLimited: the partner has as many merchants as it may have.
	// KindMismatch: the call with the same Once was another request.
	AddMerchant(ctx context.Context, partner PartnerID, m NewMerchant) (Merchant, error)
	// Merchant returns a merchant of any partner, with its tags. KindNotFound: merchant.
	Merchant(ctx context.Context, id MerchantID) (Merchant, error)
	// UpdateMerchant replaces a merchant by change(merchant), as UpdateTag does with a tag. change must not change the
	// merchant's id, partner or creation time, and Tags are left as they are. KindNotFound: merchant.
	UpdateMerchant(ctx context.Context, id MerchantID, change func(Merchant) Merchant) (Merchant, error)
	// DeleteMerchant deletes a merchant with its tags. From now on a host that only its tags had is not served (421), and other
	// hosts do not know the tags (404). Their labels and their claims to domains are free, and the merchant's events are in no
	// answer. The events themselves go in the background: the engine notes that it must remove them. KindNotFound: merchant.
	DeleteMerchant(ctx context.Context, id MerchantID) (Merchant, error)
	// Removals returns what is still removed besides erasures, the oldest first: the events of deleted merchants, and
	// those past the retention that could not be removed at the last attempt.
	Removals(ctx context.Context) ([]Removal, error)
	// Merchants returns one page of the merchants that a query selects, with their tags, oldest first, and their number.
	Merchants(ctx context.Context, q MerchantQuery) ([]Merchant, int, error)

	// GenerateTag returns the merchant's tag of a type. When there is none, it creates one and returns created true.
	// domain is the root domain for a new server-side tag; the caller has checked that it can be claimed. In all other
	// cases domain is ignored. When another tag's claim to the domain is free, that tag loses it. KindNotFound: merchant.
	// KindConflict: another tag has claimed the domain. KindInvalid: domain (a partner's tracking domain is on it), type
	// (no preverified access). KindLimited: domain (the partner has as many unverified claims as it may have), type (it has
	// as many labels as it may have). KindUnavailable: the labels are nearly used up.
	GenerateTag(ctx context.Context, id MerchantID, t TagType, domain string) (tag Tag, created bool, err error)
	// Tag returns a tag of any partner. KindNotFound: tag.
	Tag(ctx context.Context, id TagID) (Tag, error)
	// UpdateTag replaces a tag by change(tag) in one transaction, and returns the new tag. change is a transition, such
	// as Tag.AfterVerify. The engine may call it more than once, each time with the current tag, and stores the last
	// result. So change must be pure: its result depends on the tag alone, and it has no side effects. It must not change
	// the tag's id, owner, type, label, domain, ClaimedAt or ClaimLost. KindNotFound: tag.
	//
	// A change that verifies a tag that has lost its claim also claims the domain again, if GenerateTag would give it to a
	// new tag. Otherwise nothing changes. KindConflict: another tag has claimed the domain. KindInvalid: domain (a
	// partner's tracking domain is on it).
	UpdateTag(ctx context.Context, id TagID, change func(Tag) Tag) (Tag, error)

	// Claim returns the claim to a root domain. KindNotFound: claim.
	Claim(ctx context.Context, domain string) (Claim, error)
	// Claims returns the claims of a partner's tags, or of all tags when partner is empty. They are in the order of their
	// domains.
	Claims(ctx context.Context, partner PartnerID) ([]Claim, error)
	// ReleaseDomain ends the claim to a root domain. The domain is free, and the tag is inactive. It returns the claim as
	// it was. KindNotFound: claim.
	ReleaseDomain(ctx context.Context, domain string) (Claim, error)
	// Audit returns entries of the audit log, newest first. It has one for each change that a method above has made,
	// with the actor of the method's context. A call that changes nothing adds none.
	Audit(ctx context.Context, q AuditQuery) ([]AuditEntry, error)
}

// Events is the engine's event data: events, identity links and remembered event_ids. Each belongs to one merchant.
type Events interface {
	// Record records marks in their order, and sets the Outcome of each. When it returns nil, all of that is on disk: it
	// survives a kill and a power cut, and later calls of Events and Resolve see it. When the merchant was deleted, the
	// outcome of a mark is Removed, on an engine whose caller may not know that yet. For each other mark:
	//
	//  1. Resolve: a mark without a muid gets the muid of its first identifier that is linked to one. When no
	//     identifier is linked, the outcome is Unresolved, and nothing of the mark is kept. When the person was erased
	//     with suppress, the outcome is Suppressed in any case.
	//  2. Deduplicate: when an event of the merchant with the same Name and DedupeID was recorded within DedupeWindow, the
	//     outcome is Duplicate, and nothing changes. The name counts because anyone who knows a tag id can send events:
	//     a stranger's Junk with the event_id order-1001 must not displace the shop's Purchase with that event_id.
	//  3. Link: when the mark came with a muid, its identifiers are linked to that muid. The newest link of an identifier
	//     counts; former ones are kept for Persons. Its source is the mark's LinkSource, or a lesser one
	//     (rules.SourceOfLink). A muid from step 1 links nothing.
	//  4. Append: the event is stored, and the outcome is Recorded.
	//
	// Merchants take turns. When one of them sends more than the engine can write, the calls of the others wait a little
	// longer, and only its own calls get KindUnavailable.
	//
	// KindInvalid: a muid is longer than MaxMUIDLength; nothing was recorded. KindUnavailable: the engine cannot accept the
	// marks now; nothing was recorded, and a later call may succeed. After any other error the marks may or may not be
	// recorded.
	//
	// When ctx ends before the engine has accepted the marks, nothing is recorded and Record returns ctx's error. After
	// that ctx no longer counts: Record waits until the marks are on disk, because the engine reads them from the
	// caller's memory.
	Record(ctx context.Context, marks []Mark) error

	// Resolve returns the muid of an identity. When the identity has a muid, Resolve returns that one, and has linked the
	// identifiers to it on disk. Otherwise it returns the muid of the first identifier that is linked to one, or "" when
	// none is. Errors and ctx are as for Record.
	Resolve(ctx context.Context, merchant MerchantID, id Identity) (MUID, error)

	// Events returns one page of a merchant's events. The page is empty for a merchant or tag without events, and for a
	// range that ends before it starts. A name that is given twice counts once. When ctx ends, the query stops soon and
	// returns ctx's error.
	Events(ctx context.Context, q Query) (Page, error)

	// Summary counts events by time and group. Merchants and tags without events have none, and the range may end before it
	// starts. KindInvalid: bucket (there are too many). When ctx ends, the query stops soon and returns ctx's error.
	Summary(ctx context.Context, q SummaryQuery) (Summary, error)

	// Usage returns what the events of each of these merchants take; all zero for a merchant without events.
	Usage(ctx context.Context, merchants []MerchantID) ([]Usage, error)
}
