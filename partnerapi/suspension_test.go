package partnerapi

import (
	"fmt"
	"strings"
	"testing"

	"mtagd/store"
)

func (p *partner) suspendPartner(on bool) {
	p.t.Helper()
	_, err := p.engine.UpdatePartner(p.t.Context(), p.ID, func(p store.Partner) store.Partner { p.Suspended = on; return p })
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *partner) suspendMerchant(id string, on bool) {
	p.t.Helper()
	_, err := p.engine.UpdateMerchant(p.t.Context(), store.MerchantID(id), func(m store.Merchant) store.Merchant { m.Suspended = on; return m })
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *partner) suspendTag(id string, on bool) {
	p.t.Helper()
	_, err := p.engine.UpdateTag(p.t.Context(), store.TagID(id), func(t store.Tag) store.Tag { t.Suspended = on; return t })
	if err != nil {
		p.t.Fatal(err)
	}
}

// serverSide returns a merchant with a server-side tag, and the body that verifies the tag.
func (p *partner) serverSide() (merchant, tag, verifyBody string) {
	p.t.Helper()
	merchant = p.merchant("Shop")
	made := p.generate(merchant, "server-side", "shop.com")
	host := made.str("record.name") + ".shop.com"
	return merchant, made.str("tagId"), fmt.Sprintf(`{"merchantId":%q,"subdomain":%q}`, merchant, host)
}

func TestASuspendedPartnerCanReadButNotChange(t *testing.T) {
	s := newService(t)
	s.finds(store.DNSCorrect)
	p := s.partner("Agency")
	merchant, tag, verifyBody := p.serverSide()
	neighbour := s.partner("Other")

	p.suspendPartner(true)
	const message = denied + ": your access is suspended: you can read, but not change anything"
	for _, change := range [][2]string{
		{merchants, `{"name":"Late"}`}, {generate, fmt.Sprintf(`{"merchantId":%q,"type":"client-side"}`, merchant)},
		{tracktag, "not JSON"}, {verify, verifyBody},
	} {
		p.post(change[0], change[1]).fails(403, "FORBIDDEN", message)
	}
	for _, read := range []string{merchants, merchants + "/" + merchant, tracktag + "/" + tag, config, events + "?merchantId=" + merchant} {
		p.get(read).is(200)
	}
	p.postf(erasures, `{"merchantId":%q,"muid":"ann"}`, merchant).is(202).has("attempts", 0).has("lastError", nil)
	if _, body, err := newStreamClient(t, s).read(p, "POST", personalData, fmt.Sprintf(`{"merchantId":%q,"muid":"ann"}`, merchant), ""); err != nil ||
		!strings.Contains(string(body), `"type":"end"`) {
		t.Errorf("a suspended partner gets %s, %v", body, err)
	}
	p.get(tracktag+"/"+tag).has("suspended", true).has("isVerified", false)
	p.get(merchants+"/"+merchant).has("suspended", true)
	p.get(merchants).has("merchants.0.suspended", true).has("pagination.totalItems", 1)
	neighbour.post(merchants, `{"name":"Shop"}`).is(201)

	p.suspendPartner(false)
	p.post(verify, verifyBody).is(200)
	p.get(tracktag+"/"+tag).has("suspended", nil)
	p.get(merchants+"/"+merchant).has("suspended", nil)
}

func TestASuspendedMerchantGetsNoTagsAndNoVerify(t *testing.T) {
	s := newService(t)
	s.finds(store.DNSCorrect)
	p := s.partner("Agency")
	merchant, tag, verifyBody := p.serverSide()

	p.suspendMerchant(merchant, true)
	for _, kind := range []string{"client-side", "server-side"} { // a new tag and an existing one
		p.postf(generate, `{"merchantId":%q,"type":%q,"domain":"shop.com"}`, merchant, kind).fails(403, "FORBIDDEN", denied+": the merchant is suspended")
	}
	p.post(verify, verifyBody).fails(403, "FORBIDDEN", denied+": the tag or its merchant is suspended")
	p.get(tracktag+"/"+tag).is(200).has("suspended", true).has("isVerified", false)
	p.get(merchants+"/"+merchant).is(200).has("suspended", true)
	p.get(events + "?merchantId=" + merchant).is(200)
	p.post(merchants, `{"name":"Another"}`).is(201).has("suspended", nil)

	p.suspendMerchant(merchant, false)
	p.post(verify, verifyBody).is(200)
}

func TestASuspendedTagGetsNoVerify(t *testing.T) {
	s := newService(t)
	s.finds(store.DNSCorrect)
	p := s.partner("Agency")
	merchant, tag, verifyBody := p.serverSide()
	p.suspendTag(tag, true)
	p.post(verify, verifyBody).fails(403, "FORBIDDEN", denied+": the tag or its merchant is suspended")
	p.get(tracktag+"/"+tag).is(200).has("suspended", true)
	p.get(merchants+"/"+merchant).is(200).has("suspended", nil)
	p.generate(merchant, "client-side", "")
}

func TestSuspensionOfOthersIsNotShown(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	merchant, _, verifyBody := p.serverSide()
	p.suspendMerchant(merchant, true)
	other.postf(generate, `{"merchantId":%q,"type":"client-side"}`, merchant).fails(403, "FORBIDDEN", denied)
	other.post(verify, verifyBody).fails(403, "FORBIDDEN", denied)
}

// Each change is in the audit log with the key that made it.
func TestChangesAreAuditedWithTheirKey(t *testing.T) {
	s := newService(t)
	s.finds(store.DNSCorrect)
	p := s.partner("Agency")
	_, _, verifyBody := p.serverSide()
	p.post(verify, verifyBody).is(200)
	id, err := store.APIKey(p.key).ID()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := s.engine.Audit(t.Context(), store.AuditQuery{Limit: 3})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []store.AuditAction{store.TagVerified, store.TagGenerated, store.MerchantCreated} {
		if got := entries[i]; got.Action != want || got.Actor.Kind != store.ByKey || got.Actor.Name != string(id) {
			t.Errorf("entry %d: %+v, want %s by key %s", i, got, want, id)
		}
	}
}
