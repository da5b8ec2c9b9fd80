package partnerapi

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

const unauthenticated = `{"message":"Authentication required","code":"AUTHENTICATION_ERROR","statusCode":401}`

func (a answer) unauthenticated() {
	a.t.Helper()
	if a.is(401).body != unauthenticated {
		a.t.Errorf("got  %s\nwant %s", a.body, unauthenticated)
	}
	if got := string(a.header.Peek("WWW-Authenticate")); got != "Bearer" {
		a.t.Errorf("WWW-Authenticate %q, want Bearer", got)
	}
}

// withChecksum appends the checksum to the prefix, id and secret of an API key.
func withChecksum(s string) string {
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(strings.TrimPrefix(s, "mtp_"))))
	return s + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum))
}

func TestEveryBadKeyHasTheSameAnswer(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")

	if withChecksum(p.key[:len(p.key)-7]) != p.key {
		t.Fatal("withChecksum is not the checksum of API keys")
	}
	const secret = len("mtp_") + 12 // where the secret begins
	forged := withChecksum(p.key[:secret] + strings.Repeat("a", 32))
	mistyped := []byte(p.key)
	mistyped[20] = 'a' + (mistyped[20]-'a'+1)%26

	revoked, revokedKey, err := s.engine.IssueKey(t.Context(), p.ID, store.KeyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.engine.RevokeKey(t.Context(), revoked.ID, true); err != nil {
		t.Fatal(err)
	}
	_, expiredKey, err := s.engine.IssueKey(t.Context(), p.ID, store.KeyOptions{ExpiresIn: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s.request("GET", config, "", "Authorization", "Bearer "+string(expiredKey)).is(200)
	s.advance(time.Hour)

	for _, c := range []struct {
		is      string
		headers []string
	}{
		{"no header", nil},
		{"an empty header", []string{"Authorization", ""}},
		{"the scheme alone", []string{"Authorization", "Bearer"}},
		{"the scheme and a space", []string{"Authorization", "Bearer "}},
		{"the key alone", []string{"Authorization", p.key}},
		{"another scheme", []string{"Authorization", "Basic " + p.key}},
		{"no space", []string{"Authorization", "Bearer" + p.key}},
		{"two spaces", []string{"Authorization", "Bearer  " + p.key}},
		{"a tab for the space", []string{"Authorization", "Bearer\t" + p.key}},
		{"a longer scheme", []string{"Authorization", "Bearers " + p.key}},
		{"something after the key", []string{"Authorization", "Bearer " + p.key + " x"}},
		{"two headers", []string{"Authorization", "Bearer " + p.key, "Authorization", "Bearer " + p.key}},
		{"the key in another header", []string{"X-Api-Key", p.key}},
		{"a key that was never issued", []string{"Authorization", "Bearer " + withChecksum("mtp_"+strings.Repeat("a", 44))}},
		{"a typing error", []string{"Authorization", "Bearer " + string(mistyped)}},
		{"the key in upper case", []string{"Authorization", "Bearer " + strings.ToUpper(p.key)}},
		{"a wrong secret under a right checksum", []string{"Authorization", "Bearer " + forged}},
		{"a revoked key", []string{"Authorization", "Bearer " + string(revokedKey)}},
		{"an expired key", []string{"Authorization", "Bearer " + string(expiredKey)}},
		{"a very long key", []string{"Authorization", "Bearer " + strings.Repeat("a", 4000)}},
		{"bytes that are not text", []string{"Authorization", "Bearer \xff\xfe\x01"}},
	} {
		t.Run(c.is, func(t *testing.T) {
			a := s.request("GET", config, "", c.headers...).in(t)
			a.unauthenticated()
		})
	}
}

func TestTheSchemeIsInAnyCase(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	for _, scheme := range []string{"Bearer ", "bearer ", "BEARER ", "bEaReR "} {
		s.request("GET", config, "", "Authorization", scheme+p.key).is(200).has("partnerId", string(p.ID))
	}
}

func TestEveryRouteAsksForAKey(t *testing.T) {
	s := newService(t)
	for _, route := range [][2]string{
		{"GET", merchants}, {"POST", merchants}, {"GET", merchants + "/" + nobody}, {"GET", merchants + "/bad"},
		{"POST", generate}, {"POST", tracktag}, {"POST", verify}, {"GET", tracktag + "/cs_x"},
		{"GET", events}, {"GET", config},
	} {
		s.request(route[0], route[1], "{}").unauthenticated()
	}
}

func TestRevocationTakesEffectOnTheNextRequest(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	p.get(config).is(200)
	keys, err := s.engine.Keys(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.engine.RevokeKey(t.Context(), keys[0].ID, true); err != nil {
		t.Fatal(err)
	}
	p.get(config).unauthenticated()
}

// elsewhere is an engine in which something happens at another node after a request was let in, and before it is answered.
type elsewhere struct {
	store.Engine
	happens func()
}

func (e elsewhere) AddMerchant(ctx context.Context, p store.PartnerID, m store.NewMerchant) (store.Merchant, error) {
	e.happens()
	return e.Engine.AddMerchant(ctx, p, m)
}

func (e elsewhere) Events(ctx context.Context, q store.Query) (store.Page, error) {
	page, err := e.Engine.Events(ctx, q)
	e.happens()
	return page, err
}

func TestAKeyThatIsRevokedDuringARequestIsWorthNothing(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	shop := p.merchant("Shop")
	p.generate(shop, "client-side", "")
	for _, c := range []struct {
		change      bool
		happens     func()
		status      int
		code, error string
	}{
		{true, func() { p.suspendPartner(true) }, 403, "FORBIDDEN", denied + ": your access is suspended: you can read, but not change anything"},
		{true, func() { s.revokeAll(p) }, 401, "AUTHENTICATION_ERROR", notAuthenticated},
		{false, func() { s.revokeAll(p) }, 401, "AUTHENTICATION_ERROR", notAuthenticated},
	} {
		_, key, err := s.engine.IssueKey(t.Context(), p.ID, store.KeyOptions{})
		testenv.Check(t, err)
		p.key = string(key)
		s.serve(elsewhere{s.engine, c.happens}, &s.dns)
		if c.change {
			p.post(merchants, `{"name":"Late"}`).fails(c.status, c.code, c.error)
		} else {
			p.get(events+"?merchantId="+shop).fails(c.status, c.code, c.error)
		}
		p.suspendPartner(false)
	}
	if _, n, err := s.engine.Merchants(t.Context(), store.MerchantQuery{Partner: p.ID, Limit: 10}); err != nil || n != 1 {
		t.Errorf("there are %d merchants, want 1: %v", n, err)
	}
}

func (s *service) revokeAll(p *partner) {
	s.t.Helper()
	keys, err := s.engine.Keys(s.t.Context(), p.ID)
	testenv.Check(s.t, err)
	for _, k := range keys {
		if _, err := s.engine.RevokeKey(s.t.Context(), k.ID, true); err != nil {
			s.t.Fatal(err)
		}
	}
}
