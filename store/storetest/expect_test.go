package storetest

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"mtagd/store"
)

func expectKind(t *testing.T, err error, want store.Kind) {
	t.Helper()
	if err == nil || store.KindOf(err) != want {
		t.Errorf("the error is %v, of kind %d; want kind %d", err, store.KindOf(err), want)
	}
}

// expectInvalid expects an error of KindInvalid that names a field.
func expectInvalid(t *testing.T, err error, field string) {
	t.Helper()
	expectKind(t, err, store.KindInvalid)
	expectField(t, err, field)
}

// expectLimited expects an error of KindLimited that names the field.
func expectLimited(t *testing.T, err error, field string) {
	t.Helper()
	expectKind(t, err, store.KindLimited)
	expectField(t, err, field)
}

func expectField(t *testing.T, err error, field string) {
	t.Helper()
	if e, ok := errors.AsType[*store.Error](err); ok && e.Field != field {
		t.Errorf("the error %q names the field %q, want %q", err, e.Field, field)
	}
}

// expectOneWinner expects that one call succeeded, and that all others failed with KindConflict.
func expectOneWinner(t *testing.T, errs []error) {
	t.Helper()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		expectKind(t, err, store.KindConflict)
	}
	if won != 1 {
		t.Errorf("%d calls succeeded, want 1", won)
	}
}

// expectEvents expects that a merchant has so many events.
func (b *bed) expectEvents(m store.MerchantID, want int) {
	b.t.Helper()
	if events, total := b.list(m); len(events) != want || total != want {
		b.t.Errorf("%d events listed, total %d; want %d", len(events), total, want)
	}
}

func (b *bed) expectResolved(m store.MerchantID, id store.Identity, want store.MUID) {
	b.t.Helper()
	if got := b.resolve(m, id); got != want {
		b.t.Errorf("resolved to %q, want %q", got, want)
	}
}

// sameTime compares times that may be nil.
func sameTime(a, b *time.Time) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Equal(*b)
}

func sameAuditEntry(a, b store.AuditEntry) bool {
	same := a.At.Equal(b.At)
	a.At, b.At = time.Time{}, time.Time{}
	return same && a == b
}

func samePartner(a, b store.Partner) bool {
	return a.ID == b.ID && a.Name == b.Name && a.TrackingDomain == b.TrackingDomain && a.CreatedAt.Equal(b.CreatedAt)
}

func sameKey(a, b store.Key) bool {
	return a.ID == b.ID && a.Partner == b.Partner && bytes.Equal(a.SecretHash, b.SecretHash) && a.CreatedAt.Equal(b.CreatedAt) &&
		sameTime(a.ExpiresAt, b.ExpiresAt) && sameTime(a.RevokedAt, b.RevokedAt)
}

func sameMerchant(a, b store.Merchant) bool {
	return a.ID == b.ID && a.Partner == b.Partner && a.Name == b.Name && a.Domain == b.Domain &&
		a.CreatedAt.Equal(b.CreatedAt) && slices.EqualFunc(a.Tags, b.Tags, sameTag)
}

func sameTag(a, b store.Tag) bool {
	if (a.DNS == nil) != (b.DNS == nil) {
		return false
	}
	if a.DNS != nil {
		x, y := *a.DNS, *b.DNS
		if !x.CheckedAt.Equal(y.CheckedAt) {
			return false
		}
		x.CheckedAt, y.CheckedAt = time.Time{}, time.Time{}
		if x != y {
			return false
		}
	}
	if !a.CreatedAt.Equal(b.CreatedAt) || !a.ClaimedAt.Equal(b.ClaimedAt) || !a.ElsewhereSince.Equal(b.ElsewhereSince) {
		return false
	}
	for _, t := range []*store.Tag{&a, &b} {
		t.DNS, t.CreatedAt, t.ClaimedAt, t.ElsewhereSince = nil, time.Time{}, time.Time{}, time.Time{}
	}
	return a == b
}
