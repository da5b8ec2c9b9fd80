package postgres

import (
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
	"mtagd/store/move"
	"mtagd/store/postgres/pgtest"
)

func TestDocumentsMove(t *testing.T) {
	d, err := OpenDatabase(t.Context(), pgtest.Database(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p := store.Partner{ID: store.PartnerID(uuid.NewString()), Name: "Acme", CreatedAt: time.Now().UTC()}
	m := store.MerchantID(uuid.NewString())
	want := []store.Document{
		{Kind: store.Destinations, Merchant: m, ID: "a", Content: []byte("{}")},
		{Kind: store.DeadLetters, Merchant: m, ID: "a/1", Content: []byte("y")},
		{Kind: store.DeliveryStates, ID: "own", Content: []byte("x")},
	}
	control := &move.Control{Retention: store.Forever, Partners: []store.Partner{p}, Documents: want,
		Merchants: []move.Merchant{{Merchant: store.Merchant{ID: m, Partner: p.ID, Name: "Shop", CreatedAt: p.CreatedAt}, Ordinal: 1}}}
	for range 2 { // the second time replaces the first
		if err := d.SetControl(t.Context(), control); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Control(t.Context()); err != nil || !reflect.DeepEqual(got.Documents, want) {
			t.Errorf("%v, %v, want %v", got.Documents, err, want)
		}
	}
}
