package control

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/rules"
	"mtagd/store/testenv"
)

// Each change that a damaged record could forbid fails: no second tag is made, no label, claim or tracking domain is given
// twice, and nothing is removed in part.
func TestDrillAChangeThatADamagedRecordCouldForbidFails(t *testing.T) {
	testenv.Drill(t)
	generate := func(k store.TagType, domain string) func(*Data, store.Merchant) error {
		return func(d *Data, m store.Merchant) error {
			_, _, err := d.GenerateTag(t.Context(), m.ID, k, domain)
			return err
		}
	}
	deleteMerchant := func(d *Data, m store.Merchant) error { _, err := d.DeleteMerchant(t.Context(), m.ID); return err }
	deletePartner := func(d *Data, m store.Merchant) error {
		_, err := d.DeletePartner(t.Context(), m.Partner, true)
		return err
	}
	enable := func(domain string) func(*Data, store.Merchant) error {
		return func(d *Data, m store.Merchant) error {
			_, err := d.EnablePreverified(t.Context(), m.Partner, domain)
			return err
		}
	}
	verify := func(d *Data, m store.Merchant) error { // a tag that has lost its claim takes it again
		tag, _ := m.Tag(store.ServerSide)
		_, err := d.UpdateTag(t.Context(), tag.ID, func(t store.Tag) store.Tag { t.Verified = true; return t })
		return err
	}
	for _, c := range []struct {
		what    string
		bucket  string
		change  func(*Data, store.Merchant) error // of the other partner's merchant
		prepare func(*Data, store.Merchant) error // before the damage
	}{
		{"a second tag", rules.Tags, generate(store.ClientSide, ""), nil},
		{"a second tag, when the claim is damaged", rules.Domains, generate(store.ServerSide, "another.com"), nil},
		{"a domain with a damaged claim", rules.Domains, generate(store.ServerSide, "own.com"), nil},
		{"a domain below which a damaged partner may track", rules.Partners, generate(store.ServerSide, "agency0.com"), nil},
		{"the claim again", rules.Domains, verify, func(d *Data, m store.Merchant) error {
			_, _, err := d.GenerateTag(t.Context(), m.ID, store.ServerSide, "lost.com")
			if err == nil {
				_, err = d.ReleaseDomain(t.Context(), "lost.com")
			}
			return err
		}},
		{"a tracking domain that a damaged partner may have", rules.Partners, enable("t.agency0.com"), nil},
		{"a tracking domain below a damaged claim", rules.Domains, enable("t.shop0-0.com"), nil},
		{"a merchant without its damaged tag", rules.Tags, deleteMerchant, nil},
		{"a merchant without its tag with a damaged claim", rules.Domains, deleteMerchant, nil},
		{"a partner without a damaged merchant", rules.Merchants, deletePartner, nil},
		{"a partner without a damaged tag", rules.Tags, deletePartner, nil},
		{"a partner without a damaged claim", rules.Domains, deletePartner, nil},
		{"a partner without a damaged key", rules.Keys, deletePartner, nil},
		{"a partner without a damaged reply", rules.Replies, deletePartner, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			d := openHere(t, dir)
			filled(t, d, 1)
			agency := firstPartner(t, d)
			shops, _, err := d.Merchants(t.Context(), store.MerchantQuery{Partner: agency, Limit: 1})
			testenv.Check(t, err)
			p, err := d.AddPartner(t.Context(), "Other")
			testenv.Check(t, err)
			added, err := d.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Other"})
			if err == nil && c.prepare != nil {
				err = c.prepare(d, added)
			}
			if err = errors.Join(err, d.Close()); err != nil {
				t.Fatal(err)
			}
			// It is the agency's, which nobody can know. The other buckets have no records but the agency's.
			damageRecord(t, dir, c.bucket, map[string]string{rules.Partners: string(agency), rules.Merchants: string(shops[0].ID)}[c.bucket])

			d = open(t, dir)
			m, err := d.Merchant(t.Context(), added.ID)
			testenv.Check(t, err)
			before := everything(t, d)
			if err := c.change(d, m); !errors.Is(err, codec.ErrCorrupt) {
				t.Errorf("the change gives %v, want codec.ErrCorrupt", err)
			}
			if got := everything(t, d); !reflect.DeepEqual(got, before) {
				t.Errorf("the change has changed %v\nto %v", before, got)
			}
			if _, err := d.UpdateMerchant(t.Context(), m.ID, func(m store.Merchant) store.Merchant { m.Name = "New"; return m }); err != nil {
				t.Errorf("another change: %v", err)
			}
		})
	}
}

// When the time of a key's last use is damaged, the replies that are too old are still deleted.
func TestTidyingBesideADamagedTimeOfUse(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	clock := func() time.Time { return now }
	d, err := Open(dir, clock, quiet)
	testenv.Check(t, err)
	filled(t, d, 1)
	keys, err := d.Keys(t.Context(), firstPartner(t, d))
	testenv.Check(t, err)
	d.Directory().SetLastUse(keys[0].ID, now)
	testenv.Check(t, errors.Join(d.Tidy(t.Context()), d.Close()))
	damageRecord(t, dir, rules.Uses, string(keys[0].ID))

	now = now.Add(2 * store.OnceWindow)
	if d, err = Open(dir, clock, quiet); err != nil {
		t.Fatal(err)
	}
	d.Directory().SetLastUse(keys[0].ID, now)
	if err := d.Tidy(t.Context()); err != nil || inBucket(t, d, rules.Replies) > 0 {
		t.Errorf("tidying gives %v, and leaves %d replies", err, inBucket(t, d, rules.Replies))
	}
	testenv.Check(t, d.Close())
}
