package postgres

import (
	"log/slog"
	"reflect"
	"testing"

	"github.com/google/uuid"

	"mtagd/store"
	"mtagd/store/migrate"
	"mtagd/store/pgtest"
	"mtagd/store/testenv"
)

func TestDocumentsMove(t *testing.T) {
	d, err := OpenDatabase(t.Context(), pgtest.Database(t), slog.New(slog.DiscardHandler))
	testenv.Check(t, err)
	defer d.Close()
	want := []store.Document{
		{Kind: store.DeadLetters, Merchant: store.MerchantID(uuid.NewString()), ID: "a/1", Content: []byte("y")},
		{Kind: store.DeliveryStates, ID: "own", Content: []byte("x")},
	}
	for range 2 { // the second time replaces the first
		testenv.Check(t, d.SetControl(t.Context(), &migrate.Control{Documents: want}))
		if got, err := d.Control(t.Context()); err != nil || !reflect.DeepEqual(got.Documents, want) {
			t.Errorf("%v, %v, want %v", got.Documents, err, want)
		}
	}
}
