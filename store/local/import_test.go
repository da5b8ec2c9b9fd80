package local

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
	"mtagd/store/migrate"
	"mtagd/store/rules"
	"mtagd/store/testenv"
)

// Positions have gaps, and may be far ahead of this machine's clock. New events come after them.
func TestEventsAfterAnImport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	partner := store.Partner{ID: store.PartnerID(uuid.NewString()), Name: "Acme", CreatedAt: time.Now().UTC()}
	merchant := store.Merchant{ID: store.MerchantID(uuid.NewString()), Partner: partner.ID, Name: "Shop", CreatedAt: partner.CreatedAt}
	key, err := store.NewMerchantKey(merchant.ID)
	testenv.Check(t, err)
	last := uint64(time.Now().Add(time.Hour).UnixMicro())
	events := []migrate.Event{
		{Merchant: key, At: store.Position{Seq: last - 5, Index: 3}, Time: 1, Tag: "cs_1", Name: "View", MUID: []byte("m"), Raw: []byte("{}")},
		{Merchant: key, At: store.Position{Seq: last - 5, Index: 700}, Time: 2, Tag: "cs_1", Name: "View", MUID: []byte("m"), Raw: []byte("{}")},
	}
	record := func(kind, key string, v any) rules.Record {
		value, err := json.Marshal(v)
		testenv.Check(t, err)
		return rules.Record{Kind: kind, Key: key, Value: value}
	}
	control := &migrate.Control{Records: []rules.Record{
		record(rules.Merchants, string(merchant.ID), struct {
			store.Merchant
			Ordinal int `json:"ordinal"`
		}{merchant, 1}),
		record(rules.Partners, string(partner.ID), partner),
	}}
	killed := errors.New("killed")
	for _, want := range []error{killed, nil} { // the second one begins again
		err := Import(dir, "here", quiet, func(dst migrate.Target) error {
			return errors.Join(dst.Add(t.Context(), migrate.Portion{Events: events}), dst.SetControl(t.Context(), control), dst.Index(t.Context(), last), want)
		}, func() error { return nil })
		if !errors.Is(err, want) {
			t.Fatal(err)
		}
		if want == nil {
			break
		}
		if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), `"mtagd migrate" into this directory has not finished`) {
			t.Errorf("a directory without everything opens: %v", err)
		}
	}
	e, err := Open(dir, Options{Log: quiet})
	testenv.Check(t, err)
	defer e.Close()
	mark := store.Mark{Merchant: merchant.ID, Tag: "cs_1", Name: "View", Identity: store.Identity{MUID: "m"}, Time: time.Now(), Raw: []byte("{}")}
	testenv.Check(t, e.Record(t.Context(), []store.Mark{mark}))
	page, err := e.Events(t.Context(), store.Query{Merchant: merchant.ID, Limit: 10})
	if err != nil || page.Total != 3 || len(page.Events) != 3 {
		t.Errorf("%d events of %d are listed, %v; want 3", len(page.Events), page.Total, err)
	}
	n := 0
	after := store.FeedQuery{Merchants: []store.MerchantID{merchant.ID}, After: store.EndOf(last).Cursor()}
	if _, err := e.Feed(t.Context(), after, func(*store.Received) bool { n++; return true }); err != nil || n != 1 {
		t.Errorf("after the last imported event a feed has %d events, %v; want 1", n, err)
	}
}

// A directory is filled beside its place. Nothing that is there already belongs to the command.
func TestFillingADirectoryTouchesNoOther(t *testing.T) {
	root := t.TempDir()
	other := filepath.Join(root, "data.new", "control.db")
	testenv.Check(t, errors.Join(os.MkdirAll(filepath.Dir(other), 0o700), os.WriteFile(other, nil, 0o600)))
	testenv.Check(t, fill(filepath.Join(root, "data"), "mtagd restore", func() error { return nil }))
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}
