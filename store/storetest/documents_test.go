package storetest

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"mtagd/store"
	"mtagd/store/testenv"
)

// contents returns the documents as id → content.
func (b *bed) contents(kind store.DocumentKind, m store.MerchantID) map[string]string {
	b.t.Helper()
	var docs []store.Document
	var err error
	if kind == store.Destinations {
		docs, err = b.Destinations(b.t.Context(), m)
	} else {
		docs, err = b.Documents(b.t.Context(), kind, m, "")
	}
	testenv.Check(b.t, err)
	all := map[string]string{}
	for _, doc := range docs {
		if doc.Kind != kind || m != "" && doc.Merchant != m {
			b.t.Errorf("asked for %s of %s: %+v", kind, m, doc)
		}
		all[doc.ID] = string(doc.Content)
	}
	return all
}

func expectDocuments(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("documents %s are %v, want %v", what, got, want)
	}
}

func (b *bed) updateDocument(m store.Merchant, id, content string) error {
	return b.UpdateDestination(b.t.Context(), m.ID, id, func([]byte) ([]byte, store.AuditEntry, error) {
		if content == "" {
			return nil, store.AboutMerchant(store.DestinationDeleted, m, id), nil
		}
		return []byte(content), store.AboutMerchant(store.DestinationChanged, m, id), nil
	})
}

var documentTests = []test{
	{"documents are kept, and go with their merchant; each change of one is in the audit log", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		m, other := b.merchant(p, "Shop"), b.merchant(p, "Other")
		n := len(b.auditLog())
		for _, of := range []store.Merchant{m, other} {
			for _, id := range []string{"a", "b"} {
				testenv.Check(t, b.updateDocument(of, id, "1"+id))
			}
		}
		put := []store.Document{
			{Kind: store.DeliveryStates, Merchant: m.ID, ID: "a", Content: []byte("s")},
			{Kind: store.DeliveryStates, Merchant: other.ID, ID: "a", Content: []byte("o")},
			{Kind: store.DeliveryStates, ID: "own", Content: []byte("x")},
			{Kind: store.DeliveryStates, Merchant: "0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11", ID: "lost", Content: []byte("x")},
			{Kind: store.Deliveries, Merchant: m.ID, ID: "gone"},
			{Kind: store.DeadLetters, Merchant: m.ID, ID: "a_/1", Content: []byte("1")},
			{Kind: store.DeadLetters, Merchant: m.ID, ID: "a_/2", Content: []byte("2")},
			{Kind: store.DeadLetters, Merchant: m.ID, ID: "a_", Content: []byte("x")},
			{Kind: store.DeadLetters, Merchant: m.ID, ID: "aa/1", Content: []byte("x")},
			{Kind: store.DeadLetters, Merchant: other.ID, ID: "a_/3", Content: []byte("x")},
		}
		testenv.Check(t, b.PutDocuments(t.Context(), put))
		testenv.Check(t, b.updateDocument(m, "a", "2a"))
		testenv.Check(t, b.updateDocument(m, "b", ""))
		refused := errors.New("refused")
		if err := b.UpdateDestination(t.Context(), m.ID, "a", func(old []byte) ([]byte, store.AuditEntry, error) {
			if string(old) != "2a" {
				t.Errorf("the content is %q", old)
			}
			return nil, store.AuditEntry{}, refused
		}); !errors.Is(err, refused) {
			t.Errorf("got %v", err)
		}
		if err := b.updateDocument(store.Merchant{ID: "0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11"}, "a", "x"); store.KindOf(err) != store.KindNotFound {
			t.Errorf("of an unknown merchant: %v", err)
		}
		if got := len(b.auditLog()) - n; got != 6 {
			t.Errorf("%d entries in the audit log, want 6", got)
		}
		for range b.reopened {
			expectDocuments(t, "of m", b.contents(store.Destinations, m.ID), map[string]string{"a": "2a"})
			expectDocuments(t, "of other", b.contents(store.Destinations, other.ID), map[string]string{"a": "1a", "b": "1b"})
			if all, err := b.Documents(t.Context(), store.DeliveryStates, "", ""); err != nil || len(all) != 3 {
				t.Errorf("all states: %+v, %v", all, err)
			}
			if docs, err := b.Documents(t.Context(), store.DeadLetters, m.ID, "a_"); err != nil || len(docs) != 2 || docs[0].ID != "a_/1" || docs[1].ID != "a_/2" {
				t.Errorf("documents under an id: %+v, %v", docs, err)
			}
			changed, _, err := b.ChangedDestinations(t.Context(), 0)
			exist := slices.DeleteFunc(changed, func(d store.Document) bool { return d.Content == nil })
			if err != nil || len(exist) != 3 {
				t.Errorf("all destinations: %+v, %v", exist, err)
			}
			doc, err := b.Document(t.Context(), store.DeliveryStates, "", "own")
			if err != nil || string(doc.Content) != "x" {
				t.Errorf("the service's own: %+v, %v", doc, err)
			}
			if _, err := b.Document(t.Context(), store.Deliveries, m.ID, "gone"); store.KindOf(err) != store.KindNotFound {
				t.Errorf("one without content: %v", err)
			}
		}
		again := store.Document{Kind: store.Deliveries, Merchant: m.ID, ID: "twice", Content: []byte("1")}
		last, gone := again, again
		last.Content, gone.Content = []byte("2"), nil
		for _, of := range []struct {
			docs []store.Document
			want map[string]string
		}{{[]store.Document{again, last}, map[string]string{"twice": "2"}}, {[]store.Document{again, gone}, map[string]string{}}} { // the last one of a document counts
			testenv.Check(t, b.PutDocuments(t.Context(), of.docs))
			expectDocuments(t, "put twice", b.contents(store.Deliveries, m.ID), of.want)
		}
		if _, err := b.DeleteMerchant(t.Context(), other.ID); err != nil {
			t.Fatal(err)
		}
		expectDocuments(t, "of the deleted merchant", b.contents(store.Destinations, other.ID), map[string]string{})
		expectDocuments(t, "states of the deleted merchant", b.contents(store.DeliveryStates, other.ID), map[string]string{})
		expectDocuments(t, "of m", b.contents(store.Destinations, m.ID), map[string]string{"a": "2a"})
	}},
}
