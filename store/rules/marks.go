package rules

import (
	"mtagd/store"
)

// Outcome returns what becomes of a mark (store.Events, Record). refused is Suppressed, Removed or 0. muid is that of the
// event; "": nobody is known. remembered says that an event with the mark's name and event_id was recorded within
// store.DedupeWindow: then the mark is a duplicate.
func Outcome(refused store.Outcome, muid store.MUID, remembered bool) store.Outcome {
	switch {
	case refused != 0:
		return refused
	case muid == "":
		return store.Unresolved
	case remembered:
		return store.Duplicate
	}
	return store.Recorded
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
