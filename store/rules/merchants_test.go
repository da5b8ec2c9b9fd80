package rules

import (
	"context"
	"fmt"
	"testing"
	"time"

	"mtagd/store"
)

// changing is a context in which something else happens whenever it is looked at.
type changing struct {
	context.Context
	change func()
}

func (c changing) Err() error {
	c.change()
	return c.Context.Err()
}

func TestAFilterOfMerchantsLetsOthersWrite(t *testing.T) {
	d := newMemory().open(t, time.Now).(engine)
	p, err := d.AddPartner(t.Context(), "Agency")
	if err != nil {
		t.Fatal(err)
	}
	var ids []store.MerchantID
	for i := range 2*filteredAtOnce + 1 {
		m, err := d.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: fmt.Sprintf("Shop %d", i)})
		if err != nil {
			t.Fatal(err)
		}
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
