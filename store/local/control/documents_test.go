package control

import (
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

func TestDocumentsMoveAndAreRepaired(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	open := func(dir string) *Data {
		d, err := Open(dir, time.Now, log)
		testenv.Check(t, err)
		t.Cleanup(func() { _ = d.Close() })
		return d
	}
	from := open(dir)
	p, err := from.AddPartner(t.Context(), "Acme")
	testenv.Check(t, err)
	m, err := from.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
	testenv.Check(t, err)
	if err := from.UpdateDestination(t.Context(), m.ID, "a", func([]byte) ([]byte, store.AuditEntry, error) {
		return []byte("{}"), store.AboutMerchant(store.DestinationChanged, m, "a"), nil
	}); err != nil {
		t.Fatal(err)
	}
	kept := []store.Document{
		{Kind: store.DeliveryStates, ID: "own", Content: []byte("x")},
		{Kind: store.DeadLetters, Merchant: m.ID, ID: "a/1", Content: []byte("y")},
	}
	if err := from.PutDocuments(t.Context(), append(kept, store.Document{Kind: store.Deliveries, Merchant: m.ID, ID: "a/2", Content: []byte("z")})); err != nil {
		t.Fatal(err)
	}
	want, err := keptIn(t, from)
	if err != nil || len(want) != len(kept) {
		t.Fatalf("%v, %v", want, err)
	}
	expect := func(what string, d *Data) {
		t.Helper()
		if got, err := keptIn(t, d); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
		if got, err := d.Destination(t.Context(), m.ID, "a"); err != nil || string(got.Content) != "{}" {
			t.Errorf("%s: the destination is %+v, %v", what, got, err)
		}
	}
	records, err := from.Export()
	testenv.Check(t, err)
	to := open(t.TempDir())
	testenv.Check(t, to.Import(records, want))
	expect("moved", to)
	testenv.Check(t, from.Close())
	damaged, err := OpenReadOnly(dir)
	testenv.Check(t, err)
	repaired := t.TempDir()
	testenv.Check(t, damaged.Repair(repaired, func(where, problem string) { t.Errorf("%s: %s", where, problem) }))
	testenv.Check(t, damaged.Close())
	expect("repaired", open(repaired))
}

// withDestination makes control data of a merchant with a destination, its state and a dead letter, and closes it.
func withDestination(t *testing.T) (dir string, m store.Merchant) {
	t.Helper()
	dir = t.TempDir()
	d := openHere(t, dir)
	p, err := d.AddPartner(t.Context(), "Acme")
	testenv.Check(t, err)
	if m, err = d.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"}); err != nil {
		t.Fatal(err)
	}
	if err := d.UpdateDestination(t.Context(), m.ID, "a", func([]byte) ([]byte, store.AuditEntry, error) {
		return []byte(`{"url":"https://shop.example/events"}`), store.AboutMerchant(store.DestinationChanged, m, "a"), nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := d.PutDocuments(t.Context(), []store.Document{
		{Kind: store.DeliveryStates, Merchant: m.ID, ID: "a", Content: []byte(`{"cursor":"cur_0"}`)},
		{Kind: store.DeadLetters, Merchant: m.ID, ID: "a/1", Content: []byte(`{"events":1}`)},
	}); err != nil {
		t.Fatal(err)
	}
	testenv.Check(t, d.Close())
	return dir, m
}

// What belongs to a merchant whose record is damaged goes with it in a repair.
func TestDestinationsOfADamagedMerchant(t *testing.T) {
	dir, m := withDestination(t)
	damageRecord(t, dir, "merchants", string(m.ID))
	damaged, err := OpenReadOnly(dir)
	testenv.Check(t, err)
	to := t.TempDir()
	testenv.Check(t, damaged.Repair(to, func(string, string) {}))
	testenv.Check(t, damaged.Close())
	d := open(t, to)
	all, err := d.Destinations(t.Context(), "")
	docs, docsErr := keptIn(t, d)
	if err != nil || docsErr != nil || len(all)+len(docs) > 0 {
		t.Errorf("after a repair: %+v, %+v, %v, %v", all, docs, err, docsErr)
	}
}

// The file of a version that has only added buckets at its last start gets further ones, and opens again.
func TestBucketsAreAddedTwice(t *testing.T) {
	all := buckets
	defer func() { buckets = all }()
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(b string) bool { return slices.Contains(names, b) })
	}
	dir := t.TempDir()
	for i, of := range [][]string{without("destinations", inDocuments, "expiries"), without("destinations", inDocuments), all, all} {
		buckets = of
		d, err := Open(dir, time.Now, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		if i == 0 {
			if _, err := d.AddPartner(t.Context(), "Acme"); err != nil {
				t.Fatal(err)
			}
		}
		if i > 1 { // in a bucket that was added, also to the copy
			testenv.Check(t, d.PutDocuments(t.Context(), []store.Document{{Kind: store.DeliveryStates, ID: "own", Content: []byte("1")}}))
		}
		testenv.Check(t, d.Close())
	}
}

// keptIn returns the documents that a move copies.
func keptIn(t *testing.T, d *Data) ([]store.Document, error) {
	return store.KeptDocuments(func(kind store.DocumentKind) ([]store.Document, error) { return d.Documents(t.Context(), kind, "", "") })
}
