package store

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRootDomains(t *testing.T) {
	for domain, want := range map[string]string{
		"example.com":                    "example.com",
		"EXAMPLE.Com":                    "example.com",
		"example.co.uk":                  "example.co.uk",
		"my-shop.io":                     "my-shop.io",
		"shop.test":                      "shop.test",
		"":                               "",
		"shop.example.com":               "",
		"shop.example.co.uk":             "",
		"www.example.com":                "",
		"https://example.com":            "",
		"example.com/path":               "",
		"example.com.":                   "",
		"example":                        "",
		"co.uk":                          "",
		"example..com":                   "",
		"-example.com":                   "",
		"example-.com":                   "",
		"exa mple.com":                   "",
		"exämple.com":                    "",
		"127.0.0.1":                      "",
		"example.c":                      "",
		"example.com:8080":               "",
		"*.example.com":                  "",
		strings.Repeat("a", 63) + ".com": strings.Repeat("a", 63) + ".com",
		strings.Repeat("a", 64) + ".com": "",
	} {
		got, err := CheckRootDomain("domain", domain)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", domain, got, err, want)
		}
		if err != nil && (KindOf(err) != KindInvalid || !strings.HasPrefix(err.Error(), "domain ")) {
			t.Errorf("%q: the error %q does not name the field", domain, err)
		}
	}
}

func TestHostNames(t *testing.T) {
	for host, want := range map[string]string{
		"mtag-ab12.example.com":                "mtag-ab12.example.com",
		"MTAG-ab12.a.b.Shop.de":                "mtag-ab12.a.b.shop.de",
		"example.com":                          "example.com",
		"":                                     "",
		"http://a.example.com":                 "",
		"a.example.com/":                       "",
		"localhost":                            "",
		"a..example.com":                       "",
		"-a.example.com":                       "",
		strings.Repeat("abcdefg.", 32) + "com": "",
	} {
		got, err := CheckHostName("subdomain", host)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", host, got, err, want)
		}
	}
}

func TestAHostHeaderIsNormalised(t *testing.T) {
	for header, want := range map[string]string{
		"Example.com":      "example.com",
		"example.com:8080": "example.com",
		"example.com.":     "example.com",
		"example.com.:80":  "example.com",
		"[::1]:8080":       "::1",
		"[::1]":            "::1",
		"127.0.0.1:80":     "127.0.0.1",
		"":                 "",
	} {
		if got := HostName(header); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}

func TestAnAPIKeyNamesItsKeyAndMatchesNoOther(t *testing.T) {
	now := time.Now()
	key, text := NewKey("p", now, KeyOptions{})
	other, _ := NewKey("p", now, KeyOptions{})
	if !strings.HasPrefix(string(text), "mtp_") || strings.ContainsAny(string(text), " -.:/+=") {
		t.Errorf("%q is not one word with the prefix", text)
	}
	if strings.Contains(string(text), string(key.SecretHash)) {
		t.Error("the stored key holds the secret itself")
	}
	if id, err := text.ID(); err != nil || id != key.ID {
		t.Errorf("the id in the text is %q, %v; want %q", id, err, key.ID)
	}
	if !text.Matches(key) || text.Matches(other) {
		t.Error("the text does not match its own key, or it matches another one")
	}
	wrongSecret := text[:20] + "a" + text[21:]
	if wrongSecret == text {
		wrongSecret = text[:20] + "b" + text[21:]
	}
	for _, malformed := range []APIKey{
		"", "mtp_", text[:len(text)-1], text + "a", "xyz_" + text[4:], wrongSecret, APIKey(strings.ToUpper(string(text))),
	} {
		if _, err := malformed.ID(); err == nil {
			t.Errorf("a malformed key of %d characters has an id", len(malformed))
		}
	}
	if wrongSecret.Matches(key) {
		t.Error("a wrong secret matches")
	}
}

func TestAMerchantHasTwoSecretsAtMost(t *testing.T) {
	d := NewDirectory()
	var m Merchant
	var texts []SecretText
	for range MaxSecrets + 1 {
		s, text := NewSecret(time.Now())
		if !strings.HasPrefix(string(text), "mts_") || strings.ContainsAny(string(text), " -.:/+=") || len(text) != 55 {
			t.Errorf("%q is not one word with the prefix", text)
		}
		m, texts = m.WithSecret(s), append(texts, text)
	}
	d.SetMerchant(m)
	expect := func(want ...bool) {
		t.Helper()
		for i, text := range texts {
			if got := d.HasSecret(m.ID, text); got != want[i] {
				t.Errorf("secret %d is the merchant's: %v, want %v", i, got, want[i])
			}
		}
	}
	expect(true, true, false)
	old := m
	m = m.WithoutSecret(m.Secrets[0].ID)
	d.SetMerchant(m)
	expect(false, true, false)
	if len(old.Secrets) != 2 || !old.HasSecret(old.Secrets[0].ID) || m.HasSecret(old.Secrets[0].ID) {
		t.Error("WithoutSecret changes the merchant it was called on, or removes another secret")
	}
	third, text := NewSecret(time.Now())
	texts[0] = text
	d.SetMerchant(m.WithSecret(third))
	expect(true, true, false)

	for i, wrong := range []SecretText{
		"", "mts_", texts[1][:54], texts[1] + "a", "mtp_" + texts[1][4:], SecretText(strings.ToUpper(string(texts[1]))), texts[0][:16] + texts[1][16:],
	} {
		if d.HasSecret(m.ID, wrong) {
			t.Errorf("wrong text %d is a secret of the merchant", i)
		}
	}
	// The id of one secret with the secret of another, and a right checksum.
	body := texts[0][4:16] + texts[1][16:48]
	if d.HasSecret(m.ID, SecretText("mts_"+string(body)+checksum(string(body)))) {
		t.Error("the parts of two secrets are a third")
	}
	if d.HasSecret("another merchant", texts[1]) {
		t.Error("the secret is another merchant's too")
	}
	d.SetMerchant(Merchant{ID: m.ID})
	expect(false, false, false)
}

func TestKeysExpireAndAreRevoked(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	key, _ := NewKey("p", now, KeyOptions{ExpiresIn: time.Hour})
	if !key.Valid(now) || !key.Valid(now.Add(time.Hour-1)) || key.Valid(now.Add(time.Hour)) {
		t.Error("a key is not valid before it expires, or is valid when it expires")
	}
	key.RevokedAt = &now
	if key.Valid(now) {
		t.Error("a revoked key is valid")
	}
}

func TestAKeyAuthenticatesItsPartnerWhileItIsValid(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	d := NewDirectory()
	p := Partner{ID: "p", Name: "Acme"}
	d.SetPartner(p)
	key, text := NewKey(p.ID, now, KeyOptions{ExpiresIn: time.Hour})
	d.SetKey(key)
	if got, k, ok := d.Authenticate(text, now); !ok || got != p || k.ID != key.ID {
		t.Errorf("a valid key gives %+v, %s, %v; want %+v, %s", got, k.ID, ok, p, key.ID)
	}
	wrongSecret := key
	wrongSecret.SecretHash = make([]byte, len(key.SecretHash))
	revoked := key
	revoked.RevokedAt = &now
	_, unknown := NewKey(p.ID, now, KeyOptions{})
	for _, c := range []struct {
		is     string
		stored Key
		text   APIKey
		at     time.Time
	}{
		{"a malformed key", key, text[:len(text)-1], now},
		{"an empty key", key, "", now},
		{"an unknown key", key, unknown, now},
		{"an expired key", key, text, now.Add(time.Hour)},
		{"a key with another secret", wrongSecret, text, now},
		{"a revoked key", revoked, text, now},
	} {
		d.SetKey(c.stored)
		if got, k, ok := d.Authenticate(c.text, c.at); ok || got != (Partner{}) || k.ID != "" {
			t.Errorf("%s authenticates partner %+v by key %q", c.is, got, k.ID)
		}
	}
}

func TestOnlyTheOwnerMayUseAMerchantOrTag(t *testing.T) {
	m := Merchant{ID: "m", Partner: "p"}
	tag := NewTag(m, ClientSide, "", "", time.Now())
	if err := errors.Join(m.CheckOwner("p"), tag.CheckOwner("p")); err != nil {
		t.Errorf("the owner: %v", err)
	}
	for _, other := range []PartnerID{"q", "P", ""} {
		if err := m.CheckOwner(other); KindOf(err) != KindForbidden {
			t.Errorf("the merchant gives partner %q %v, want an error of KindForbidden", other, err)
		}
		if err := tag.CheckOwner(other); KindOf(err) != KindForbidden {
			t.Errorf("the tag gives partner %q %v, want an error of KindForbidden", other, err)
		}
	}
}

func TestAllSpellingsOfAnIdentifierHaveOneKey(t *testing.T) {
	key := func(kind IdentifierKind, value string) (k IdentityKey, ok bool) {
		var id Identity
		if ok = id.Add(kind, value); ok {
			k = id.Keys()[0]
		}
		return k, ok
	}
	for _, same := range []struct {
		kind   IdentifierKind
		values []string
	}{
		{Email, []string{"jane@example.com", " Jane@Example.COM\t"}},
		{Phone, []string{"+49 (151) 123-456", "0049151123456", "49151123456"}},
		{DeviceID, []string{"abc", " abc "}},
	} {
		first, _ := key(same.kind, same.values[0])
		for _, v := range same.values[1:] {
			if k, ok := key(same.kind, v); !ok || k != first {
				t.Errorf("%q and %q have different keys", same.values[0], v)
			}
		}
	}
	email, _ := key(Email, "123")
	phone, _ := key(Phone, "123")
	upper, _ := key(DeviceID, "ABC")
	lower, _ := key(DeviceID, "abc")
	if email == phone {
		t.Error("an email and a phone number of one value have the same key")
	}
	if upper == lower {
		t.Error("device ids that differ in case have the same key")
	}
	for kind, empty := range map[IdentifierKind]string{Email: " \t", Phone: "call me", DeviceID: ""} {
		if _, ok := key(kind, empty); ok {
			t.Errorf("%q counts as an identifier", empty)
		}
	}
}

func TestTagStates(t *testing.T) {
	m := Merchant{ID: "m", Partner: "p"}
	now := time.Now()
	server := NewTag(m, ServerSide, "mtag-ab12", "example.com", now)
	if server.Status() != Inactive || server.Verified || server.Connected || server.Lifecycle(time.Time{}) != WaitingForDNS {
		t.Errorf("a new server-side tag is %+v", server)
	}
	if server.Host != "mtag-ab12.example.com" {
		t.Errorf("the host of a new server-side tag is %q", server.Host)
	}
	for _, tt := range []TagType{ClientSide, Preverified} {
		if tag := NewTag(m, tt, "", "", now); tag.Status() != Active || tag.Lifecycle(time.Time{}) != WaitingForEvents {
			t.Errorf("a new %s tag is %+v", tt, tag)
		}
	}
	for _, v := range []DNSVerdict{DNSWrong, DNSPending, DNSUnreachable} {
		if tag := server.AfterVerify(DNSFinding{Verdict: v}); tag.Status() != Inactive || tag.Connected || tag.DNS.Verdict != v {
			t.Errorf("an inactive tag is %+v after DNS was %s", tag, v)
		}
	}
	verified := server.AfterVerify(DNSFinding{Verdict: DNSCorrect})
	if verified.Status() != Active || !verified.Verified || !verified.Connected || verified.Lifecycle(time.Time{}) != WaitingForEvents {
		t.Errorf("an inactive tag is %+v after DNS was correct", verified)
	}
	if server.DNS != nil || server.Verified {
		t.Error("the transition changed the tag that it was given")
	}
	if verified.Lifecycle(now) != Receiving {
		t.Errorf("an active tag with events is %s, want %s", verified.Lifecycle(now), Receiving)
	}
	away := verified.AfterVerify(DNSFinding{Verdict: DNSWrong})
	if away.Status() != Active || away.Connected || !away.Verified || away.DNS.Verdict != DNSWrong {
		t.Errorf("an active tag is %+v after DNS was wrong", away)
	}
	if back := away.AfterVerify(DNSFinding{Verdict: DNSCorrect}); !back.Connected {
		t.Error("a tag is not connected after DNS was correct again")
	}
	for _, v := range []DNSVerdict{DNSPending, DNSUnreachable} {
		if tag := verified.AfterVerify(DNSFinding{Verdict: v}); !tag.Verified || !tag.Connected || tag.DNS.Verdict != v {
			t.Errorf("a connected tag is %+v after DNS was %s", tag, v)
		}
		if tag := away.AfterVerify(DNSFinding{Verdict: v}); tag.Connected {
			t.Errorf("a tag that is not connected is connected after DNS was %s", v)
		}
	}
}

func TestARecheckOnlyConnectsAndDisconnectsActiveTags(t *testing.T) {
	verified := DNSFinding{Verdict: DNSCorrect, Code: "verified"}
	inactive := NewTag(Merchant{ID: "m", Partner: "p"}, ServerSide, "mtag-ab12", "example.com", time.Now())
	connected := inactive.AfterVerify(verified)
	away := connected.AfterVerify(DNSFinding{Verdict: DNSWrong, Code: "verified"})
	preverified := NewTag(Merchant{ID: "m", Partner: "p"}, Preverified, "mtag-cd34", "", time.Now())
	for _, c := range []struct {
		is      string
		tag     Tag
		verdict DNSVerdict
		changes bool
	}{
		{"an inactive tag", inactive, DNSCorrect, false},
		{"an inactive tag", inactive, DNSWrong, false},
		{"a connected tag", connected, DNSCorrect, false},
		{"a connected tag", connected, DNSWrong, true},
		{"a connected tag", connected, DNSPending, false},
		{"a connected tag", connected, DNSUnreachable, false},
		{"a tag that is not connected", away, DNSCorrect, true},
		{"a tag that is not connected", away, DNSWrong, false},
		{"a tag that is not connected", away, DNSPending, false},
		{"a preverified tag", preverified, DNSWrong, true},
	} {
		f := DNSFinding{Verdict: c.verdict, Code: "rechecked"}
		want := c.tag
		if c.changes {
			want = c.tag.AfterVerify(f)
		}
		if got := c.tag.AfterRecheck(f); !reflect.DeepEqual(got, want) || got.Status() != c.tag.Status() {
			t.Errorf("%s is %+v after a recheck found DNS %s, want %+v", c.is, got, c.verdict, want)
		}
	}
}

func TestHostsThatMayHaveACertificate(t *testing.T) {
	d := NewDirectory()
	m := Merchant{ID: "m", Partner: "p"}
	inactive := NewTag(m, ServerSide, "mtag-ab12", "later.com", time.Now())
	active := NewTag(m, ServerSide, "mtag-cd34", "shop.com", time.Now()).AfterVerify(DNSFinding{Verdict: DNSCorrect})
	d.SetPartner(Partner{ID: "p", TrackingDomain: "track.agency.com"})
	for _, tag := range []Tag{inactive, active, NewTag(m, ClientSide, "", "", time.Now())} {
		d.SetTag(tag)
	}
	h := NewHosts(d, "api.service.com", "tags.service.com", "api.service.com")
	want := []string{"api.service.com", "tags.service.com", active.Host, "track.agency.com"}
	if all := h.All(); !slices.Equal(all[:2], want[:2]) || len(all) != len(want) {
		t.Errorf("all hosts are %q, want %q in any order after the service's own", all, want)
	}
	for _, host := range append(want, "", "nobody.com", inactive.Host, "shop.com", "Track.agency.com") {
		if got := h.MayHaveCertificate(host); got != slices.Contains(want, host) {
			t.Errorf("MayHaveCertificate(%q) is %v", host, got)
		}
		if got := h.IsOwn(host); got != slices.Contains(want[:2], host) {
			t.Errorf("IsOwn(%q) is %v", host, got)
		}
	}
	for host, partner := range map[string]PartnerID{
		"track.agency.com": "p", active.Host: "p", inactive.Host: "p", "tags.service.com": "", "nobody.com": "",
	} {
		if got := h.Partner(host); got != partner {
			t.Errorf("Partner(%q) is %q, want %q", host, got, partner)
		}
	}
	d.SetPartner(Partner{ID: "q", TrackingDomain: "api.service.com"})
	if all := h.All(); len(all) != len(want) {
		t.Errorf("all hosts are %q after one of the service's own became a tracking domain, want each of %q once", all, want)
	}
	if slices.Contains(h.OfTags(), "api.service.com") {
		t.Error("one of the service's own hosts is among those of tags")
	}
	away := active.AfterVerify(DNSFinding{Verdict: DNSWrong})
	d.SetTag(away)
	if !h.MayHaveCertificate(active.Host) {
		t.Error("the host of an active tag may have no certificate after its DNS was wrong")
	}
	for _, host := range []string{"tags.service.com", active.Host, "nobody.com"} {
		if n := testing.AllocsPerRun(100, func() { h.MayHaveCertificate(host) }); n != 0 {
			t.Errorf("%v allocations for %s", n, host)
		}
	}
}

func TestTagIDsAreRandomAndPrefixedByType(t *testing.T) {
	for tt, prefix := range map[TagType]string{ClientSide: "cs_", ServerSide: "ss_", Preverified: "pv_"} {
		a, b := NewTagID(tt), NewTagID(tt)
		if a == b || !strings.HasPrefix(string(a), prefix) || len(a) != len(prefix)+20 {
			t.Errorf("%s: %q and %q", tt, a, b)
		}
	}
}

func TestDrawLabelFindsTheLastFreeLabel(t *testing.T) {
	const space = 36 * 36 * 36 * 36
	label, err := DrawLabel(func(string) bool { return false })
	if err != nil || len(label) != len("mtag-xxxx") || !strings.HasPrefix(label, "mtag-") {
		t.Errorf("drew %q, %v", label, err)
	}
	seen := make(map[string]bool, space)
	_, err = DrawLabel(func(l string) bool {
		seen[l] = true
		return len(seen) < space // all are taken except the last one that DrawLabel tries
	})
	if err != nil || len(seen) != space {
		t.Errorf("the only free label was not found; %d of %d were tried, %v", len(seen), space, err)
	}
	if label, err = DrawLabel(func(string) bool { return true }); err == nil {
		t.Errorf("drew %q when all were taken", label)
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		" Shoe shop \n":          "Shoe shop",
		"":                       "",
		" \t ":                   "",
		strings.Repeat("ö", 256): strings.Repeat("ö", 256),
		strings.Repeat("ö", 257): "",
		"Shop\x1b[31m":           "",
		"Shop\nadmin":            "",
		"Shop\u202egnp.exe":      "",
		"Shop\u2066x\u2069":      "",
		"Sh\u200bop":             "",
		"Shop \U000e0041":        "",
		"Sh\u00adop":             "", // soft hyphen
		"Sh\u180eop":             "", // Mongolian vowel separator
		"Sh\u2063op":             "", // invisible separator
		"\u115f\u1160":           "", // Hangul fillers
		"\u3164":                 "",
		"Shop\uffa0":             "",
		"\u2800":                 "", // braille without dots
		"Sh\u034fop":             "", // grapheme joiner
		"Shop\ufe0f":             "", // a selector that selects nothing
		"\ufe00":                 "",
		"Sh\U000e0100op":         "",
		"Sh\u200dop":             "", // joiners that join nothing
		"Shop\u200c":             "",
		"\u200dShop":             "",
		"خانه\u200c\u200cها":     "",
		"❤\ufe0f\ufe0f":          "",
		"👩\u200d":                "",

		// Where joiners and selectors change what is seen, they are part of real names.
		"👩🏽\u200d🎤 ❤\ufe0f\u200d🔥 1\ufe0f\u20e3 ‼\ufe0f ℹ\ufe0f": "👩🏽\u200d🎤 ❤\ufe0f\u200d🔥 1\ufe0f\u20e3 ‼\ufe0f ℹ\ufe0f",
		"میخانه\u200cها CD\u200cها":                              "میخانه\u200cها CD\u200cها",
		"ක්\u200dෂ क्\u200dष ক্\u200dষ":                          "ක්\u200dෂ क्\u200dष ক্\u200dষ",
		"葛\U000e0100城":                    "葛\U000e0100城",
		"ᠮᠣᠩᠭᠣᠯ\u180b":                    "ᠮᠣᠩᠭᠣᠯ\u180b",
		"\u06dd Ærø-Café №1 한국 ไทย עברית": "\u06dd Ærø-Café №1 한국 ไทย עברית",
	} {
		if got, err := CheckName("name", name); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
}
