package rules

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"github.com/goccy/go-json/jsontext"
	"github.com/goccy/go-json/v2"

	"mtagd/store"
)

// CheckPerson returns an error unless a person is named by one muid or one identifier. KindInvalid: person, muid.
func CheckPerson(id *store.Identity) error {
	if (id.MUID != "") == (len(id.Keys()) > 0) || len(id.Keys()) > 1 {
		return store.Invalid("person", "must be named by one of muid, email, phone, deviceId")
	}
	return CheckMUID(id.MUID)
}

// Persons are several persons. Each has a number.
type Persons struct {
	muids, identifiers map[store.IdentityKey][]int
	claimed            map[store.IdentityKey][]int // muids that only claimed links lead to
	withClaimed        []bool                      // of each person: what is claimed belongs to it
}

// NewPersons returns these persons, numbered from 0.
func NewPersons(all ...store.Person) *Persons {
	p := &Persons{muids: map[store.IdentityKey][]int{}, identifiers: map[store.IdentityKey][]int{}, claimed: map[store.IdentityKey][]int{}}
	for n, person := range all {
		for _, k := range person.MUIDs {
			p.muids[k] = append(p.muids[k], n)
		}
		for _, k := range person.Identifiers {
			p.identifiers[k] = append(p.identifiers[k], n)
		}
		for _, k := range person.Claimed {
			p.claimed[k] = append(p.claimed[k], n)
		}
		p.withClaimed = append(p.withClaimed, person.WithClaimed)
	}
	return p
}

// OfLink returns the numbers of the persons to whom a link belongs, sorted.
func (p *Persons) OfLink(l store.Link) []int {
	return merge(p.muids[store.MUIDKey(l.MUID)], p.identifiers[l.Identifier])
}

// Links returns for each person how many of the links belong to the person, and which of their identifiers are suppressed
// when the person is erased with suppress: later events with them are refused.
func (p *Persons) Links(links []store.Link) (numbers []int, suppressed [][]store.IdentityKey) {
	numbers, suppressed = make([]int, len(p.withClaimed)), make([][]store.IdentityKey, len(p.withClaimed))
	for _, l := range links {
		for _, n := range p.OfLink(l) {
			numbers[n]++
			if p.suppresses(n, l) {
				suppressed[n] = append(suppressed[n], l.Identifier)
			}
		}
	}
	return numbers, suppressed
}

// suppresses reports whether events with a link's identifier are refused after person n was erased with suppress. Any link
// to one of the person's muids may have another person's identifier, but one that came with the merchant's secret: who has a
// cookie of his own can link anybody's identifier to its muid.
func (p *Persons) suppresses(n int, l store.Link) bool {
	return slices.Contains(p.identifiers[l.Identifier], n) ||
		slices.Contains(p.muids[store.MUIDKey(l.MUID)], n) && (l.Source == store.BySecret || p.withClaimed[n])
}

// merge returns the numbers that are in one of two lists, sorted. It may return one of the lists.
func merge(a, b []int) []int {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// Matcher finds the events of persons, in one goroutine.
type Matcher struct {
	*Persons

	// Of the last muid. Neighbours often have the same.
	muid  []byte
	of    []int // the persons who have it
	claim []int // those to whom only a claimed link leads

	reader EventReader
}

// Matcher returns a new one.
func (p *Persons) Matcher() *Matcher { return &Matcher{Persons: p} }

// Of returns the numbers of the persons to whom an event with this muid and this body belongs, and of those to whom it
// would belong if claimed links counted. byClaim: the sender gave only identifiers, and the link that led to the muid did not
// come with the merchant's secret.
func (p *Matcher) Of(muid, raw []byte, byClaim bool) (owners, claimed []int) {
	if !bytes.Equal(muid, p.muid) {
		p.muid = append(p.muid[:0], muid...)
		key := store.MUIDKey(muid)
		p.of, p.claim = p.muids[key], p.claimed[key]
	}
	owners, claimed = p.of, p.claim
	if byClaim {
		owners = nil
		for _, n := range p.of {
			if p.withClaimed[n] {
				owners = append(owners, n)
			} else {
				claimed = append(claimed[:len(claimed):len(claimed)], n)
			}
		}
	}
	if len(p.identifiers) > 0 && mayHave(raw, p.identifiers) {
		found, _ := p.reader.Keys(raw)
		for _, k := range found {
			owners = merge(owners, p.identifiers[k])
		}
	}
	if len(claimed) > 0 && len(owners) > 0 {
		claimed = slices.DeleteFunc(slices.Clone(claimed), func(n int) bool { return slices.Contains(owners, n) })
	}
	return owners, claimed
}

// EventReader reads bodies of events, one after the other. It has the fields of the last one that say whose it is.
type EventReader struct {
	Email    jsontext.Value `json:"email"`
	Phone    jsontext.Value `json:"phone"`
	DeviceID jsontext.Value `json:"deviceId"`
	EventID  jsontext.Value `json:"event_id"`
}

// lenient reads what the tag server takes.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// fieldNames are the fields that identify a person, as they are in a body.
var fieldNames = map[store.IdentifierKind][]byte{store.Email: []byte(`"email"`), store.Phone: []byte(`"phone"`), store.DeviceID: []byte(`"deviceId"`)}

// Keys returns the keys of the identifiers in an event's body, and its event_id; "" when there is none.
func (r *EventReader) Keys(raw []byte) (identifiers []store.IdentityKey, eventID string) {
	r.Email, r.Phone, r.DeviceID, r.EventID = r.Email[:0], r.Phone[:0], r.DeviceID[:0], r.EventID[:0]
	_ = json.UnmarshalOf(raw, r, lenient) // the fields before an error count, as when the event came in
	var id store.Identity
	for kind, v := range map[store.IdentifierKind]jsontext.Value{store.Email: r.Email, store.Phone: r.Phone, store.DeviceID: r.DeviceID} {
		if text, ok := textOf(v); ok {
			id.Add(kind, text)
		}
	}
	if text, ok := textOf(r.EventID); ok && store.FitsDedupeID(text) {
		eventID = text
	}
	return id.Keys(), eventID
}

// mayHave is false for most bodies that have none of the wanted identifiers, and much faster than reading them. It looks at
// all texts that follow such a name, wherever they are. Where something may be written with escapes, it gives up.
func mayHave(raw []byte, wanted map[store.IdentityKey][]int) bool {
	if bytes.Contains(raw, []byte(`\u00`)) {
		return true // a name may be
	}
	for kind, name := range fieldNames {
		for rest := raw; ; {
			at := bytes.Index(rest, name)
			if at < 0 {
				break
			}
			rest = bytes.TrimLeft(rest[at+len(name):], " \t\r\n:")
			if len(rest) == 0 || rest[0] != '"' {
				continue
			}
			end := bytes.IndexByte(rest[1:], '"')
			if end < 0 {
				return true
			}
			text := rest[1 : 1+end]
			if bytes.IndexByte(text, '\\') >= 0 || !utf8.Valid(text) {
				return true
			}
			var id store.Identity
			id.Add(kind, string(text))
			for _, k := range id.Keys() {
				if _, is := wanted[k]; is {
					return true
				}
			}
		}
	}
	return false
}

func textOf(v jsontext.Value) (string, bool) {
	if len(v) < 2 || v[0] != '"' {
		return "", false
	}
	s, _ := jsontext.AppendUnquote(nil, []byte(v)) // half of a surrogate pair becomes U+FFFD
	return string(s), true
}
