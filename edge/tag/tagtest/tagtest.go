// Package tagtest provides an engine with a tag of each type, for the tests of the tag protocol and of the front door.
package tagtest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"mtagd/store"
	"mtagd/store/local"
)

// TrackingHost is the tracking domain of the partner.
const TrackingHost = "t.partner-domain.com"

// ErrOnPurpose is an error for tests to inject.
var ErrOnPurpose = errors.New("on purpose")

// Shop is a merchant with a tag of each type, in an engine on disk.
type Shop struct {
	Engine   store.Engine
	Merchant store.MerchantID

	Client, ServerSide, Preverified store.Tag
	Inactive                        store.Tag // another merchant's server-side tag, not verified
}

// Open makes a shop. The caller closes its engine.
func Open(t *testing.T) *Shop {
	t.Helper()
	engine, err := local.Open(t.TempDir(), local.Options{Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	ctx := context.Background()
	p, err := engine.AddPartner(ctx, "Partner")
	must(t, err)
	_, err = engine.EnablePreverified(ctx, p.ID, TrackingHost)
	must(t, err)
	m, err := engine.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Shop"})
	must(t, err)
	other, err := engine.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Other shop"})
	must(t, err)
	generate := func(id store.MerchantID, typ store.TagType, domain string) store.Tag {
		tag, _, err := engine.GenerateTag(ctx, id, typ, domain)
		must(t, err)
		return tag
	}
	s := &Shop{
		Engine:      engine,
		Merchant:    m.ID,
		Client:      generate(m.ID, store.ClientSide, ""),
		ServerSide:  generate(m.ID, store.ServerSide, "shop-one.com"),
		Preverified: generate(m.ID, store.Preverified, ""),
		Inactive:    generate(other.ID, store.ServerSide, "shop-two.com"),
	}
	s.ServerSide, err = engine.UpdateTag(ctx, s.ServerSide.ID, func(t store.Tag) store.Tag {
		return t.AfterVerify(store.DNSFinding{Verdict: store.DNSCorrect})
	})
	must(t, err)
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Events lists the merchant's events, oldest first.
func (s *Shop) Events(t *testing.T) []store.Event {
	t.Helper()
	q := store.Query{Merchant: s.Merchant, SortBy: store.ByTime, Asc: true, Limit: 2000}
	page, err := s.Engine.Events(context.Background(), q)
	must(t, err)
	return page.Events
}

// Faulty is an engine with injected faults.
type Faulty struct {
	store.Engine
	NotReady error                    // what Ready returns
	OnRecord func([]store.Mark) error // nil: the engine records
}

func (f *Faulty) Ready() error { return f.NotReady }

func (f *Faulty) Record(ctx context.Context, marks []store.Mark) error {
	if f.OnRecord != nil {
		return f.OnRecord(marks)
	}
	return f.Engine.Record(ctx, marks)
}

// Reply is a response, read to its end.
type Reply struct {
	Status int
	Header http.Header
	Body   string
	Closes bool // the server announced that it closes the connection
}

// Want fails the test unless the reply has the status and the body contains part.
func (r Reply) Want(t *testing.T, status int, part string) {
	t.Helper()
	if r.Status != status || !strings.Contains(r.Body, part) {
		t.Errorf("got %d %s\nwant %d with %s", r.Status, r.Body, status, part)
	}
}
