package control

import (
	"log/slog"
	"reflect"
	"testing"
	"time"

	"mtagd/store"
)

func TestDocumentsMoveAndAreSalvaged(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	open := func(dir string) *Data {
		d, err := Open(dir, time.Now, log)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		return d
	}
	from := open(dir)
	p, err := from.AddPartner(t.Context(), "Acme")
	if err != nil {
		t.Fatal(err)
	}
	m, err := from.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
	if err != nil {
		t.Fatal(err)
	}
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
	want, err := from.ExportDocuments(t.Context())
	if err != nil || len(want) != len(kept) {
		t.Fatalf("%v, %v", want, err)
	}
	expect := func(what string, d *Data) {
		t.Helper()
		if got, err := d.ExportDocuments(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
		if got, err := d.Destination(t.Context(), m.ID, "a"); err != nil || string(got.Content) != "{}" {
			t.Errorf("%s: the destination is %+v, %v", what, got, err)
		}
	}
	records, err := from.Export()
	if err != nil {
		t.Fatal(err)
	}
	to := open(t.TempDir())
	if err := to.Import(records, want); err != nil {
		t.Fatal(err)
	}
	expect("moved", to)
	if err := from.Close(); err != nil {
		t.Fatal(err)
	}
	damaged, err := OpenReadOnly(dir)
	if err != nil {
		t.Fatal(err)
	}
	salvaged := t.TempDir()
	if err := damaged.Salvage(salvaged, func(where, problem string) { t.Errorf("%s: %s", where, problem) }); err != nil {
		t.Fatal(err)
	}
	if err := damaged.Close(); err != nil {
		t.Fatal(err)
	}
	expect("salvaged", open(salvaged))
}
