package rules

import (
	"cmp"
	"slices"
	"time"

	"mtagd/store"
)

// State is all control data but the audit log, in memory. Requests are answered from it, so that no answer depends on what
// the disk gives back later.
type State struct {
	id           string          // of the data directory; may be empty
	retention    store.Retention // of merchants without one of their own
	partners     map[store.PartnerID]store.Partner
	keys         map[store.KeyID]store.Key
	merchants    map[store.MerchantID]merchant      // without their tags
	tags         map[store.TagID]store.Tag          // without Host and ClaimLost
	domains      map[string]store.TagID             // root domain → the server-side tag that has the claim to it
	replies      map[string]reply                   // by replyKey
	removals     map[store.MerchantID]store.Removal // of deleted merchants
	expiries     map[store.MerchantID]store.Removal // of events past the retention
	erasures     map[store.ErasureID]store.Erasure
	suppressed   map[store.MerchantID]map[store.IdentityKey]store.ErasureID
	sessions     map[store.SessionID]store.Session // links too
	uses         map[store.KeyID]time.Time         // of keys, as stored
	destinations map[string][]byte                 // merchant id, "/", id → content

	// What follows from these.
	keysOf      map[store.PartnerID][]store.KeyID      // in no order
	merchantsOf map[store.PartnerID][]store.MerchantID // oldest first
	tagsOf      map[store.MerchantID][]store.TagID     // in no order
	labels      map[string]store.TagID
	tracking    map[string]store.PartnerID // host → partner
	repliesOf   map[store.PartnerID][]string
	erasuresOf  map[store.MerchantID][]store.ErasureID // oldest first
	unfinished  map[store.ErasureID]bool

	counts map[store.PartnerID]*counts
}

// merchant is a merchant as it is stored.
type merchant struct {
	store.Merchant
	Ordinal uint64 `json:"ordinal"` // in the order of the partner's merchants
}

// NewState returns an empty state, for a driver to load.
func NewState() *State {
	return &State{
		retention:    store.Forever,
		partners:     map[store.PartnerID]store.Partner{},
		keys:         map[store.KeyID]store.Key{},
		merchants:    map[store.MerchantID]merchant{},
		tags:         map[store.TagID]store.Tag{},
		domains:      map[string]store.TagID{},
		replies:      map[string]reply{},
		removals:     map[store.MerchantID]store.Removal{},
		expiries:     map[store.MerchantID]store.Removal{},
		erasures:     map[store.ErasureID]store.Erasure{},
		suppressed:   map[store.MerchantID]map[store.IdentityKey]store.ErasureID{},
		sessions:     map[store.SessionID]store.Session{},
		uses:         map[store.KeyID]time.Time{},
		destinations: map[string][]byte{},
		erasuresOf:   map[store.MerchantID][]store.ErasureID{},
		unfinished:   map[store.ErasureID]bool{},

		keysOf:      map[store.PartnerID][]store.KeyID{},
		merchantsOf: map[store.PartnerID][]store.MerchantID{},
		tagsOf:      map[store.MerchantID][]store.TagID{},
		labels:      map[string]store.TagID{},
		tracking:    map[string]store.PartnerID{},
		repliesOf:   map[store.PartnerID][]string{},
		counts:      map[store.PartnerID]*counts{},
	}
}

// Load adds a record that was read, before New.
func (s *State) Load(r Record) error {
	at, err := placeOf(r.Kind)
	if err != nil {
		return err
	}
	v, err := kinds[at].decode(r.Key, r.Value)
	if err == nil {
		kinds[at].load(s, r.Key, v)
	}
	return err
}

// derive fills in what follows from the records.
func (s *State) derive() {
	for id, t := range s.tags {
		s.noteLabel(id, t)
	}
	for id, k := range s.keys {
		s.keysOf[k.Partner] = append(s.keysOf[k.Partner], id)
	}
	for id, m := range s.merchants {
		s.merchantsOf[m.Partner] = append(s.merchantsOf[m.Partner], id)
	}
	for _, list := range s.merchantsOf {
		slices.SortFunc(list, s.byOrdinal)
	}
	for _, t := range s.tags {
		s.noteTag(t)
		s.countsOf(t.Partner).set(s.complete(t), true)
	}
	for id, p := range s.partners {
		if p.TrackingDomain != "" {
			s.tracking[p.TrackingDomain] = id
		}
	}
	for id, r := range s.removals {
		r.Kind = store.OfDeletion // earlier versions wrote none
		s.removals[id] = r
	}
	for id, e := range s.erasures {
		s.erasuresOf[e.Merchant] = append(s.erasuresOf[e.Merchant], id)
		if e.State != store.ErasureDone {
			s.unfinished[id] = true
		}
	}
	for _, list := range s.erasuresOf {
		slices.SortFunc(list, s.byAge)
	}
	for key, r := range s.replies {
		s.repliesOf[r.Partner] = append(s.repliesOf[r.Partner], key)
	}
	for _, keys := range s.repliesOf {
		slices.SortFunc(keys, s.byReply)
	}
}

func (s *State) byOrdinal(a, b store.MerchantID) int {
	x, y := s.merchants[a], s.merchants[b]
	return cmp.Or(cmp.Compare(x.Ordinal, y.Ordinal), x.CreatedAt.Compare(y.CreatedAt), cmp.Compare(a, b))
}

func (s *State) byReply(a, b string) int {
	return cmp.Or(s.replies[a].At.Compare(s.replies[b].At), cmp.Compare(a, b))
}

// insert adds one that is new to a list, mostly at its end.
func insert[T any](list []T, one T, order func(a, b T) int) []T {
	i, _ := slices.BinarySearchFunc(list, one, order)
	return slices.Insert(list, i, one)
}

func without[T comparable](list []T, one T) []T {
	return slices.DeleteFunc(list, func(other T) bool { return other == one })
}

// noteTag notes what follows from a tag that is new.
func (s *State) noteTag(t store.Tag) {
	s.tagsOf[t.Merchant] = append(s.tagsOf[t.Merchant], t.ID)
	s.noteLabel(t.ID, t)
}

func (s *State) noteLabel(id store.TagID, t store.Tag) {
	if t.Label != "" {
		s.labels[t.Label] = id
	}
}

// partner returns a partner. KindNotFound: partner.
func (s *State) partner(id store.PartnerID) (store.Partner, error) {
	return find(s.partners, id, "partner")
}

// key returns a key. KindNotFound: key.
func (s *State) key(id store.KeyID) (store.Key, error) {
	return find(s.keys, id, "key")
}

// merchant returns a merchant with its tags, oldest first. KindNotFound: merchant.
func (s *State) merchant(id store.MerchantID) (store.Merchant, error) {
	m, err := find(s.merchants, id, "merchant")
	for _, id := range s.tagsOf[id] {
		m.Tags = append(m.Tags, s.complete(s.tags[id]))
	}
	order := []store.TagType{store.ClientSide, store.ServerSide, store.Preverified} // of tags from the same moment
	store.Sort(m.Tags, func(a, b store.Tag) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(slices.Index(order, a.Type), slices.Index(order, b.Type)))
	})
	return m.Merchant, err
}

// tag returns a tag. KindNotFound: tag.
func (s *State) tag(id store.TagID) (store.Tag, error) {
	t, err := find(s.tags, id, "tag")
	if err != nil {
		return t, err
	}
	return s.complete(t), nil
}

// complete returns a tag with the fields that are not stored with it: Host and ClaimLost.
func (s *State) complete(t store.Tag) store.Tag {
	t.ClaimLost = t.Type == store.ServerSide && s.domains[t.Domain] != t.ID
	return t.WithHost(s.partners[t.Partner].TrackingDomain)
}

// holder returns the tag that has the claim to a root domain. KindNotFound: claim.
func (s *State) holder(domain string) (store.Tag, error) {
	id, err := find(s.domains, domain, "claim")
	if err != nil {
		return store.Tag{}, err
	}
	return s.tag(id)
}

func find[K comparable, V any](in map[K]V, key K, what string) (V, error) {
	v, ok := in[key]
	if !ok {
		return v, store.NotFound(what)
	}
	return v, nil
}
