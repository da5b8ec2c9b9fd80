package store

import (
	"encoding/json"
	"strconv"
)

// Limits protect tenants from each other. An operator may change them for one partner or one merchant at run time. A new one
// needs a field and a default here, a flag in package cmd/mtagd/operator, and the check that keeps it. The limits of a client
// address are not stored: see package edge/limit.

// Limit is a limit that an operator has set: a positive number, NoLimit, or 0 for the default.
type Limit int64

// NoLimit lifts a limit.
const NoLimit Limit = -1

// Or returns the limit: def when none was set.
func (l Limit) Or(def Limit) Limit {
	if l == 0 {
		return def
	}
	return l
}

// allows reports whether n is within the limit. The limit is not 0: Or has replaced it.
func (l Limit) allows(n int) bool { return l == NoLimit || int64(n) <= int64(l) }

// MarshalJSON returns the number, or "off" for NoLimit.
func (l Limit) MarshalJSON() ([]byte, error) {
	if l == NoLimit {
		return []byte(`"off"`), nil
	}
	return strconv.AppendInt(nil, int64(l), 10), nil
}

// UnmarshalJSON reads what MarshalJSON returns.
func (l *Limit) UnmarshalJSON(b []byte) error {
	if string(b) == `"off"` {
		*l = NoLimit
		return nil
	}
	return json.Unmarshal(b, (*int64)(l))
}

// MerchantLimits are what an operator has set for one merchant.
type MerchantLimits struct {
	// EventsPerSecond is the rate at which events are accepted. A burst of ten seconds' worth may come at once.
	EventsPerSecond Limit `json:"eventsPerSecond,omitempty"`
	// BytesPerDay bounds the bytes that the merchant stores in a day: the raw bytes of its events, and 128 for each.
	// Its default is a share of the free disk space (package edge/tag, limits.go).
	BytesPerDay Limit `json:"bytesPerDay,omitempty"`
}

// PartnerLimits are what an operator has set for one partner.
type PartnerLimits struct {
	// RequestsPerSecond is the rate of requests to the partner API. A burst of thirty seconds' worth may come at once.
	RequestsPerSecond Limit `json:"requestsPerSecond,omitempty"`
	// WritesPerMinute is the rate of requests that change control data. Each costs two synced writes. A burst of three
	// minutes' worth may come at once.
	WritesPerMinute Limit `json:"writesPerMinute,omitempty"`
	// BytesPerDay bounds the bytes that all its merchants store in a day. Its default is a share of the disk, too.
	BytesPerDay Limit `json:"bytesPerDay,omitempty"`
	// AnswerBytes bounds the memory of answers that are being sent at the same time.
	AnswerBytes Limit `json:"answerBytes,omitempty"`
	// FeedReaders bounds how many requests follow the feed at the same time: streams, and those that wait for events.
	FeedReaders Limit `json:"feedReaders,omitempty"`
	// Merchants bounds how many merchants the partner has.
	Merchants Limit `json:"merchants,omitempty"`
	// Labels bounds how many labels of the form mtag-xxxx the partner's tags have. There are 36⁴ for all partners.
	Labels Limit `json:"labels,omitempty"`
	// UnverifiedClaims bounds how many root domains the partner's unverified tags claim at the same time.
	UnverifiedClaims Limit `json:"unverifiedClaims,omitempty"`
}

// CheckMerchants returns an error when the partner may not have another merchant, as it has n. KindLimited: that is its
// limit.
func (l PartnerLimits) CheckMerchants(n int) error {
	if l.Merchants.Or(DefaultMerchants).allows(n + 1) {
		return nil
	}
	return Limited("merchant", "cannot be created: the partner has %d merchants, which is its limit. "+
		"Ask the operator of the service for more", n)
}

// The defaults, for partners and merchants whose operator has set nothing. They leave a large shop's traffic alone.
const (
	DefaultEventsPerSecond   Limit = 10_000
	DefaultRequestsPerSecond Limit = 200
	DefaultWritesPerMinute   Limit = 600
	DefaultAnswerBytes       Limit = 64 << 20
	DefaultFeedReaders       Limit = 1000
	DefaultMerchants         Limit = 50_000
	DefaultLabels            Limit = 20_000
	DefaultUnverifiedClaims  Limit = 100
)
