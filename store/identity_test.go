package store

import (
	"slices"
	"testing"
)

// Callers may add identifiers in any order.
func TestIdentityKeysAreInOrderOfPrecedence(t *testing.T) {
	values := map[IdentifierKind]string{Email: "jane@example.com", Phone: "+49 151", DeviceID: "abc"}
	keys := func(kinds ...IdentifierKind) []IdentityKey {
		var id Identity
		for _, k := range kinds {
			if !id.Add(k, values[k]) {
				t.Fatalf("Add refuses an identifier of kind %d as empty", k)
			}
		}
		return id.Keys()
	}
	email, phone, device := keys(Email)[0], keys(Phone)[0], keys(DeviceID)[0]
	all := []IdentityKey{email, phone, device}
	for _, c := range []struct {
		added []IdentifierKind
		want  []IdentityKey
	}{
		{[]IdentifierKind{Email, Phone, DeviceID}, all},
		{[]IdentifierKind{DeviceID, Phone, Email}, all},
		{[]IdentifierKind{Phone, Email, DeviceID}, all},
		{[]IdentifierKind{Phone, DeviceID, Email}, all},
		{[]IdentifierKind{DeviceID, Email, Phone}, all},
		{[]IdentifierKind{Email, DeviceID, Phone}, all},
		{[]IdentifierKind{DeviceID, Phone}, []IdentityKey{phone, device}},
		{[]IdentifierKind{DeviceID, Email}, []IdentityKey{email, device}},
		{[]IdentifierKind{Phone, Email}, []IdentityKey{email, phone}},
		{[]IdentifierKind{DeviceID, Email, DeviceID, Phone, Email}, all},
	} {
		if got := keys(c.added...); !slices.Equal(got, c.want) {
			t.Errorf("identifiers added in the order %v: the keys are wrong or in the wrong order", c.added)
		}
	}
}

func TestTheLastIdentifierOfAKindCounts(t *testing.T) {
	var id, want Identity
	id.Add(Phone, "111")
	id.Add(Email, "first@example.com")
	id.Add(Email, "last@example.com")
	id.Add(Email, " ") // empty, so it does not count
	want.Add(Email, "last@example.com")
	want.Add(Phone, "111")
	if id != want {
		t.Error("the identity does not have the last email and the phone")
	}
}

var (
	sink    IdentityKey
	sinkKey [16]byte
)

// Each event hashes identifiers, its muid and its event_id.
func TestHashingAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		var id Identity
		id.Add(DeviceID, "device")
		id.Add(Email, "jane@example.com")
		if len(id.Keys()) != 2 {
			t.Fatal("keys are missing")
		}
		sink = MUIDKey(MUID("f3b1"))
		sinkKey = RememberedKey("Purchase", "order-1001")
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
