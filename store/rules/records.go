package rules

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"mtagd/store"
)

// Record is a record as a driver stores it.
type Record struct {
	Kind, Key string
	Value     []byte // nil: the record is deleted
}

// The kinds of records.
const (
	Meta         = "meta"         // "id" → the directory's id, set by a backup; "retention" → default in days, -1: for ever
	Partners     = "partners"     // partner id → store.Partner
	Keys         = "keys"         // key id → store.Key
	Uses         = "uses"         // key id → when the key was last used (RFC 3339)
	Merchants    = "merchants"    // merchant id → store.Merchant with "ordinal", its place among its partner's merchants
	Domains      = "domains"      // root domain → id of the server-side tag that has the claim to it
	Tags         = "tags"         // tag id → store.Tag
	Replies      = "replies"      // partner id, "/", SHA-256 of an idempotency key (hex) → what its call created (reply)
	Removals     = "removals"     // merchant id → store.Removal: a deleted merchant whose events must still be removed
	Expiries     = "expiries"     // merchant id → store.Removal: removing its events that are past the retention has failed
	Erasures     = "erasures"     // erasure id → store.Erasure
	Suppressed   = "suppressed"   // merchant id, "/", store.IdentityKey (hex) → erasure id: the person's events are refused
	Sessions     = "sessions"     // session id → store.Session, links too
	Destinations = "destinations" // merchant id, "/", id → where events are delivered to, as package delivery writes it
)

// The keys of Meta.
const (
	metaID        = "id"
	metaRetention = "retention"
)

// kind says how the records of a kind are read and kept.
type kind struct {
	name   string
	decode func(key string, value []byte) (any, error)
	each   func(s *State, use func(key string, value []byte, err error)) // passes all records
	set    func(d *Data, key string, v any)                              // into memory and the directory
	remove func(d *Data, key string)
}

// kinds has all of them, in the order in which Apply puts those of a change into memory: a tag needs to know its partner's
// domain and who has its own.
var kinds []kind

func init() { // else it would refer to itself
	kinds = []kind{
		{Meta, decodeMeta, (*State).eachMeta, (*Data).setMeta, func(*Data, string) {}},
		jsonKind(Partners, func(s *State) map[store.PartnerID]store.Partner { return s.partners },
			func(p store.Partner) string { return string(p.ID) }, (*Data).setPartner, (*Data).removePartner),
		jsonKind(Keys, func(s *State) map[store.KeyID]store.Key { return s.keys },
			func(k store.Key) string { return string(k.ID) }, (*Data).setKey, (*Data).removeKey),
		mapKind(Uses, func(s *State) map[store.KeyID]time.Time { return s.uses }, decodeTime, time.Time.MarshalText, (*Data).setUse, nil),
		jsonKind(Merchants, func(s *State) map[store.MerchantID]merchant { return s.merchants },
			func(m merchant) string { return string(m.ID) }, (*Data).setMerchant, (*Data).removeMerchant),
		mapKind(Domains, func(s *State) map[string]store.TagID { return s.domains },
			func(_ string, b []byte) (store.TagID, error) { return store.TagID(b), nil },
			func(id store.TagID) ([]byte, error) { return []byte(id), nil }, nil, nil),
		jsonKind(Tags, func(s *State) map[store.TagID]store.Tag { return s.tags },
			func(t store.Tag) string { return string(t.ID) }, (*Data).setTag, (*Data).removeTag),
		jsonKind(Replies, func(s *State) map[string]reply { return s.replies },
			func(r reply) string { return replyKey(r.Partner, r.Key) }, (*Data).setReply, (*Data).removeReply),
		jsonKind(Removals, func(s *State) map[store.MerchantID]store.Removal { return s.removals }, removedMerchant, (*Data).setRemoval, nil),
		jsonKind(Expiries, func(s *State) map[store.MerchantID]store.Removal { return s.expiries }, removedMerchant, nil, nil),
		jsonKind(Erasures, func(s *State) map[store.ErasureID]store.Erasure { return s.erasures },
			func(e store.Erasure) string { return string(e.ID) }, (*Data).setErasure, nil),
		{Suppressed, decodeSuppressed, (*State).eachSuppressed, (*Data).setSuppressed, (*Data).removeSuppressed},
		jsonKind(Sessions, func(s *State) map[store.SessionID]store.Session { return s.sessions },
			func(s store.Session) string { return string(s.ID) }, (*Data).setSession, (*Data).removeSession),
		mapKind(Destinations, func(s *State) map[string][]byte { return s.destinations }, decodeDestination,
			func(content []byte) ([]byte, error) { return content, nil }, (*Data).setDestination, (*Data).removeDestination),
	}
}

// Kinds returns the names of all kinds.
func Kinds() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

func placeOf(name string) (int, error) {
	for i := range kinds {
		if kinds[i].name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("unknown kind of record %q", name)
}

// jsonKind is a kind whose records are JSON, with their key in it.
func jsonKind[K ~string, V any](name string, of func(*State) map[K]V, id func(V) string, set func(*Data, K, V), remove func(*Data, K)) kind {
	return mapKind(name, of, func(key string, value []byte) (v V, err error) {
		if err := json.Unmarshal(value, &v); err != nil {
			return v, err
		}
		if id(v) != key {
			return v, fmt.Errorf("has the id %q", id(v))
		}
		return v, nil
	}, func(v V) ([]byte, error) { return json.Marshal(v) }, set, remove)
}

// mapKind is a kind of which the state has a map. set and remove also keep what follows from a record; nil: nothing does.
func mapKind[K ~string, V any](name string, of func(*State) map[K]V, decode func(key string, value []byte) (V, error), encode func(V) ([]byte, error),
	set func(*Data, K, V), remove func(*Data, K)) kind {
	if set == nil {
		set = func(d *Data, key K, v V) { of(d.state)[key] = v }
	}
	if remove == nil {
		remove = func(d *Data, key K) { delete(of(d.state), key) }
	}
	return kind{name,
		func(key string, value []byte) (any, error) { return decode(key, value) },
		func(s *State, use func(key string, value []byte, err error)) {
			for key, v := range of(s) {
				value, err := encode(v)
				use(string(key), value, err)
			}
		},
		func(d *Data, key string, v any) { set(d, K(key), v.(V)) },
		func(d *Data, key string) { remove(d, K(key)) },
	}
}

// Check returns an error for a record that cannot be read.
func Check(r Record) error {
	_, err := decode(r)
	return err
}

func removedMerchant(r store.Removal) string { return string(r.Merchant) }

func decodeTime(_ string, b []byte) (at time.Time, err error) {
	err = at.UnmarshalText(b)
	return at, err
}

func decodeMeta(key string, b []byte) (any, error) {
	if key != metaRetention {
		return string(b), nil
	}
	n, err := strconv.Atoi(string(b))
	return store.Retention(n), err
}

func (d *Data) setMeta(key string, v any) {
	switch key {
	case metaID:
		d.state.id = v.(string)
	case metaRetention:
		d.state.retention = v.(store.Retention)
	}
}

func (s *State) eachMeta(use func(key string, value []byte, err error)) {
	if s.retention != 0 {
		use(metaRetention, []byte(strconv.Itoa(int(s.retention))), nil)
	}
	if s.id != "" {
		use(metaID, []byte(s.id), nil)
	}
}
