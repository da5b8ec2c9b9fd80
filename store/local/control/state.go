package control

import (
	"cmp"
	"maps"
	"slices"

	"mtagd/store"
)

// state is all control data but the audit log, in memory. Requests are answered from it, so that no answer depends on what the
// disk gives back later.
type state struct {
	id         string          // of the data directory; may be empty
	retention  store.Retention // of merchants without one of their own
	partners   map[store.PartnerID]store.Partner
	keys       map[store.KeyID]store.Key
	merchants  map[store.MerchantID]merchant      // without their tags
	tags       map[store.TagID]store.Tag          // without Host and ClaimLost
	domains    map[string]store.TagID             // root domain → the server-side tag that has the claim to it
	replies    map[string]reply                   // by replyKey
	removals   map[store.MerchantID]store.Removal // of deleted merchants
	expiries   map[store.MerchantID]store.Removal // of events past the retention
	erasures   map[store.ErasureID]store.Erasure
	suppressed map[store.MerchantID]map[store.IdentityKey]store.ErasureID
	sessions   map[store.SessionID]store.Session // links too
	documents  map[string][]byte                 // those that are kept, while the file is read or if it is not opened to change

	lastEntry store.AuditID                // of the audit log
	held      map[store.PartnerID]*holding // the entries of partners and, under "", of operators; damaged ones are nobody's

	// What follows from these.
	keysOf      map[store.PartnerID][]store.KeyID      // in no order
	merchantsOf map[store.PartnerID][]store.MerchantID // oldest first
	tagsOf      map[store.MerchantID][]store.TagID     // in no order
	labels      map[string]store.TagID
	tracking    map[string]store.PartnerID // host → partner
	repliesOf   map[store.PartnerID][]string
	erasuresOf  map[store.MerchantID][]store.ErasureID // oldest first
	unfinished  map[store.ErasureID]bool

	damaged map[string]bool // ids and domains whose record, or that of their owner, is damaged

	damagedTags map[store.TagID]bool // which of damaged are tags
	damagedIn   map[string]string    // bucket → the key of a damaged record in it
}

// merchant is a merchant as it is stored.
type merchant struct {
	store.Merchant
	Ordinal uint64 `json:"ordinal"` // in the order of the partner's merchants
}

func newState() *state {
	return &state{
		retention:  store.Forever,
		partners:   map[store.PartnerID]store.Partner{},
		keys:       map[store.KeyID]store.Key{},
		merchants:  map[store.MerchantID]merchant{},
		tags:       map[store.TagID]store.Tag{},
		domains:    map[string]store.TagID{},
		replies:    map[string]reply{},
		removals:   map[store.MerchantID]store.Removal{},
		expiries:   map[store.MerchantID]store.Removal{},
		held:       map[store.PartnerID]*holding{},
		erasures:   map[store.ErasureID]store.Erasure{},
		suppressed: map[store.MerchantID]map[store.IdentityKey]store.ErasureID{},
		sessions:   map[store.SessionID]store.Session{},
		documents:  map[string][]byte{},
		erasuresOf: map[store.MerchantID][]store.ErasureID{},
		unfinished: map[store.ErasureID]bool{},

		keysOf:      map[store.PartnerID][]store.KeyID{},
		merchantsOf: map[store.PartnerID][]store.MerchantID{},
		tagsOf:      map[store.MerchantID][]store.TagID{},
		labels:      map[string]store.TagID{},
		tracking:    map[string]store.PartnerID{},
		repliesOf:   map[store.PartnerID][]string{},

		damaged:     map[string]bool{},
		damagedTags: map[store.TagID]bool{},
		damagedIn:   map[string]string{},
	}
}

// derive takes damaged records out of service, with all that belongs to them, and fills in what follows from the others. The
// labels of tags that are out of service stay taken.
func (s *state) derive() {
	for id, t := range s.tags {
		s.noteLabel(id, t)
	}
	isDamaged := func(id string) bool { return s.damaged[id] }
	maps.DeleteFunc(s.keys, func(id store.KeyID, k store.Key) bool {
		return s.drop(string(id), isDamaged(string(k.Partner)))
	})
	maps.DeleteFunc(s.merchants, func(id store.MerchantID, m merchant) bool {
		return s.drop(string(id), isDamaged(string(m.Partner)))
	})
	maps.DeleteFunc(s.tags, func(id store.TagID, t store.Tag) bool {
		dropped := s.drop(string(id), isDamaged(string(t.Merchant)) || t.Type == store.ServerSide && isDamaged(t.Domain))
		if dropped {
			s.damagedTags[id] = true
		}
		return dropped
	})
	for id, k := range s.keys {
		s.keysOf[k.Partner] = append(s.keysOf[k.Partner], id)
	}
	for id, m := range s.merchants {
		s.merchantsOf[m.Partner] = append(s.merchantsOf[m.Partner], id)
	}
	for _, list := range s.merchantsOf {
		slices.SortFunc(list, func(a, b store.MerchantID) int {
			x, y := s.merchants[a], s.merchants[b]
			return cmp.Or(cmp.Compare(x.Ordinal, y.Ordinal), x.CreatedAt.Compare(y.CreatedAt), cmp.Compare(a, b))
		})
	}
	for id, t := range s.tags {
		s.noteTag(id, t)
	}
	for id, p := range s.partners {
		if p.TrackingDomain != "" {
			s.tracking[p.TrackingDomain] = id
		}
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
		slices.SortFunc(keys, func(a, b string) int { return s.replies[a].At.Compare(s.replies[b].At) })
	}
}

func (s *state) drop(id string, damaged bool) bool {
	if damaged {
		s.damaged[id] = true
	}
	return damaged
}

func (s *state) noteTag(id store.TagID, t store.Tag) {
	s.tagsOf[t.Merchant] = append(s.tagsOf[t.Merchant], id)
	s.noteLabel(id, t)
}

func (s *state) noteLabel(id store.TagID, t store.Tag) {
	if t.Label != "" {
		s.labels[t.Label] = id
	}
}

func (s *state) setPartner(p store.Partner) {
	delete(s.tracking, s.partners[p.ID].TrackingDomain)
	s.partners[p.ID] = p
	if p.TrackingDomain != "" {
		s.tracking[p.TrackingDomain] = p.ID
	}
}

func (s *state) removePartner(p store.Partner) {
	delete(s.tracking, p.TrackingDomain)
	delete(s.partners, p.ID)
	delete(s.keysOf, p.ID)
	delete(s.merchantsOf, p.ID)
}

func (s *state) setKey(k store.Key) {
	if _, known := s.keys[k.ID]; !known {
		s.keysOf[k.Partner] = append(s.keysOf[k.Partner], k.ID)
	}
	s.keys[k.ID] = k
}

func (s *state) removeKey(k store.Key) {
	delete(s.keys, k.ID)
	s.keysOf[k.Partner] = slices.DeleteFunc(s.keysOf[k.Partner], func(id store.KeyID) bool { return id == k.ID })
}

func (s *state) setMerchant(m merchant) {
	if _, known := s.merchants[m.ID]; !known {
		s.merchantsOf[m.Partner] = append(s.merchantsOf[m.Partner], m.ID)
	}
	m.Tags = nil
	s.merchants[m.ID] = m
}

// removeMerchants removes merchants of one partner, with their tags.
func (s *state) removeMerchants(partner store.PartnerID, merchants []store.Merchant) {
	for _, m := range merchants {
		for _, t := range m.Tags {
			delete(s.tags, t.ID)
			delete(s.labels, t.Label)
		}
		delete(s.tagsOf, m.ID)
		delete(s.merchants, m.ID)
	}
	s.merchantsOf[partner] = slices.DeleteFunc(s.merchantsOf[partner], func(id store.MerchantID) bool {
		_, known := s.merchants[id]
		return !known
	})
}

func (s *state) setTag(t store.Tag) {
	if _, known := s.tags[t.ID]; !known {
		s.noteTag(t.ID, t)
	}
	s.tags[t.ID] = t
}

// partner returns a partner. KindNotFound: partner.
func (s *state) partner(id store.PartnerID) (store.Partner, error) {
	return find(s, s.partners, id, inPartners, "partner")
}

// key returns a key. KindNotFound: key.
func (s *state) key(id store.KeyID) (store.Key, error) {
	return find(s, s.keys, id, inKeys, "key")
}

// merchant returns a merchant with its tags, oldest first. KindNotFound: merchant.
func (s *state) merchant(id store.MerchantID) (store.Merchant, error) {
	m, err := find(s, s.merchants, id, inMerchants, "merchant")
	for _, id := range s.tagsOf[id] {
		m.Tags = append(m.Tags, s.complete(s.tags[id]))
	}
	order := []store.TagType{store.ClientSide, store.ServerSide, store.Preverified} // of tags from the same moment
	slices.SortFunc(m.Tags, func(a, b store.Tag) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(slices.Index(order, a.Type), slices.Index(order, b.Type)))
	})
	return m.Merchant, err
}

// tag returns a tag. KindNotFound: tag.
func (s *state) tag(id store.TagID) (store.Tag, error) {
	t, err := find(s, s.tags, id, inTags, "tag")
	if err != nil {
		return t, err
	}
	return s.complete(t), nil
}

// complete returns a tag with the fields that are not stored with it: Host and ClaimLost.
func (s *state) complete(t store.Tag) store.Tag {
	t.ClaimLost = t.Type == store.ServerSide && s.domains[t.Domain] != t.ID
	return t.WithHost(s.partners[t.Partner].TrackingDomain)
}

// holder returns the tag that has the claim to a root domain. KindNotFound: claim.
func (s *state) holder(domain string) (store.Tag, error) {
	id, err := find(s, s.domains, domain, inDomains, "claim")
	if err != nil {
		return store.Tag{}, err
	}
	return s.tag(id)
}

// allReadable returns an error if a record of these buckets is damaged. Who needs to know that something does not exist, or that
// nothing else belongs to an owner, asks this first.
func (s *state) allReadable(buckets ...string) error {
	for _, bucket := range buckets {
		if key, found := s.damagedIn[bucket]; found {
			return damaged(bucket, key)
		}
	}
	return nil
}

// find returns a record, or why there is none: it does not exist, or it is damaged.
func find[K ~string, V any](s *state, in map[K]V, key K, bucket, what string) (V, error) {
	v, ok := in[key]
	switch {
	case ok:
		return v, nil
	case s.damaged[string(key)]:
		return v, damaged(bucket, string(key))
	default:
		return v, store.NotFound(what)
	}
}
