package store

import (
	"context"
	"time"
)

// Cursor is a place in the order of receipt, between two events. That order is one for all events of an engine, and never
// changes: so a cursor stays good as long as the events after it are kept, over restarts, and for any merchants. The
// empty cursor is before the first event. All other cursors come from the engine; callers must not look into them.
type Cursor string

// Received is an event as the feed returns it.
type Received struct {
	Event
	Merchant   MerchantID
	Tag        TagID
	ReceivedAt time.Time // UTC; increases with the order of receipt
	Cursor     Cursor    // the place after this event
}

// FeedQuery asks for events in the order of receipt.
type FeedQuery struct {
	Merchants []MerchantID // whose events; those without events are allowed
	Tag       TagID        // only this tag's events; empty for all
	Names     []string     // only these event names; nil for all
	From, To  *time.Time   // inclusive range of event_time; nil for no bound
	Bot       *bool        // only events of bots, or only those of others; nil for all
	After     Cursor       // only events after this place
	UpTo      Cursor       // only events up to this place; empty for no bound
}

// FeedEnd is where a call of Feed has ended.
type FeedEnd struct {
	// Cursor is the place up to which everything was read. It moves past the events of other merchants and those that the
	// query leaves out: who goes on from here reads nothing twice. It is never before the After of the query.
	Cursor Cursor
	// More says that there may be more events up to now, or up to the UpTo of the query.
	More bool
}

// Feed is the part of an engine that reads events in the order of receipt.
type Feed interface {
	// Feed calls use with the events of a query, one after the other, until use returns false. It ends after a bounded
	// time even when no event matches; then More is true. An event is valid until use returns.
	//
	// Who goes on from Cursor each time sees every event that matches exactly once, also while events are recorded, and
	// after restarts and kills. An event that was acknowledged before the call is seen, and no event that a power cut
	// could take back. The first call that finds events damaged or missing fails with KindUnavailable. When they are
	// lost, later calls leave them out.
	//
	// KindInvalid: after (the cursor is not one of this engine's). When ctx ends, Feed stops soon and returns ctx's error.
	Feed(ctx context.Context, q FeedQuery, use func(e *Received) (more bool)) (FeedEnd, error)

	// Latest returns the cursor after the last event that was acknowledged, on any machine. When it returns, the
	// directory has the tags of all events up to there.
	Latest(ctx context.Context) (Cursor, error)

	// Watch returns a channel that gets a value soon after events of one of the merchants are on disk. The channel holds one
	// value: many events may give one. Who calls Watch before Feed misses nothing: what Feed did not see gives a value
	// later. Nothing runs for a watch that waits. The caller must call stop.
	Watch(merchants []MerchantID) (news <-chan struct{}, stop func())

	// WatchPartner is Watch for all merchants of a partner, those that are yet to come too.
	WatchPartner(partner PartnerID) (news <-chan struct{}, stop func())
}
