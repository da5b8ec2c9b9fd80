package storetest

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/rules"
	"mtagd/store/testenv"
)

func newMemoryStore(*testing.T) backing {
	m := newMemory()
	return backing{
		open: func(t *testing.T, now func() time.Time) store.Engine {
			t.Helper()
			return m.open(t, now)
		},
		kill: func(*testing.T) {},
	}
}

func newMemory() *memory {
	return &memory{records: map[[2]string][]byte{}, events: map[store.MerchantID]int{}}
}

// memory implements Driver.
type memory struct {
	mu      sync.Mutex
	records map[[2]string][]byte
	log     []store.AuditEntry
	events  map[store.MerchantID]int
	docs    []store.Document

	now  func() time.Time
	data *rules.Data

	// The data of another machine, which applies what is new now and then: the last version of each record.
	other   *rules.Data
	news    []rules.Record
	changes int
}

func (m *memory) open(t *testing.T, now func() time.Time) store.Engine {
	t.Helper()
	m.now, m.news = now, nil
	for _, d := range []**rules.Data{&m.data, &m.other} {
		var err error
		*d, err = m.load()
		testenv.Check(t, err)
	}
	return memoryEngine{Data: m.data, memory: m}
}

func (m *memory) load() (*rules.Data, error) {
	loaded := &rules.Loading{}
	for id, value := range m.records {
		if err := loaded.Add(rules.Record{Kind: id[0], Key: id[1], Value: value}); err != nil {
			return nil, err
		}
	}
	return rules.New(m, loaded, slog.New(slog.DiscardHandler)), nil
}

// verify compares the records with each other, and with what is in memory.
func (m *memory) verify(wrong func(kind, key, problem string)) error {
	loaded, err := m.load()
	if err != nil {
		return err
	}
	loaded.Compare(wrong)
	if err := m.follow(); err != nil {
		return err
	}
	for name, d := range map[string]*rules.Data{"memory": m.data, "memory of another machine": m.other} {
		if !d.Equals(loaded) {
			wrong(name, "", "differs from what was stored")
		}
	}
	hosts, err := m.hosts()
	for host := range hosts {
		a, b := m.data.Directory(), m.other.Directory()
		x, y := byID(a.TagsOn(host)), byID(b.TagsOn(host))
		if !reflect.DeepEqual(x, y) || a.KnowsHost(host) != b.KnowsHost(host) {
			wrong("directory of another machine", host, fmt.Sprintf("has %+v, want %+v", y, x))
		}
	}
	return err
}

func byID(tags []store.Tag) map[store.TagID]store.Tag {
	all := map[store.TagID]store.Tag{}
	for _, t := range tags {
		all[t.ID] = t
	}
	return all
}

// hosts returns all hosts of tags, and tracking domains.
func (m *memory) hosts() (map[string]bool, error) {
	all := map[string]bool{"": true}
	for _, id := range m.data.MerchantIDs() {
		shop, err := m.data.Merchant(context.Background(), id)
		if err != nil {
			return nil, err
		}
		for _, t := range shop.Tags {
			all[t.Host] = true
		}
	}
	partners, err := m.data.Partners(context.Background())
	for _, p := range partners {
		all[p.TrackingDomain] = true
	}
	return all, err
}

// follow lets the other machine apply what is new.
func (m *memory) follow() error {
	news := m.news
	m.news = nil
	return m.other.Apply(news)
}

// Update implements Driver.
func (m *memory) Update(ctx context.Context, build func(rules.Turn) (rules.Change, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	turn := rules.Turn{Now: m.now()}
	if n := len(m.log); n > 0 {
		turn.LastEntry = m.log[n-1].ID
	}
	c, err := build(turn)
	if err == nil {
		err = m.makeRoom(c.Entries)
	}
	if err != nil {
		return err
	}
	m.log = append(m.log, c.Entries...)
	for _, r := range c.Records {
		if id := [2]string{r.Kind, r.Key}; r.Value == nil {
			delete(m.records, id)
		} else {
			m.records[id] = r.Value
		}
		m.news = append(slices.DeleteFunc(m.news, func(old rules.Record) bool { return old.Kind == r.Kind && old.Key == r.Key }), r)
	}
	if m.changes++; m.changes%5 == 0 {
		if err := m.follow(); err != nil {
			return err
		}
	}
	return m.data.Apply(c.Records)
}

// makeRoom drops entries of the audit log that are too many.
func (m *memory) makeRoom(added []store.AuditEntry) error {
	limits := auditLimits
	held := map[store.PartnerID]int{}
	for _, e := range slices.Concat(m.log, added) {
		held[e.Holder()]++
	}
	var numbers []int
	for holder, n := range held {
		if holder != "" {
			numbers = append(numbers, n)
		}
	}
	quota := limits.Quota(numbers)
	left := slices.DeleteFunc(slices.Clone(m.log), func(e store.AuditEntry) bool {
		holder, most, age := e.Holder(), quota, limits.PartnerAge
		if holder == "" {
			most, age = limits.Operators, limits.OperatorAge
		}
		drop := held[holder] > most && m.now().Sub(e.At) >= age
		if drop {
			held[holder]--
		}
		return drop
	})
	for _, e := range added {
		if holder := e.Holder(); holder != "" && held[holder] > quota && e.MayBeRefused() {
			return store.ErrAuditFull
		}
	}
	m.log = left
	return nil
}

// Now implements Driver.
func (m *memory) Now(ctx context.Context) (time.Time, error) { return m.now(), ctx.Err() }

// Audit implements Driver.
func (m *memory) Audit(ctx context.Context, q store.AuditQuery) (entries []store.AuditEntry, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range slices.Backward(m.log) {
		if len(entries) < q.Limit && (q.Before == 0 || e.ID < q.Before) && !e.At.Before(q.Since) && (q.Partner == "" || e.Partner == q.Partner) {
			entries = append(entries, e)
		}
	}
	return entries, ctx.Err()
}

// others are the parts of store.Engine of which only some methods are called. Under their own names, they would hide methods.
type others interface {
	store.Events
	store.Feed
}

// memoryEngine is a store.Engine that counts events, and reads none.
type memoryEngine struct {
	*rules.Data
	others
	memory *memory
}

func (e memoryEngine) Record(_ context.Context, marks []store.Mark) error {
	for i := range marks {
		marks[i].Outcome = store.Recorded
		e.memory.events[marks[i].Merchant]++
	}
	return nil
}

func (e memoryEngine) Events(_ context.Context, q store.Query) (p store.Page, err error) {
	if !e.IsRemoved(q.Merchant) {
		p.Total = e.memory.events[q.Merchant]
		p.Events = make([]store.Event, p.Total)
	}
	return p, nil
}

func (memoryEngine) Resolve(context.Context, store.MerchantID, store.Identity) (store.MUID, error) {
	return "", nil
}

func (memoryEngine) Summary(context.Context, store.SummaryQuery) (s store.Summary, err error) {
	return s, nil
}

func (memoryEngine) Usage(_ context.Context, merchants []store.MerchantID) ([]store.Usage, error) {
	return make([]store.Usage, len(merchants)), nil
}

func (memoryEngine) Ready() error      { return nil }
func (memoryEngine) FreeSpace() uint64 { return 1 << 40 }
func (e memoryEngine) Close() error    { return e.Tidy(context.Background()) }

// Verify compares the records with each other, and what was stored with what is in memory.
func (e memoryEngine) Verify(_ context.Context, v store.Verification) (counts store.Verified, err error) {
	return counts, e.memory.verify(func(kind, key, problem string) {
		v.Found(store.Finding{Part: store.PartControl, Where: kind + " " + key, Problem: problem})
	})
}

// Another machine may learn at once that a partner has moved to another tracking domain, and that another partner has the
// former domain now.
func TestTrackingDomainsThatChangeHandsTogether(t *testing.T) {
	m := newMemory()
	d := m.open(t, time.Now).(memoryEngine)
	ctx := t.Context()
	enable := func(p store.Partner, domain string) {
		t.Helper()
		if _, err := d.EnablePreverified(ctx, p.ID, domain); err != nil {
			t.Fatal(err)
		}
	}
	var partners []store.Partner
	for i, name := range []string{"One", "Two"} {
		p, err := d.AddPartner(ctx, name)
		testenv.Check(t, err)
		enable(p, fmt.Sprintf("t%d.com", i))
		shop, err := d.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Shop"})
		testenv.Check(t, err)
		if _, _, err := d.GenerateTag(ctx, shop.ID, store.Preverified, ""); err != nil {
			t.Fatal(err)
		}
		partners = append(partners, p)
	}
	check := func() {
		t.Helper()
		testenv.Check(t, m.verify(func(kind, key, problem string) { t.Errorf("%s %s: %s", kind, key, problem) }))
	}
	check()
	m.changes = 0
	enable(partners[0], "t2.com")
	enable(partners[1], "t0.com")
	enable(partners[0], "t1.com") // so that the last version of its record comes last
	check()
	m.changes = 0
	enable(partners[1], "t2.com")
	if _, err := d.DeletePartner(ctx, partners[0].ID, true); err != nil {
		t.Fatal(err)
	}
	enable(partners[1], "t1.com")
	check()
}

// Documents of the other kinds are the engine's own.
// ReadDocuments implements Driver.
func (m *memory) ReadDocuments(_ context.Context, kind store.DocumentKind, of *store.MerchantID, id string) (docs []store.Document, err error) {
	for _, doc := range m.docs {
		if doc.Kind == kind && (of == nil || doc.Merchant == *of) && (id == "" || doc.ID == id || strings.HasSuffix(id, "/") && strings.HasPrefix(doc.ID, id)) {
			docs = append(docs, doc)
		}
	}
	return docs, nil
}

func (e memoryEngine) PutDocuments(_ context.Context, docs []store.Document) error {
	for _, doc := range docs {
		e.memory.docs = slices.DeleteFunc(e.memory.docs, func(old store.Document) bool { return store.CompareDocuments(old, doc) == 0 })
		if doc.Content != nil && (doc.Merchant == "" || e.HasMerchant(doc.Merchant)) {
			e.memory.docs = append(e.memory.docs, doc)
		}
	}
	return nil
}

// changing is a context in which something else happens whenever it is looked at.
type changing struct {
	context.Context
	change func()
}

func (c changing) Err() error {
	c.change()
	return c.Context.Err()
}

// filteredAtOnce is that of package rules.
const filteredAtOnce = 100

func TestAFilterOfMerchantsLetsOthersWrite(t *testing.T) {
	d := newMemory().open(t, time.Now).(memoryEngine)
	p, err := d.AddPartner(t.Context(), "Agency")
	testenv.Check(t, err)
	var ids []store.MerchantID
	for i := range 2*filteredAtOnce + 1 {
		m, err := d.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: fmt.Sprintf("Shop %d", i)})
		testenv.Check(t, err)
		ids = append(ids, m.ID)
	}
	looks := 0
	ctx := changing{t.Context(), func() {
		if looks++; looks != 3 { // after the ids were copied
			return
		}
		if _, err := d.DeleteMerchant(t.Context(), ids[0]); err != nil {
			t.Error(err)
		}
	}}
	page, total, err := d.Merchants(ctx, store.MerchantQuery{Partner: p.ID, Name: "SHOP", Offset: filteredAtOnce, Limit: filteredAtOnce})
	if err != nil || total != 2*filteredAtOnce || len(page) != filteredAtOnce ||
		page[0].ID != ids[filteredAtOnce+1] || page[len(page)-1].ID != ids[2*filteredAtOnce] {
		t.Errorf("%d merchants of %d, error %v; want those after the one that was deleted meanwhile", len(page), total, err)
	}
	if looks < 4 {
		t.Errorf("the lock was taken %d times, want one for the ids and one for each %d merchants", looks, filteredAtOnce)
	}
}
