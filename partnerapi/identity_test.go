package partnerapi

import (
	"strings"
	"testing"
	"time"

	"mtagd/store"
)

func (p *partner) patch(uri, body string) answer {
	p.t.Helper()
	return p.request("PATCH", uri, body, "Authorization", "Bearer "+p.key)
}

func (p *partner) delete(uri string) answer {
	p.t.Helper()
	return p.request("DELETE", uri, "", "Authorization", "Bearer "+p.key)
}

func TestAMerchantMayRequireASecret(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	tag, ok := s.engine.Directory().Tag(store.TagID(p.generate(id, "client-side", "").str("tagId")))
	if !ok {
		t.Fatal("no tag")
	}
	uri := merchants + "/" + id

	for _, c := range []struct {
		is, body string
		want     any
	}{
		{"switched on", `{"identityRequiresSecret":true}`, true},
		{"without a field nothing changes", `{}`, true},
		{"null is absent", `{"identityRequiresSecret":null}`, true},
		{"switched off", `{"identityRequiresSecret":false}`, nil},
	} {
		p.patch(uri, c.body).in(t).is(200).has("merchantId", id).has("name", "Shop").
			has("tracktags.client-side.tagId", string(tag.ID)).has("identityRequiresSecret", c.want)
		p.get(uri).is(200).has("identityRequiresSecret", c.want)
		p.get(merchants).is(200).has("merchants.0.identityRequiresSecret", c.want)
		if got := s.engine.Directory().Settings(&tag).IdentityRequiresSecret; got != (c.want == true) {
			t.Errorf("%s: the tag host requires a secret: %v", c.is, got)
		}
	}

	const field, wrongType = "identityRequiresSecret", "must be true or false"
	for _, c := range []struct{ body, field, why string }{
		{`{"identityRequiresSecret":"true"}`, field, wrongType},
		{`{"identityRequiresSecret":1}`, field, wrongType},
		{`{"identityRequiresSecret":[true]}`, field, wrongType},
		{`{"identityRequiresSecret":true,"identityrequiressecret":true}`, "identityrequiressecret", "is not a field that this request can change"},
		{`{"createdAt":"2026-11-20T08:30:00Z"}`, "createdAt", "is not a field that this request can change"},
		{`{"identityRequiresSecret":true,"identityRequiresSecret":true}`, "body", "must be valid JSON in UTF-8, without repeated names"},
		{`[]`, "body", "must be a JSON object"},
		{``, "body", "must be a JSON object"},
	} {
		p.patch(uri, c.body).in(t).invalid(c.field, c.why)
	}
	p.get(uri).has("identityRequiresSecret", nil)
}

func TestASecretIsShownOnceAndReplacedWithoutAGap(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	uri := merchants + "/" + id
	works := func(text string) bool {
		return s.engine.Directory().HasSecret(store.MerchantID(id), store.SecretText(text))
	}

	first := p.post(uri+"/secret", "").is(201).keys("", "secretId", "secret", "createdAt").has("createdAt", "2026-11-20T08:30:00Z")
	s.advance(time.Hour)
	second := p.post(uri+"/secret", "{}").is(201)
	if !works(first.str("secret")) || !works(second.str("secret")) {
		t.Error("a new secret does not work, or it ends the one before")
	}
	p.post(uri+"/secret", "").fails(403, "FORBIDDEN", denied+": secret cannot be created: the merchant has 2 secrets, which is the limit. Delete one first")
	shown := p.get(uri).is(200).keys("secrets.0", "secretId", "createdAt").has("secrets.0.secretId", first.str("secretId")).
		has("secrets.1.secretId", second.str("secretId")).has("secrets.1.createdAt", "2026-11-20T09:30:00Z")
	if strings.Contains(shown.body, first.str("secret")[16:48]) || strings.Contains(shown.body, "mts_") {
		t.Errorf("a secret is shown again: %s", shown.body)
	}

	p.delete(uri+"/secret/"+first.str("secretId")).is(200).has("secrets.0.secretId", second.str("secretId")).has("secrets.1", nil)
	if works(first.str("secret")) || !works(second.str("secret")) {
		t.Error("a deleted secret works, or the other one does not")
	}
	p.delete(uri+"/secret/"+first.str("secretId")).fails(404, "NOT_FOUND", missing)
	p.post(uri+"/secret", "").is(201)
	for _, c := range []string{"secrets.0.secretId", "secrets.0.secretId"} {
		p.delete(uri + "/secret/" + p.get(uri).str(c)).is(200)
	}
	p.get(uri).has("secrets", nil)
	if strings.Contains(s.log.String(), "mts_") {
		t.Error("a secret is in the log")
	}
}

func TestAnotherPartnersMerchantHasNoSecretsForYou(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	uri := merchants + "/" + p.merchant("Shop")
	secret := p.post(uri+"/secret", "").is(201).str("secretId")
	mine := merchants + "/" + other.merchant("Mine")

	for _, of := range []string{uri, merchants + "/" + nobody} {
		other.patch(of, `{"identityRequiresSecret":true}`).fails(404, "NOT_FOUND", missing)
		other.post(of+"/secret", "").fails(404, "NOT_FOUND", missing)
		other.delete(of+"/secret/"+secret).fails(404, "NOT_FOUND", missing)
	}
	other.delete(mine+"/secret/"+secret).fails(404, "NOT_FOUND", missing)
	other.patch(merchants+"/x", `{}`).invalid("merchantId", "must be a UUID v4")
	other.post(merchants+"/x/secret", "").invalid("merchantId", "must be a UUID v4")
	other.delete(merchants+"/x/secret/y").invalid("merchantId", "must be a UUID v4")
	p.get(uri).has("secrets.0.secretId", secret).has("identityRequiresSecret", nil)

	// A leaked secret can be deleted while the merchant is suspended, not while the partner is.
	p.suspendMerchant(strings.TrimPrefix(uri, merchants+"/"), true)
	p.suspendPartner(true)
	p.delete(uri + "/secret/" + secret).is(403)
	p.suspendPartner(false)
	p.delete(uri + "/secret/" + secret).is(200)
}
