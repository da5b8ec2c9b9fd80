package rules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
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
	Merchants    = "merchants"    // merchant id → store.Merchant
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
	set    func(d *Data, key string, v any) // into memory and the directory
	remove func(d *Data, key string)
}

// kinds has all of them, in the order in which Apply puts those of a change into memory: a tag needs to know its partner's
// domain and who has its own.
var kinds []kind

func init() { // else it would refer to itself
	kinds = []kind{
		{Meta, decodeMeta, (*Data).setMeta, func(*Data, string) {}},
		jsonKind(Partners, func(p store.Partner) string { return string(p.ID) }, (*Data).setPartner, (*Data).removePartner),
		jsonKind(Keys, func(k store.Key) string { return string(k.ID) }, (*Data).setKey, (*Data).removeKey),
		newKind(Uses, decodeTime, (*Data).setUse, func(d *Data, id store.KeyID) { delete(d.state.uses, id) }),
		jsonKind(Merchants, func(m store.Merchant) string { return string(m.ID) }, (*Data).setMerchant, (*Data).removeMerchant),
		newKind(Domains, func(_ string, b []byte) (store.TagID, error) { return store.TagID(b), nil },
			func(d *Data, domain string, id store.TagID) { d.state.domains[domain] = id },
			func(d *Data, domain string) { delete(d.state.domains, domain) }),
		jsonKind(Tags, func(t store.Tag) string { return string(t.ID) }, (*Data).setTag, (*Data).removeTag),
		jsonKind(Replies, func(r reply) string { return replyKey(r.Partner, r.Key) }, (*Data).setReply, (*Data).removeReply),
		jsonKind(Removals, removedMerchant, (*Data).setRemoval, func(d *Data, id store.MerchantID) { delete(d.state.removals, id) }),
		jsonKind(Expiries, removedMerchant, func(d *Data, id store.MerchantID, r store.Removal) { d.state.expiries[id] = r },
			func(d *Data, id store.MerchantID) { delete(d.state.expiries, id) }),
		jsonKind(Erasures, func(e store.Erasure) string { return string(e.ID) }, (*Data).setErasure,
			func(d *Data, id store.ErasureID) { delete(d.state.erasures, id) }),
		newKind(Suppressed, decodeSuppressed, (*Data).setSuppressed, (*Data).removeSuppressed),
		jsonKind(Sessions, func(s store.Session) string { return string(s.ID) }, (*Data).setSession, (*Data).removeSession),
		newKind(Destinations, decodeDestination, (*Data).setDestination, (*Data).removeDestination),
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
func jsonKind[K ~string, V any](name string, id func(V) string, set func(*Data, K, V), remove func(*Data, K)) kind {
	return newKind(name, func(key string, value []byte) (v V, err error) {
		if err := json.Unmarshal(value, &v); err != nil {
			return v, err
		}
		if id(v) != key {
			return v, fmt.Errorf("has the id %q", id(v))
		}
		return v, nil
	}, set, remove)
}

func newKind[K ~string, V any](name string, decode func(key string, value []byte) (V, error), set func(*Data, K, V), remove func(*Data, K)) kind {
	return kind{name,
		func(key string, value []byte) (any, error) { return decode(key, value) },
		func(d *Data, key string, v any) { set(d, K(key), v.(V)) },
		func(d *Data, key string) { remove(d, K(key)) },
	}
}

// Moved returns the records that a move copies, in the order of their kinds and keys. It leaves out sessions and the id of
// the data directory. It reuses the slice.
func Moved(all []Record) []Record {
	all = slices.DeleteFunc(all, func(r Record) bool { return r.Kind == Sessions || r.Kind == Meta && r.Key == metaID })
	slices.SortFunc(all, func(a, b Record) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key)) })
	return all
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
