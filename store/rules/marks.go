package rules

import (
	"mtagd/store"
)

// Outcome returns what becomes of a mark (store.Events, Record), once it is known whether the engine refuses it, and its
// muid; 0: it is recorded, unless its event_id is remembered.
func Outcome(refused store.Outcome, muid store.MUID) store.Outcome {
	if refused == 0 && muid == "" {
		return store.Unresolved
	}
	return refused
}

// IsSuppressed reports whether events of a person are refused. keys has those of the merchant's persons whose events are.
func IsSuppressed[V any](keys map[store.IdentityKey]V, id *store.Identity, muid store.MUID) bool {
	if len(keys) == 0 {
		return false
	}
	for _, k := range id.Keys() {
		if _, is := keys[k]; is {
			return true
		}
	}
	_, is := keys[store.MUIDKey(muid)]
	return is
}

// CheckMUID returns an error if the muid is too long. KindInvalid: muid.
func CheckMUID(muid store.MUID) error {
	if len(muid) > store.MaxMUIDLength {
		return store.Invalid("muid", "must have at most %d bytes", store.MaxMUIDLength)
	}
	return nil
}
