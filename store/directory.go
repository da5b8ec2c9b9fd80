package store

import (
	"sync"
	"time"
)

// Directory holds in memory what every request looks up: API keys, partners, tags and hosts. The hot path and
// authentication read nothing else. Only the engine changes it, at start and after each committed change. All methods
// may be called from many goroutines at once.
//
// On one machine the directory always has every committed change. Where several machines share a store, the changes of
// the others arrive later: Age says how much later at most.
type Directory struct {
	age func() time.Duration // nil: the directory is always up to date

	mu       sync.RWMutex
	partners map[PartnerID]Partner
	keys     map[KeyID]Key
	tags     map[TagID]Tag
	hosts    map[string]hostTags
}

// hostTags is what is known of one host.
type hostTags struct {
	tags     []TagID
	reserved bool // a partner's tracking domain: known even before its first tag
}

// NewDirectory returns an empty directory.
func NewDirectory() *Directory {
	return &Directory{
		partners: map[PartnerID]Partner{},
		keys:     map[KeyID]Key{},
		tags:     map[TagID]Tag{},
		hosts:    map[string]hostTags{},
	}
}

// SetAge tells the directory how to find its age. An engine whose store other machines change calls it before it
// hands the directory out.
func (d *Directory) SetAge(age func() time.Duration) { d.age = age }

// Age returns how old the directory may be: every change that was committed longer ago is in it. It is 0 when every
// committed change is in it. An engine is not ready while Age exceeds MaxDirectoryAge.
func (d *Directory) Age() time.Duration {
	if d.age == nil {
		return 0
	}
	return d.age()
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

// Tag returns a tag with its host.
func (d *Directory) Tag(id TagID) (Tag, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	t, ok := d.tags[id]
	return t, ok
}

// KnowsHost reports whether a host is that of a server-side tag or a partner's tracking domain. The
// name is in lower case, without a port.
func (d *Directory) KnowsHost(host string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	h := d.hosts[host]
	return host != "" && (len(h.tags) > 0 || h.reserved)
}

// TagsOn returns the tags on a host.
func (d *Directory) TagsOn(host string) []Tag {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var tags []Tag
	for _, id := range d.hosts[host].tags {
		tags = append(tags, d.tags[id])
	}
	return tags
}

// OnlyTag returns the one tag on a host; false when there are none or several. The empty host
// stands for the shared host of client-side tags.
func (d *Directory) OnlyTag(host string) (Tag, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	h := d.hosts[host]
	if len(h.tags) != 1 {
		return Tag{}, false
	}
	return d.tags[h.tags[0]], true
}

// SetPartner adds or replaces a partner; when its tracking domain changed, the host of its
// preverified tags changes too.
func (d *Directory) SetPartner(p Partner) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.partners[p.ID]
	d.partners[p.ID] = p
	if old.TrackingDomain == p.TrackingDomain {
		return
	}
	moved := hostTags{reserved: true}
	if old.TrackingDomain != "" { // which has all of the partner's preverified tags
		moved.tags = d.hosts[old.TrackingDomain].tags
		delete(d.hosts, old.TrackingDomain)
	}
	for _, id := range moved.tags {
		d.tags[id] = d.tags[id].WithHost(p.TrackingDomain)
	}
	d.hosts[p.TrackingDomain] = moved
}

// SetKey adds or replaces a key.
func (d *Directory) SetKey(k Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keys[k.ID] = k
}

// SetTag adds or replaces a tag. A tag's host does not change here.
func (d *Directory) SetTag(t Tag) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.tags[t.ID]; !known {
		h := d.hosts[t.Host]
		h.tags = append(h.tags, t.ID)
		d.hosts[t.Host] = h
	}
	d.tags[t.ID] = t
}
