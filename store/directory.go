package store

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Directory holds in memory what every request looks up: API keys, partners, secrets, tags and hosts. Authentication
// and the hot path look up nothing else. Only the engine changes the directory: at start, and after each committed
// change. All methods may be called from many goroutines at once.
//
// With one machine the directory has every committed change. Where several machines share a store, it may not yet have
// the latest changes of the others: MaxDirectoryAge bounds the delay.
type Directory struct {
	mu       sync.RWMutex
	partners map[PartnerID]Partner
	keys     map[KeyID]Key
	labels   int // tags that have a label

	// What each event looks up. Only writers hold mu.
	tags            hotMap[TagID, Tag]
	hosts           hotMap[string, hostTags]
	partnerSettings hotMap[PartnerID, partnerSettings]   // of the partners whose settings are not the zero value
	merchants       hotMap[MerchantID, MerchantSettings] // of the merchants whose settings are not the zero value

	secrets map[MerchantID][]Secret // of the merchants that have any

	// The merchants that have a tag, by partner, in the order in which they got their first one. Lists are never changed in
	// place.
	owned    map[PartnerID][]MerchantID
	owner    map[MerchantID]PartnerID    // of these merchants
	sessions map[SessionID]Session       // without links
	seen     map[SessionID]*atomic.Int64 // when each of them last authenticated a request: s since 1970
	uses     map[KeyID]*atomic.Int64     // when each key last authenticated a request: s since 1970
}

// MerchantSettings is what the hot path needs to know of a merchant. It is the zero value for most.
type MerchantSettings struct {
	Suspended bool
	Limits    MerchantLimits

	PartnerBytesPerDay Limit // PartnerLimits.BytesPerDay of the partner

	IdentityRequiresSecret bool
	DeliverClientDetails   bool
}

// partnerSettings is what the hot path needs to know of a partner.
type partnerSettings struct {
	suspended   bool
	bytesPerDay Limit
}

// hostTags are the tags on one host.
type hostTags struct {
	tags     []TagID   // never changed in place, but appended to
	reserved PartnerID // whose tracking domain the host is: it is known even before its first tag; "": nobody's
}

// hotMap is a map that is read without a lock: processors that take turns with the memory of a lock slow each other down.
type hotMap[K comparable, V any] struct {
	m    sync.Map     // the values are *V
	size atomic.Int64 // most directories have no settings: then get hashes no id
}

func (h *hotMap[K, V]) get(k K) (v V, ok bool) {
	if h.size.Load() == 0 {
		return v, false
	}
	p, ok := h.m.Load(k)
	if ok {
		v = *p.(*V)
	}
	return v, ok
}

func (h *hotMap[K, V]) set(k K, v V) {
	if _, replaced := h.m.Swap(k, &v); !replaced {
		h.size.Add(1)
	}
}

func (h *hotMap[K, V]) remove(k K) {
	if _, removed := h.m.LoadAndDelete(k); removed {
		h.size.Add(-1)
	}
}

// all iterates over the entries.
func (h *hotMap[K, V]) all(yield func(K, V) bool) {
	h.m.Range(func(k, v any) bool { return yield(k.(K), *v.(*V)) })
}

// NewDirectory returns an empty directory.
func NewDirectory() *Directory {
	return &Directory{
		partners: map[PartnerID]Partner{},
		keys:     map[KeyID]Key{},

		secrets: map[MerchantID][]Secret{},

		owned:    map[PartnerID][]MerchantID{},
		owner:    map[MerchantID]PartnerID{},
		sessions: map[SessionID]Session{},
		seen:     map[SessionID]*atomic.Int64{},
		uses:     map[KeyID]*atomic.Int64{},
	}
}

// Partner returns a partner.
func (d *Directory) Partner(id PartnerID) (Partner, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	p, ok := d.partners[id]
	return p, ok
}

// Key returns an API key's record, valid or not.
func (d *Directory) Key(id KeyID) (Key, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	k, ok := d.keys[id]
	return k, ok
}

// Authenticate returns an API key that is valid at the time now, and its partner; false when the text is no such key.
// It does not say why not, as the partner API must not either (spec, Authentication, 2). It notes the use of the key.
func (d *Directory) Authenticate(text APIKey, now time.Time) (Partner, Key, bool) {
	id, err := text.ID()
	if err != nil {
		return Partner{}, Key{}, false
	}
	key, ok := d.Key(id)
	if !ok || !text.Matches(key) || !key.Valid(now) {
		return Partner{}, Key{}, false
	}
	partner, ok := d.Partner(key.Partner)
	d.SetLastUse(id, now)
	return partner, key, ok
}

// AuthenticateSession returns the session of a text, and its key, as Session does. It notes the use of both.
func (d *Directory) AuthenticateSession(text SessionText, now time.Time) (Session, Key, bool) {
	id, err := text.ID()
	if err != nil {
		return Session{}, Key{}, false
	}
	s, key, ok := d.Session(id, now)
	if !ok || !text.Matches(s) {
		return Session{}, Key{}, false
	}
	if key.ID != "" {
		d.SetLastUse(key.ID, now)
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if seen := d.seen[id]; seen != nil {
		seen.Store(now.Unix())
	}
	return s, key, true
}

// Session returns a session that is valid at the time now, and the key that it was begun with. A link's session has the zero
// Key, whose scope is Full. It returns false when there is no such session, and when it has ended: its time is over, its key
// is not valid any more, or its partner does not exist any more.
func (d *Directory) Session(id SessionID, now time.Time) (Session, Key, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	s, ok := d.sessions[id]
	key, valid := d.keyOf(s, now)
	if !ok || !valid {
		return Session{}, Key{}, false
	}
	return s, key, true
}

// keyOf returns the key of a session; false when the session has ended.
func (d *Directory) keyOf(s Session, now time.Time) (Key, bool) {
	key, hasKey := d.keys[s.Key]
	_, hasPartner := d.partners[s.Partner]
	return key, s.Valid(now) && (hasPartner || s.IsOperators()) && (s.Key == "" || hasKey && key.Valid(now))
}

// Sessions returns the sessions of a partner that are valid at the time now, newest first. Their SeenAt is right for
// requests to this process.
func (d *Directory) Sessions(partner PartnerID, now time.Time) (list []Session) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, s := range d.sessions {
		if s.Partner != partner {
			continue
		}
		if _, valid := d.keyOf(s, now); valid {
			s.SeenAt = d.lastSeen(s)
			list = append(list, s)
		}
	}
	Sort(list, func(a, b Session) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// lastSeen returns when a session was last used. The caller holds d.mu.
func (d *Directory) lastSeen(s Session) time.Time {
	at := s.storedSeen()
	if seen := time.Unix(d.seen[s.ID].Load(), 0).UTC(); seen.After(at) {
		return seen
	}
	return at
}

// SeenSessions returns the sessions whose last use must be stored now, with the new SeenAt.
func (d *Directory) SeenSessions() (list []Session) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, s := range d.sessions {
		if at := d.lastSeen(s); at.Sub(s.storedSeen()) >= SessionSeenDelay {
			s.SeenAt = at
			list = append(list, s)
		}
	}
	return list
}

// LastUse returns when a key last authenticated a request, in whole seconds; the zero time when it never did.
func (d *Directory) LastUse(id KeyID) time.Time {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if used := d.uses[id]; used != nil && used.Load() != 0 {
		return time.Unix(used.Load(), 0).UTC()
	}
	return time.Time{}
}

// SetLastUse notes when a key was last used. An engine calls it for what it has stored. The directory has the key.
func (d *Directory) SetLastUse(id KeyID, at time.Time) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if used := d.uses[id]; used != nil {
		used.Store(at.Unix())
	}
}

// HasSecret reports whether a text is one of a merchant's secrets.
func (d *Directory) HasSecret(id MerchantID, text SecretText) bool {
	d.mu.RLock()
	secrets := d.secrets[id] // never changed in place
	d.mu.RUnlock()
	return text.matchesOne(secrets)
}

// Tag returns a tag with its host.
func (d *Directory) Tag(id TagID) (Tag, bool) { return d.tags.get(id) }

// tag returns a tag that is there, else the zero Tag.
func (d *Directory) tag(id TagID) Tag {
	t, _ := d.tags.get(id)
	return t
}

// Settings returns the settings of a tag's merchant, with those of its partner. Suspended is set when the tag, its merchant
// or its partner is suspended.
func (d *Directory) Settings(t *Tag) MerchantSettings {
	s, _ := d.merchants.get(t.Merchant)
	p, _ := d.partnerSettings.get(t.Partner)
	s.Suspended = s.Suspended || t.Suspended || p.suspended
	s.PartnerBytesPerDay = p.bytesPerDay
	return s
}

// Suspended is what operators have suspended. Each list is in the order of its ids.
type Suspended struct {
	Partners  []PartnerID
	Merchants []MerchantID
	Tags      []TagID
}

// Suspended returns everything that is suspended itself: not the merchants of a suspended partner, for example. It looks at all tags.
func (d *Directory) Suspended() Suspended {
	var s Suspended
	for id, settings := range d.partnerSettings.all {
		if settings.suspended {
			s.Partners = append(s.Partners, id)
		}
	}
	for id, settings := range d.merchants.all {
		if settings.Suspended {
			s.Merchants = append(s.Merchants, id)
		}
	}
	for id, t := range d.tags.all {
		if t.Suspended {
			s.Tags = append(s.Tags, id)
		}
	}
	slices.Sort(s.Partners)
	slices.Sort(s.Merchants)
	slices.Sort(s.Tags)
	return s
}

// MerchantsWithTags returns the merchants of a partner that have a tag: no others have events. The result is shared, and
// must not be changed.
func (d *Directory) MerchantsWithTags(id PartnerID) []MerchantID {
	d.mu.RLock()
	defer d.mu.RUnlock()
	owned := d.owned[id]
	return owned[:len(owned):len(owned)]
}

// Owner returns the partner of a merchant that has a tag; "" of any other.
func (d *Directory) Owner(id MerchantID) PartnerID {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.owner[id]
}

// KnowsHost reports whether a server-side tag is on this host, or whether it is a partner's tracking domain. The name is
// in lower case, without a port.
func (d *Directory) KnowsHost(host string) bool {
	h, _ := d.hosts.get(host)
	return host != "" && (len(h.tags) > 0 || h.reserved != "")
}

// TagsOn returns the tags on a host.
func (d *Directory) TagsOn(host string) []Tag {
	d.mu.RLock()
	defer d.mu.RUnlock()
	h, _ := d.hosts.get(host)
	var tags []Tag
	for _, id := range h.tags {
		tags = append(tags, d.tag(id))
	}
	return tags
}

// OnlyTag returns the one tag on a host; false when there are none or several. The empty host is that of client-side tags.
func (d *Directory) OnlyTag(host string) (Tag, bool) {
	h, _ := d.hosts.get(host)
	if len(h.tags) != 1 {
		return Tag{}, false
	}
	return d.Tag(h.tags[0])
}

// Labels returns how many mtag-xxxx labels the tags have.
func (d *Directory) Labels() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.labels
}

// SetPartner adds or replaces a partner. When its tracking domain has changed, its preverified tags move to the new one.
// A partner that has a tracking domain must not lose it.
func (d *Directory) SetPartner(p Partner) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.partners[p.ID]
	d.partners[p.ID] = p
	if s := (partnerSettings{p.Suspended, p.Limits.BytesPerDay}); s != (partnerSettings{}) {
		d.partnerSettings.set(p.ID, s)
	} else {
		d.partnerSettings.remove(p.ID)
	}
	if old.TrackingDomain == p.TrackingDomain {
		return
	}
	moved := d.leaveHost(old)
	for _, id := range moved {
		d.tags.set(id, d.tag(id).WithHost(p.TrackingDomain))
	}
	if p.TrackingDomain != "" {
		h, _ := d.hosts.get(p.TrackingDomain)
		d.hosts.set(p.TrackingDomain, hostTags{append(h.tags, moved...), p.ID})
	}
}

// leaveHost removes a partner's tags from its tracking domain, and returns them. The domain may already have the tags of
// another partner, as changes that come together are applied in any order. The caller holds d.mu.
func (d *Directory) leaveHost(p Partner) (moved []TagID) {
	if p.TrackingDomain == "" {
		return nil
	}
	h, _ := d.hosts.get(p.TrackingDomain)
	var left []TagID
	for _, id := range h.tags {
		if d.tag(id).Partner == p.ID {
			moved = append(moved, id)
		} else {
			left = append(left, id)
		}
	}
	if h.reserved == p.ID {
		h.reserved = ""
	}
	if h.tags = left; len(left) == 0 && h.reserved == "" {
		d.hosts.remove(p.TrackingDomain)
	} else {
		d.hosts.set(p.TrackingDomain, h)
	}
	return moved
}

// SetMerchant notes the settings and the secrets of a merchant.
func (d *Directory) SetMerchant(m Merchant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := MerchantSettings{Suspended: m.Suspended, Limits: m.Limits, IdentityRequiresSecret: m.IdentityRequiresSecret, DeliverClientDetails: m.DeliverClientDetails}
	if s != (MerchantSettings{}) {
		d.merchants.set(m.ID, s)
	} else {
		d.merchants.remove(m.ID)
	}
	if len(m.Secrets) > 0 {
		d.secrets[m.ID] = m.Secrets
	} else {
		delete(d.secrets, m.ID)
	}
}

// SetKey adds or replaces a key.
func (d *Directory) SetKey(k Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keys[k.ID] = k
	if d.uses[k.ID] == nil {
		d.uses[k.ID] = new(atomic.Int64)
	}
}

// RemoveKey removes a key.
func (d *Directory) RemoveKey(id KeyID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.keys, id)
	delete(d.uses, id)
}

// SetSession adds a session.
func (d *Directory) SetSession(s Session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sessions[s.ID] = s
	if d.seen[s.ID] == nil {
		d.seen[s.ID] = new(atomic.Int64)
	}
}

// RemoveSession removes a session.
func (d *Directory) RemoveSession(id SessionID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sessions, id)
	delete(d.seen, id)
}

// RemovePartner removes a partner. Its keys, merchants and tags are removed on their own.
func (d *Directory) RemovePartner(id PartnerID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaveHost(d.partners[id])
	delete(d.partners, id)
	d.partnerSettings.remove(id)
}

// RemoveMerchants removes merchants: their settings, secrets and tags.
func (d *Directory) RemoveMerchants(merchants ...Merchant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	hosts, owners := map[string]bool{}, map[PartnerID]bool{}
	for _, m := range merchants {
		delete(d.secrets, m.ID)
		if d.owner[m.ID] != "" {
			owners[m.Partner] = true
			delete(d.owner, m.ID)
		}
		for _, t := range m.Tags {
			if t, known := d.Tag(t.ID); known {
				hosts[t.Host] = true
				if t.Label != "" {
					d.labels--
				}
				d.tags.remove(t.ID)
			}
		}
		d.merchants.remove(m.ID) // after the tags: a suspended merchant must not accept events meanwhile
	}
	for id := range owners {
		left := slices.DeleteFunc(slices.Clone(d.owned[id]), func(m MerchantID) bool { return d.owner[m] == "" })
		if len(left) > 0 {
			d.owned[id] = left
		} else {
			delete(d.owned, id)
		}
	}
	for host := range hosts { // once each: the shared host may have most tags
		h, _ := d.hosts.get(host)
		h.tags = slices.DeleteFunc(slices.Clone(h.tags), func(id TagID) bool { return d.tag(id).ID == "" })
		if len(h.tags) > 0 || h.reserved != "" {
			d.hosts.set(host, h)
		} else {
			d.hosts.remove(host)
		}
	}
}

// SetTag adds or replaces a tag. It must not change the tag's host: only SetPartner does.
func (d *Directory) SetTag(t Tag) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.Tag(t.ID); !known {
		if d.owner[t.Merchant] == "" {
			d.owner[t.Merchant] = t.Partner
			d.owned[t.Partner] = append(d.owned[t.Partner], t.Merchant)
		}
		h, _ := d.hosts.get(t.Host)
		h.tags = append(h.tags, t.ID)
		d.hosts.set(t.Host, h)
		if t.Label != "" {
			d.labels++
		}
	}
	d.tags.set(t.ID, t)
}
