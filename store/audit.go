package store

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AuditEntry is one line of the audit log: who changed what, and when. An engine writes it in the transaction of the
// change, so that there is no change without its entry and no entry without its change. An entry contains no secret, no
// email and no phone number.
type AuditEntry struct {
	ID     AuditID     `json:"id"`
	At     time.Time   `json:"at"`
	Actor  Actor       `json:"actor"`
	Action AuditAction `json:"action"`

	// What was changed, and whose it is: for a tag also its merchant and partner.
	Partner  PartnerID  `json:"partnerId,omitempty"`
	Merchant MerchantID `json:"merchantId,omitempty"`
	Tag      TagID      `json:"tagId,omitempty"`
	Key      KeyID      `json:"keyId,omitempty"`

	Detail string `json:"detail,omitempty"` // such as the new limits
	Reason string `json:"reason,omitempty"` // why, in an operator's words
}

// AuditID is the number of an entry. A later entry has a larger number.
type AuditID uint64

// AuditLimits say how many entries of the audit log an engine keeps. An entry takes about 400 bytes.
//
// Partners share the log. When it is full, those with the most entries lose their oldest ones: a partner that makes
// many changes pushes out its own history, and none of a partner that has less than an equal share. So partners
// together cannot fill the disk, and only who has operators' rights can push out operators' entries.
//
// Nobody can push out what was done just now. If a partner has more than its share of entries that are so young, its changes
// are refused (ErrAuditFull) until they are older, except those that nobody must keep it from (AuditEntry.MayBeRefused).
type AuditLimits struct {
	Partners   int // entries of all partners together
	PartnerAge time.Duration

	// Operators' entries are dropped when there are more than these, and only if they are older.
	Operators   int
	OperatorAge time.Duration
}

// DefaultAuditLimits are the limits outside of tests.
//
// A partner that alone changes as much as it may by default, 600 times a minute, has fewer than a million entries in a day.
// So only several of these together are ever refused.
var DefaultAuditLimits = AuditLimits{Partners: 1_000_000, PartnerAge: 24 * time.Hour, Operators: 100_000, OperatorAge: 400 * 24 * time.Hour}

// ErrAuditFull is the error of a change that is refused because of the audit log.
var ErrAuditFull = Busy("the partner has made too many changes in the last day")

// MayBeRefused reports whether the change of an entry may fail with ErrAuditFull. It may not if the service makes it, or if
// somebody signs in or takes access away from others.
func (e AuditEntry) MayBeRefused() bool {
	switch e.Action {
	case KeyRevoked, SessionBegun, SessionEnded:
		return false
	}
	return e.Actor.Kind == ByKey || e.Actor.Kind == ByLink
}

// Quota returns how many entries each partner may keep, at least one, when they have these numbers of entries.
func (l AuditLimits) Quota(held []int) int {
	left := l.Partners
	for i, n := range slices.Sorted(slices.Values(held)) {
		share := left / (len(held) - i)
		if n > share {
			return max(share, 1)
		}
		left -= n
	}
	return l.Partners
}

// Holder returns the partner whose limit of entries an entry counts for. It returns "" if an operator made the change, or if
// no partner is concerned: such entries count for the operators.
func (e AuditEntry) Holder() PartnerID {
	if e.Actor.Kind == ByOperator {
		return ""
	}
	return e.Partner
}

// AuditMessage is the message of the log lines of LogAudit.
const AuditMessage = "audit"

// LogAudit copies entries to the log, one line each, so that they are kept where the log is when the engine drops them.
// An engine calls it once the change is made.
func LogAudit(log *slog.Logger, entries []AuditEntry) {
	for _, e := range entries {
		attrs := []slog.Attr{slog.Uint64("id", uint64(e.ID)), slog.String("action", string(e.Action)), slog.String("actor", string(e.Actor.Kind))}
		for _, a := range []slog.Attr{
			slog.String("name", e.Actor.Name), slog.String("request_id", e.Actor.Request), slog.String("partner", string(e.Partner)),
			slog.String("merchant", string(e.Merchant)), slog.String("tag", string(e.Tag)), slog.String("key", string(e.Key)),
			slog.String("detail", e.Detail), slog.String("reason", e.Reason),
		} {
			if a.Value.String() != "" {
				attrs = append(attrs, a)
			}
		}
		log.LogAttrs(context.Background(), slog.LevelInfo, AuditMessage, attrs...)
	}
}

// AuditQuery selects entries of the audit log. The zero value of a filter selects all.
type AuditQuery struct {
	Partner PartnerID // about this partner, its keys, merchants and tags
	Since   time.Time // made at this time or later
	Before  AuditID   // with a smaller number
	Limit   int       // the number of entries, the newest ones
}

// AuditAction is what was done.
type AuditAction string

// The actions. PartnerChanges and its like choose those of an update.
const (
	PartnerAdded       AuditAction = "partner.added"
	PartnerPreverified AuditAction = "partner.preverified" // preverified access was enabled, or moved to another domain
	PartnerSuspended   AuditAction = "partner.suspended"
	PartnerResumed     AuditAction = "partner.resumed"
	PartnerLimited     AuditAction = "partner.limited" // limits were set
	PartnerDeleted     AuditAction = "partner.deleted"
	PartnerChanged     AuditAction = "partner.changed" // other fields; Detail names them

	KeyIssued  AuditAction = "key.issued"
	KeyRevoked AuditAction = "key.revoked"

	MerchantCreated   AuditAction = "merchant.created"
	MerchantRetention AuditAction = "merchant.retention" // how long events are kept; Detail has the days
	MerchantDeleted   AuditAction = "merchant.deleted"   // with its tags
	MerchantSuspended AuditAction = "merchant.suspended"
	MerchantResumed   AuditAction = "merchant.resumed"
	MerchantLimited   AuditAction = "merchant.limited"
	MerchantIdentity  AuditAction = "merchant.identity" // whether identifiers require a secret; Detail says it
	MerchantSecrets   AuditAction = "merchant.secrets"  // a secret was created or deleted; Detail has the ids of all
	MerchantChanged   AuditAction = "merchant.changed"

	DestinationCreated AuditAction = "destination.created" // Detail is its id and its type
	DestinationChanged AuditAction = "destination.changed" // Detail is its id, and the names of the fields
	DestinationDeleted AuditAction = "destination.deleted"

	PersonErased AuditAction = "person.erased" // Detail is the id of the erasure

	TagGenerated    AuditAction = "tag.generated"
	TagVerified     AuditAction = "tag.verified" // DNS was correct for the first time: the tag is active
	TagConnected    AuditAction = "tag.connected"
	TagDisconnected AuditAction = "tag.disconnected" // DNS was found wrong; Detail is the code of the finding
	TagClaimed      AuditAction = "tag.claimed"      // it has its root domain again; Detail is the domain
	TagClaimLost    AuditAction = "tag.claim_lost"   // another tag, a partner or nobody has the domain now
	TagSuspended    AuditAction = "tag.suspended"
	TagResumed      AuditAction = "tag.resumed"
	TagChanged      AuditAction = "tag.changed"

	LinkMade     AuditAction = "link.made"     // that signs in to the web console; Detail is its id
	SessionBegun AuditAction = "session.begun" // somebody signed in to the web console; Detail is the session's id
	SessionEnded AuditAction = "session.ended" // and has signed out; or its partner or an operator has ended the session, or the link

	// EntryDamaged stands for an entry that cannot be read any more. It has only its id and its time.
	EntryDamaged AuditAction = "entry.damaged"
)

// Actor is who made a change.
type Actor struct {
	Kind ActorKind `json:"kind"`
	// Name is the id of the API key or of the link, or the system user who ran the command if it is known. It is empty
	// for the service.
	Name string `json:"name,omitempty"`
	// Request is the X-Request-Id of the request, if there was one.
	Request string `json:"requestId,omitempty"`
}

// ActorKind is how a change was asked for.
type ActorKind string

// The kinds of actor.
const (
	ByOperator ActorKind = "operator" // a command
	ByKey      ActorKind = "key"      // a request to the partner API, or of a session that a key has begun
	ByLink     ActorKind = "link"     // the use of a link, or a request of the session that it has begun
	ByService  ActorKind = "service"  // the service itself, such as the hourly check of DNS
)

type actorKey struct{}

type reasonKey struct{}

type checkKey struct{}

// WithActor returns a context whose changes of control data are made by an actor. Without one they are the service's.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// WithCheck returns a context whose changes of control data are made only if check returns nil. check is called in the turn
// of each change, when this node knows all earlier ones, also those of other nodes: what allowed a request when it came may
// have ended since.
func WithCheck(ctx context.Context, check func() error) context.Context {
	return context.WithValue(ctx, checkKey{}, check)
}

// Check calls the check of a context that has one.
func Check(ctx context.Context) error {
	if check, ok := ctx.Value(checkKey{}).(func() error); ok {
		return check()
	}
	return nil
}

// WithReason returns a context whose changes of control data are made for a reason.
func WithReason(ctx context.Context, reason string) context.Context {
	return context.WithValue(ctx, reasonKey{}, reason)
}

// Complete returns the entry with what every entry has: its number, its time, and the context's actor and reason.
func (e AuditEntry) Complete(ctx context.Context, id AuditID, at time.Time) AuditEntry {
	e.ID, e.At = id, at
	if actor, ok := ctx.Value(actorKey{}).(Actor); ok {
		e.Actor = actor
	} else {
		e.Actor = Actor{Kind: ByService}
	}
	e.Reason, _ = ctx.Value(reasonKey{}).(string)
	return e
}

// AboutPartner returns an entry about a partner.
func AboutPartner(action AuditAction, p Partner, detail string) AuditEntry {
	return AuditEntry{Action: action, Partner: p.ID, Detail: detail}
}

// AboutKey returns an entry about a key.
func AboutKey(action AuditAction, k Key) AuditEntry {
	entry := AuditEntry{Action: action, Partner: k.Partner, Key: k.ID}
	if action == KeyIssued && k.Scope != Full {
		entry.Detail = k.Scope.String()
		if k.Personal {
			entry.Detail += ", personal data"
		}
	}
	return entry
}

// AboutSession returns an entry about a session or a link. An operator's has no partner.
func AboutSession(action AuditAction, s Session) AuditEntry {
	return AuditEntry{Action: action, Partner: s.Partner, Key: s.Key, Detail: string(s.ID)}
}

// AboutMerchant returns an entry about a merchant.
func AboutMerchant(action AuditAction, m Merchant, detail string) AuditEntry {
	if action == MerchantCreated && m.IdentityRequiresSecret {
		detail = strings.TrimPrefix(detail+", requires a secret", ", ")
	}
	return AuditEntry{Action: action, Partner: m.Partner, Merchant: m.ID, Detail: detail}
}

// AboutTag returns an entry about a tag.
func AboutTag(action AuditAction, t Tag, detail string) AuditEntry {
	return AuditEntry{Action: action, Partner: t.Partner, Merchant: t.Merchant, Tag: t.ID, Detail: detail}
}

// PartnerChanges returns the entries for an update of a partner, none when nothing has changed. So do MerchantChanges and
// TagChanges. They compare what is stored. A field without an action of its own is in the log as "changed".
func PartnerChanges(before, after Partner) ([]AuditEntry, error) {
	return changes(before, after, AboutPartner(PartnerChanged, after, ""), map[string]change{
		"preverifiedDomain": {action: PartnerPreverified, detail: after.TrackingDomain},
		"suspended":         {action: either(after.Suspended, PartnerSuspended, PartnerResumed)},
		"limits":            {action: PartnerLimited, showValue: true},
	})
}

// MerchantChanges returns the entries for an update of a merchant.
func MerchantChanges(before, after Merchant) ([]AuditEntry, error) {
	var secrets []string
	for _, s := range after.Secrets {
		secrets = append(secrets, string(s.ID))
	}
	required := "requires no secret"
	if after.IdentityRequiresSecret {
		required = "requires a secret"
	}
	return changes(before, after, AboutMerchant(MerchantChanged, after, ""), map[string]change{
		"retentionDays":          {action: MerchantRetention, detail: after.Retention.String()},
		"suspended":              {action: either(after.Suspended, MerchantSuspended, MerchantResumed)},
		"limits":                 {action: MerchantLimited, showValue: true},
		"identityRequiresSecret": {action: MerchantIdentity, detail: required},
		"deliverClientDetails":   {action: MerchantChanged, detail: "deliverClientDetails " + strconv.FormatBool(after.DeliverClientDetails)},
		"secrets":                {action: MerchantSecrets, detail: strings.Join(secrets, ", ")},
	})
}

// TagChanges returns the entries for an update of a tag. There is none for a finding of DNS that leaves the tag's state as
// it was: a partner could fill the log with these.
func TagChanges(before, after Tag) ([]AuditEntry, error) {
	if after.ClaimLost && !before.ClaimLost {
		return []AuditEntry{AboutTag(TagClaimLost, after, after.Domain)}, nil // all other changes follow from this one
	}
	known := map[string]change{
		"dns":       {},
		"claimedAt": {action: TagClaimed, detail: after.Domain},

		"elsewhereSince": {},

		"isVerified":  {action: TagVerified, detail: after.Host},
		"isConnected": {action: either(after.Connected, TagConnected, TagDisconnected)},
		"suspended":   {action: either(after.Suspended, TagSuspended, TagResumed)},
	}
	switch {
	case before.Verified != after.Verified:
		known["isConnected"] = change{} // the entry for isVerified says it
	case !after.Connected && after.DNS != nil:
		known["isConnected"] = change{action: TagDisconnected, detail: after.DNS.Code}
	}
	return changes(before, after, AboutTag(TagChanged, after, ""), known)
}

// change is what to note when a field has changed; nothing if it has no action.
type change struct {
	action    AuditAction
	detail    string
	showValue bool // the detail is the field's new JSON
}

func either(first bool, a, b AuditAction) AuditAction {
	if first {
		return a
	}
	return b
}

// changes returns the entries for the fields that differ in the JSON of two values. The fields that are not in known share
// one entry: other, with their names as the detail, but never their values.
func changes(before, after any, other AuditEntry, known map[string]change) (entries []AuditEntry, err error) {
	was, err := fieldsOf(before)
	if err != nil {
		return nil, err
	}
	is, err := fieldsOf(after)
	if err != nil {
		return nil, err
	}
	names := maps.Clone(was)
	maps.Copy(names, is)
	var others []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if bytes.Equal(was[name], is[name]) {
			continue
		}
		c, ok := known[name]
		switch {
		case !ok:
			others = append(others, name)
		case c.action != "":
			entry := other
			if entry.Action, entry.Detail = c.action, c.detail; c.showValue {
				entry.Detail = string(is[name])
			}
			entries = append(entries, entry)
		}
	}
	if others != nil {
		other.Detail = strings.Join(others, ", ")
		entries = append(entries, other)
	}
	return entries, nil
}

// fieldsOf returns the JSON of a struct's fields.
func fieldsOf(v any) (fields map[string]json.RawMessage, err error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return fields, json.Unmarshal(b, &fields)
}
