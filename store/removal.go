package store

import "time"

// Removal is a removal of events in the background that is not an erasure.
type Removal struct {
	Kind     RemovalKind  `json:"kind,omitempty"`
	Merchant MerchantID   `json:"merchantId"`
	Partner  PartnerID    `json:"partnerId"` // of a deletion
	At       time.Time    `json:"at"`        // when the merchant was deleted; or when the first attempt failed
	State    ErasureState `json:"state,omitempty"`

	Tries
}

// RemovalKind says which events a removal removes.
type RemovalKind string

// The kinds.
const (
	OfDeletion  RemovalKind = "deletion"  // those of a merchant that was deleted
	OfRetention RemovalKind = "retention" // those of a merchant that are past the retention; stored only after an attempt that failed
)

// Tries says how the attempts of a removal or an erasure went.
type Tries struct {
	Attempts  int       `json:"attempts,omitempty"`  // that have failed
	TriedAt   time.Time `json:"triedAt,omitzero"`    // when the last one failed
	LastError string    `json:"lastError,omitempty"` // why, for partners; empty once an attempt succeeds
}

// Failed returns the tries after an attempt that failed.
func (t Tries) Failed(now time.Time, err error) Tries {
	t.Attempts, t.TriedAt = t.Attempts+1, now.UTC()
	t.LastError = "an attempt has failed: the service's log says why"
	if KindOf(err) == KindUnavailable {
		t.LastError = "the events cannot be removed now"
	}
	return t
}

// IsDue reports whether the next attempt may begin. The pause after a failure doubles from 5 seconds up to about 10 minutes.
func (t Tries) IsDue(now time.Time) bool {
	if t.LastError == "" {
		return true
	}
	pause := 5 * time.Second << min(t.Attempts-1, 7)
	return !now.Before(t.TriedAt.Add(pause)) || now.Before(t.TriedAt) // the clock was put back
}
