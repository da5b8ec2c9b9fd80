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
	merchants    map[store.MerchantID]store.Merchant // without their tags
	tags         map[store.TagID]store.Tag           // without Host and ClaimLost
	domains      map[string]store.TagID              // root domain → the server-side tag that has the claim to it
	replies      map[string]reply                    // by replyKey
	removals     map[store.MerchantID]store.Removal  // of deleted merchants
	expiries     map[store.MerchantID]store.Removal  // of events past the retention
	erasures     map[store.ErasureID]store.Erasure
	suppressed   map[store.MerchantID]map[store.IdentityKey]store.ErasureID
	sessions     map[store.SessionID]store.Session // links too
	uses         map[store.KeyID]time.Time         // of keys, as stored
	destinations map[string][]byte                 // merchant id, "/", id → content

	// What follows from these. No list is empty.
	keysOf      map[store.PartnerID][]store.KeyID      // by id
	merchantsOf map[store.PartnerID][]store.MerchantID // oldest first
	tagsOf      map[store.MerchantID][]store.TagID     // by id
	labels      map[string]store.TagID
	tracking    map[string]store.PartnerID // host → partner
	repliesOf   map[store.PartnerID][]string
	erasuresOf  map[store.MerchantID][]store.ErasureID // oldest first
	unfinished  map[store.ErasureID]store.Erasure

	counts map[store.PartnerID]counts
}

func newState() *State {
	return &State{
		retention:    store.Forever,
		partners:     map[store.PartnerID]store.Partner{},
		keys:         map[store.KeyID]store.Key{},
		merchants:    map[store.MerchantID]store.Merchant{},
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
		unfinished:   map[store.ErasureID]store.Erasure{},

		keysOf:      map[store.PartnerID][]store.KeyID{},
		merchantsOf: map[store.PartnerID][]store.MerchantID{},
		tagsOf:      map[store.MerchantID][]store.TagID{},
		labels:      map[string]store.TagID{},
		tracking:    map[string]store.PartnerID{},
		repliesOf:   map[store.PartnerID][]string{},
		counts:      map[store.PartnerID]counts{},
	}
}

func (s *State) byOrdinal(a, b store.MerchantID) int {
	x, y := s.merchants[a], s.merchants[b]
	return cmp.Or(cmp.Compare(x.Ordinal, y.Ordinal), x.CreatedAt.Compare(y.CreatedAt), cmp.Compare(a, b))
}

func (s *State) byReply(a, b string) int {
	return cmp.Or(s.replies[a].At.Compare(s.replies[b].At), cmp.Compare(a, b))
}

// insert adds one that is new to the list of its owner, mostly at its end.
func insert[K comparable, T any](lists map[K][]T, owner K, one T, order func(a, b T) int) {
	list := lists[owner]
	i := len(list)
	if i > 0 && order(list[i-1], one) > 0 {
		i, _ = slices.BinarySearchFunc(list, one, order)
	}
	lists[owner] = slices.Insert(list, i, one)
}

// drop removes one from the list of its owner.
func drop[K, T comparable](lists map[K][]T, owner K, one T) {
	list := slices.DeleteFunc(lists[owner], func(other T) bool { return other == one })
	if lists[owner] = list; len(list) == 0 {
		delete(lists, owner)
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
	return m, err
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
