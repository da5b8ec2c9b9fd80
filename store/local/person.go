package local

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"unicode/utf8"

	"github.com/goccy/go-json/jsontext"
	"github.com/goccy/go-json/v2"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
)

// resolvePerson returns the hashes of a person who is named by one muid or one identifier.
func (e *engine) resolvePerson(ctx context.Context, m store.MerchantID, id store.Identity) (p store.Person, err error) {
	if (id.MUID != "") == (len(id.Keys()) > 0) || len(id.Keys()) > 1 {
		return p, store.Invalid("person", "must be named by one of muid, email, phone, deviceId")
	}
	muid := id.MUID
	if muid == "" {
		p.Identifiers = append(p.Identifiers, id.Keys()...)
		if muid, err = e.journal.Resolve(ctx, m, id); err != nil {
			return p, err
		}
	}
	if len(muid) > store.MaxMUIDLength {
		return p, store.Invalid("muid", "must have at most %d bytes", store.MaxMUIDLength)
	}
	if muid != "" {
		p.MUIDs = append(p.MUIDs, store.MUIDKey(muid))
	}
	return p, nil
}

// persons are several persons, each with a number, by their muids and identifiers.
type persons struct {
	muids, identifiers map[store.IdentityKey][]int
}

func newPersons(all ...store.Person) *persons {
	p := &persons{muids: map[store.IdentityKey][]int{}, identifiers: map[store.IdentityKey][]int{}}
	for n, person := range all {
		for _, k := range person.MUIDs {
			p.muids[k] = append(p.muids[k], n)
		}
		for _, k := range person.Identifiers {
			p.identifiers[k] = append(p.identifiers[k], n)
		}
	}
	return p
}

// matcher finds the events of persons, in one goroutine.
type matcher struct {
	*persons

	// The last muid. Neighbours often have the same.
	muid  []byte
	owner []int

	fields personalFields
}

func (p *persons) matcher() *matcher { return &matcher{persons: p} }

// of returns the numbers of the persons to whom an event belongs.
func (p *matcher) of(e *journal.Event) []int {
	if !bytes.Equal(e.MUID, p.muid) {
		p.muid = append(p.muid[:0], e.MUID...)
		p.owner = p.muids[store.MUIDKey(e.MUID)]
	}
	if len(p.identifiers) == 0 {
		return p.owner
	}
	found := p.owner
	for _, k := range p.fields.identifiers(e.Raw, p.identifiers) {
		if more := p.identifiers[k]; more != nil {
			found = append(found[:len(found):len(found)], more...)
		}
	}
	if len(found) > len(p.owner) {
		slices.Sort(found)
		found = slices.Compact(found)
	}
	return found
}

// personalFields are the fields of an event's body that say whose it is.
type personalFields struct {
	Email    jsontext.Value `json:"email"`
	Phone    jsontext.Value `json:"phone"`
	DeviceID jsontext.Value `json:"deviceId"`
	EventID  jsontext.Value `json:"event_id"`
}

// lenient are the options to read everything that the tag server accepts.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

func (f *personalFields) read(raw []byte) {
	f.Email, f.Phone, f.DeviceID, f.EventID = f.Email[:0], f.Phone[:0], f.DeviceID[:0], f.EventID[:0]
	_ = json.UnmarshalOf(raw, f, lenient) // the fields before an error count, as when the event came in
}

// personalNames are the fields that identify a person, as they are in a body.
var personalNames = map[store.IdentifierKind][]byte{store.Email: []byte(`"email"`), store.Phone: []byte(`"phone"`), store.DeviceID: []byte(`"deviceId"`)}

// identifiers returns the keys of the identifiers in an event's body. It may return none when none of them is wanted.
func (f *personalFields) identifiers(raw []byte, wanted map[store.IdentityKey][]int) []store.IdentityKey {
	if !mayHave(raw, wanted) {
		return nil
	}
	f.read(raw)
	var id store.Identity
	for kind, v := range map[store.IdentifierKind]jsontext.Value{store.Email: f.Email, store.Phone: f.Phone, store.DeviceID: f.DeviceID} {
		if text, ok := textOf(v); ok {
			id.Add(kind, text)
		}
	}
	return id.Keys()
}

// mayHave reports whether a body may have one of the wanted identifiers. It is much faster than parsing the body. It looks at every
// string that follows the name of an identifier, at any depth, and returns true when one may be written with escapes.
func mayHave(raw []byte, wanted map[store.IdentityKey][]int) bool {
	if bytes.Contains(raw, []byte(`\u00`)) {
		return true // a name may be written with escapes
	}
	for kind, name := range personalNames {
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

// foundAtOnce is how many events eachOf finds in the journal before it passes them on.
const foundAtOnce = 256

// eachOf calls use with the events of a merchant that belong to persons, in the order of receipt, up to the chunk upTo, until use
// returns an error. Events that cannot be read are left out. It calls pace now and then. No transaction is open while use runs,
// because that may take long.
func (e *engine) eachOf(ctx context.Context, m codec.MerchantKey, who *persons, upTo uint64, pace func(), use func(event *journal.Event, owners []int) error) error {
	after := codec.Position{}
	matcher := who.matcher()
	one := func(event *journal.Event) error {
		if owners := matcher.of(event); len(owners) > 0 {
			return use(event, owners)
		}
		return nil
	}
	for {
		boundary := min(e.archive.Boundary(), upTo)
		if err := e.archive.Select(ctx, m, after, codec.EndOf(boundary), func() func(archive.Event) bool {
			matcher := who.matcher()
			return func(stored archive.Event) bool {
				event, err := journal.DecodeBody(m, stored.Position, stored.Body)
				return err == nil && len(matcher.of(&event)) > 0
			}
		}, func(stored archive.Event) error {
			event, err := journal.DecodeBody(m, stored.Position, stored.Body)
			if err != nil {
				return ofEvents("archive/", err)
			}
			return one(&event)
		}, e.life.damaged, pace); err != nil {
			return err
		}
		if after = codec.EndOf(max(boundary, after.Seq)); after.Seq >= upTo {
			return nil
		}
		var found []journal.Event
		err := e.journal.Scan(ctx, after.Seq+1, upTo, func(seq uint64, events []journal.Event) bool {
			if e.hasMoved(after.Seq + 1) {
				return false
			}
			for i := range events {
				if event := &events[i]; event.Merchant == m && len(matcher.of(event)) > 0 {
					found = append(found, event.Clone())
				}
			}
			after = codec.EndOf(seq)
			pace()
			return len(found) < foundAtOnce
		})
		for i := range found {
			if err := one(&found[i]); err != nil {
				return err
			}
		}
		damaged, isDamaged := errors.AsType[journal.DamagedChunks](err)
		switch {
		case e.hasMoved(after.Seq + 1): // the next round reads it from the archive
		case err == nil && len(found) >= foundAtOnce:
		case isDamaged:
			after = codec.EndOf(damaged[0].Seq)
		default:
			return err
		}
	}
}

// linksAtOnce is how many links linksOf finds before it passes them on.
const linksAtOnce = 4096

var errMoreLinks = errors.New("there are more links")

// linksOf calls use with the links of persons. No transaction is open while use runs.
func (e *engine) linksOf(ctx context.Context, m codec.MerchantKey, p *persons, use func(*store.PersonalRecord) error) error {
	var from store.IdentityKey
	for {
		var found []store.PersonalRecord
		err := e.journal.Links(ctx, m, from, func(k store.IdentityKey, muid []byte) error {
			if len(p.muids[store.MUIDKey(muid)]) == 0 && len(p.identifiers[k]) == 0 {
				return nil
			}
			if len(found) == linksAtOnce {
				from = k
				return errMoreLinks
			}
			found = append(found, store.PersonalRecord{Identifier: k, MUID: store.MUID(muid)})
			return nil
		})
		for i := range found {
			if err := use(&found[i]); err != nil {
				return err
			}
		}
		if !errors.Is(err, errMoreLinks) {
			return err
		}
	}
}

// PersonalData implements store.Persons.
func (e *engine) PersonalData(ctx context.Context, id store.MerchantID, person store.Identity, use func(*store.PersonalRecord) error) error {
	m, err := codec.NewMerchantKey(id)
	if err != nil {
		return err
	}
	who, err := e.resolvePerson(ctx, id, person)
	if err != nil || e.IsRemoved(id) {
		return err
	}
	if !e.beginReading() {
		return store.Unavailable("the service is stopping")
	}
	defer e.verifying.RUnlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.opened, cancel)()
	p := newPersons(who)
	if err := e.linksOf(ctx, m, p, use); err != nil {
		return err
	}
	from := e.keptFrom(id)
	return e.eachOf(ctx, m, p, e.journal.Committed(), func() {}, func(event *journal.Event, _ []int) error {
		if event.Time < from {
			return nil
		}
		tag, _ := codec.SplitSeries(event.Series)
		listed := event.Listed()
		return use(&store.PersonalRecord{Event: &listed, Tag: store.TagID(tag)})
	})
}
