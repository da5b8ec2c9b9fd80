package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store"
)

// The suite is run on an engine that is too simple to be wrong: slices, one lock, and a process-wide
// table of "directories" in place of a disk.
func TestSuite(t *testing.T) { Run(t, openMemory) }

func BenchmarkSuite(b *testing.B) { Bench(b, openMemory) }

var disks sync.Map // name → *disk

// disk is what survives Close.
type disk struct {
	mu        sync.Mutex
	partners  []store.Partner
	keys      []store.Key
	merchants []store.Merchant // with their tags
	events    []memoryEvent
	links     map[memoryLink]store.MUID
	received  map[memoryMark]time.Time
	open      bool
}

type memoryEvent struct {
	store.Event
	merchant store.MerchantID
	tag      store.TagID
}

type memoryLink struct {
	merchant store.MerchantID
	key      store.IdentityKey
}

type memoryMark struct {
	merchant store.MerchantID
	id       string
}

type memory struct {
	*disk
	now       func() time.Time
	directory *store.Directory
}

func openMemory(t testing.TB, dir string, now func() time.Time) store.Engine {
	// The directory has the name of its disk, so that a copy of it is a copy of the disk.
	path := filepath.Join(dir, "disk")
	name, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		name = []byte(dir)
		err = os.WriteFile(path, name, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	fresh := &disk{links: map[memoryLink]store.MUID{}, received: map[memoryMark]time.Time{}}
	d, found := disks.LoadOrStore(string(name), fresh)
	if !found {
		t.Cleanup(func() { disks.Delete(string(name)) })
	}
	m := &memory{disk: d.(*disk), now: now, directory: store.NewDirectory()}
	m.open = true
	for _, p := range m.partners {
		m.directory.SetPartner(p)
	}
	for _, k := range m.keys {
		m.directory.SetKey(k)
	}
	for _, merchant := range m.merchants {
		for _, tag := range merchant.Tags {
			m.directory.SetTag(tag)
		}
	}
	return m
}

func (m *memory) Directory() *store.Directory { return m.directory }
func (m *memory) Ready() error                { return nil }

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = false
	return nil
}

func (m *memory) AddPartner(_ context.Context, name string) (store.Partner, error) {
	name, err := store.CheckName("name", name)
	if err != nil {
		return store.Partner{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := store.Partner{ID: store.NewPartnerID(), Name: name, CreatedAt: m.now()}
	m.partners = append(m.partners, p)
	m.directory.SetPartner(p)
	return p, nil
}

func (m *memory) Partners(context.Context) ([]store.Partner, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.partners), nil
}

func (d *disk) partner(id store.PartnerID) (*store.Partner, error) {
	i := slices.IndexFunc(d.partners, func(p store.Partner) bool { return p.ID == id })
	if i < 0 {
		return nil, store.NotFound("Partner")
	}
	return &d.partners[i], nil
}

func (m *memory) EnablePreverified(_ context.Context, id store.PartnerID, domain string) (store.Partner, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := m.partner(id)
	if err != nil {
		return store.Partner{}, err
	}
	if domain, err = store.CheckHostName("domain", domain); err != nil {
		return store.Partner{}, err
	}
	for _, other := range m.partners {
		if other.ID != id && other.TrackingDomain == domain {
			return store.Partner{}, &store.Error{Kind: store.KindConflict, Message: "taken"}
		}
	}
	for _, merchant := range m.merchants {
		if tag, ok := merchant.Tag(store.ServerSide); ok && tag.Domain == store.RootDomain(domain) {
			return store.Partner{}, &store.Error{Kind: store.KindConflict, Message: "taken"}
		}
	}
	p.TrackingDomain = domain
	for i, merchant := range m.merchants {
		for j, tag := range merchant.Tags {
			if tag.Type == store.Preverified && tag.Partner == id {
				m.merchants[i].Tags[j].Host = domain
			}
		}
	}
	m.directory.SetPartner(*p)
	return *p, nil
}

func (m *memory) IssueKey(_ context.Context, id store.PartnerID, expiresIn time.Duration) (store.Key, store.APIKey, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.partner(id); err != nil {
		return store.Key{}, "", err
	}
	k, text := store.NewKey(id, m.now(), expiresIn)
	m.keys = append(m.keys, k)
	m.directory.SetKey(k)
	return k, text, nil
}

func (m *memory) Keys(_ context.Context, id store.PartnerID) ([]store.Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.partner(id); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(m.keys), func(k store.Key) bool { return k.Partner != id }), nil
}

func (m *memory) RevokeKey(_ context.Context, id store.KeyID) (store.Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.keys, func(k store.Key) bool { return k.ID == id })
	if i < 0 {
		return store.Key{}, store.NotFound("Key")
	}
	if m.keys[i].RevokedAt == nil {
		now := m.now()
		m.keys[i].RevokedAt = &now
		m.directory.SetKey(m.keys[i])
	}
	return m.keys[i], nil
}

func (m *memory) AddMerchant(_ context.Context, partner store.PartnerID, name, domain string) (store.Merchant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.partner(partner); err != nil {
		return store.Merchant{}, err
	}
	merchant := store.Merchant{ID: store.NewMerchantID(), Partner: partner, Name: name, Domain: domain, CreatedAt: m.now()}
	m.merchants = append(m.merchants, merchant)
	return merchant, nil
}

func (d *disk) merchant(id store.MerchantID) (*store.Merchant, error) {
	i := slices.IndexFunc(d.merchants, func(m store.Merchant) bool { return m.ID == id })
	if i < 0 {
		return nil, store.NotFound("Merchant")
	}
	return &d.merchants[i], nil
}

func copyMerchant(m store.Merchant) store.Merchant {
	m.Tags = slices.Clone(m.Tags)
	return m
}

func (m *memory) Merchant(_ context.Context, id store.MerchantID) (store.Merchant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	merchant, err := m.merchant(id)
	if err != nil {
		return store.Merchant{}, err
	}
	return copyMerchant(*merchant), nil
}

func (m *memory) Merchants(_ context.Context, partner store.PartnerID, offset, limit int) ([]store.Merchant, int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var page []store.Merchant
	total := 0
	for _, merchant := range m.merchants {
		if merchant.Partner != partner {
			continue
		}
		if total >= offset && len(page) < limit {
			page = append(page, copyMerchant(merchant))
		}
		total++
	}
	return page, total, nil
}

func (m *memory) GenerateTag(_ context.Context, id store.MerchantID, t store.TagType, domain string) (store.Tag, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	merchant, err := m.merchant(id)
	if err != nil {
		return store.Tag{}, false, err
	}
	if tag, ok := merchant.Tag(t); ok {
		return tag, false, nil
	}
	owner, err := m.partner(merchant.Partner)
	if err != nil {
		return store.Tag{}, false, err
	}
	if t == store.Preverified && !owner.PreverifiedEnabled() {
		return store.Tag{}, false, store.Invalid("type", "needs preverified access")
	}
	if t != store.ServerSide {
		domain = ""
	}
	labels := map[string]bool{}
	for _, other := range m.merchants {
		for _, tag := range other.Tags {
			labels[tag.Label] = true
			if domain != "" && tag.Domain == domain {
				return store.Tag{}, false, &store.Error{Kind: store.KindConflict, Message: "taken"}
			}
		}
	}
	for _, p := range m.partners {
		if domain != "" && p.TrackingDomain != "" && store.RootDomain(p.TrackingDomain) == domain {
			return store.Tag{}, false, store.Invalid("domain", "is a partner's")
		}
	}
	label := ""
	if t.NeedsRecord() {
		if label, err = store.DrawLabel(func(l string) bool { return labels[l] }); err != nil {
			return store.Tag{}, false, err
		}
	}
	tag := store.NewTag(*merchant, t, label, domain, m.now())
	if t == store.Preverified {
		tag.Host = owner.TrackingDomain
	}
	merchant.Tags = append(merchant.Tags, tag)
	m.directory.SetTag(tag)
	return tag, true, nil
}

func (d *disk) tag(id store.TagID) (*store.Tag, error) {
	for i := range d.merchants {
		for j := range d.merchants[i].Tags {
			if tag := &d.merchants[i].Tags[j]; tag.ID == id {
				return tag, nil
			}
		}
	}
	return nil, store.NotFound("Tag")
}

func (m *memory) Tag(_ context.Context, id store.TagID) (store.Tag, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	tag, err := m.tag(id)
	if err != nil {
		return store.Tag{}, err
	}
	return *tag, nil
}

func (m *memory) UpdateTag(_ context.Context, id store.TagID, change func(store.Tag) store.Tag) (store.Tag, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	tag, err := m.tag(id)
	if err != nil {
		return store.Tag{}, err
	}
	*tag = change(*tag)
	m.directory.SetTag(*tag)
	return *tag, nil
}

func (m *memory) Record(marks []store.Mark) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.open {
		return store.Unavailable("closed")
	}
	for _, mark := range marks {
		if len(mark.Identity.MUID) > store.MaxMUIDLength {
			return store.Invalid("muid", "is too long")
		}
	}
	for i := range marks {
		marks[i].Outcome = m.record(&marks[i])
	}
	return nil
}

func (m *memory) record(mark *store.Mark) store.Outcome {
	muid := m.resolve(mark.Merchant, &mark.Identity)
	if muid == "" {
		return store.Unresolved
	}
	merchant := store.MerchantID(strings.Clone(string(mark.Merchant)))
	if mark.DedupeID != "" {
		key := memoryMark{merchant, strings.Clone(mark.DedupeID)}
		if first, ok := m.received[key]; ok && m.now().Sub(first) < store.DedupeWindow {
			return store.Duplicate
		}
		m.received[key] = m.now()
	}
	m.link(merchant, &mark.Identity)
	m.events = append(m.events, memoryEvent{
		merchant: merchant, tag: store.TagID(strings.Clone(string(mark.Tag))),
		Event: store.Event{
			ID:   store.EventID(fmt.Sprintf("%020d", len(m.events))),
			MUID: store.MUID(strings.Clone(string(muid))), Name: strings.Clone(mark.Name),
			Time: mark.Time.UTC().Truncate(time.Microsecond), Raw: slices.Clone(mark.Raw),
		},
	})
	return store.Recorded
}

func (d *disk) resolve(merchant store.MerchantID, id *store.Identity) store.MUID {
	if id.MUID != "" {
		return id.MUID
	}
	for _, key := range id.Keys() {
		if muid, ok := d.links[memoryLink{merchant, key}]; ok {
			return muid
		}
	}
	return ""
}

func (d *disk) link(merchant store.MerchantID, id *store.Identity) {
	if id.MUID == "" {
		return
	}
	for _, key := range id.Keys() {
		d.links[memoryLink{merchant, key}] = store.MUID(strings.Clone(string(id.MUID)))
	}
}

func (m *memory) Resolve(merchant store.MerchantID, id store.Identity) (store.MUID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(id.MUID) > store.MaxMUIDLength {
		return "", store.Invalid("muid", "is too long")
	}
	m.link(merchant, &id)
	return m.resolve(merchant, &id), nil
}

func (m *memory) Events(_ context.Context, q store.Query) (store.Page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var match []store.Event
	for _, e := range m.events {
		if e.merchant == q.Merchant && (q.Tag == "" || e.tag == q.Tag) &&
			(q.Names == nil || slices.Contains(q.Names, e.Name)) &&
			(q.From.IsZero() || !e.Time.Before(q.From)) && (q.To.IsZero() || !e.Time.After(q.To)) {
			match = append(match, e.Event)
		}
	}
	slices.SortFunc(match, func(a, b store.Event) int {
		newestFirst := cmp.Or(b.Time.Compare(a.Time), cmp.Compare(b.ID, a.ID))
		byName := cmp.Compare(a.Name, b.Name)
		switch {
		case q.SortBy == store.ByTime && q.Asc:
			return -newestFirst
		case q.SortBy == store.ByTime:
			return newestFirst
		case q.Asc:
			return cmp.Or(byName, newestFirst)
		default:
			return cmp.Or(-byName, newestFirst)
		}
	})
	first := min(q.Offset, len(match))
	return store.Page{Events: match[first : first+min(q.Limit, len(match)-first)], Total: len(match)}, nil
}
