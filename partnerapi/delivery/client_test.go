package delivery

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mtagd/store"
)

func TestTheGuardAllowsPublicAddressesAndThoseOfTheOperator(t *testing.T) {
	allowed := guard(store.ParseNetworks("10.1.0.0/16", "::1/128"))
	for text, want := range map[string]bool{"8.8.8.8": true, "10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "::1": true, "127.0.0.1": false} {
		if got := allowed.control("tcp", net.JoinHostPort(text, "443"), nil) == nil; got != want {
			t.Errorf("%s is allowed: %v, want %v", text, got, want)
		}
	}
}

func TestNoRequestReachesAPrivateAddress(t *testing.T) {
	b, s := newBed(t), newSink(t)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d := b.create(s.URL, nil)
	b.send("m", "Purchase", "")
	b.until("one is delivered", func() bool { return b.status(d).Delivered == 1 })
	// The operator does not allow it any more: an address that was allowed when the destination was made, and names that lead
	// there.
	b.close()
	b.allow = []netip.Prefix{netip.MustParsePrefix("10.255.0.0/16")}
	b.open()
	for _, host := range []string{"localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0177.0.0.1"} {
		b.create("http://"+host+":"+port, nil)
	}
	b.send("m", "Purchase", "")
	b.until("it fails", func() bool {
		st := b.status(d)
		return st.Word == "failing" && strings.Contains(*st.LastError, "not public")
	})
	all := must(b.s.List(t.Context(), b.m.ID))
	for _, d := range all {
		b.until("it fails", func() bool { return b.status(d).Word == "failing" })
		if _, err := b.s.Preview(t.Context(), d, "", true); err != nil {
			t.Error(err)
		}
	}
	if s.mu.Lock(); s.asked != 1 {
		t.Errorf("%d requests have reached the address", s.asked)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	b, s := newBed(t), newSink(t)
	other := newSink(t)
	s.Config.Handler = http.RedirectHandler(other.URL, http.StatusTemporaryRedirect)
	d := b.create(s.URL, nil)
	b.send("m", "Purchase", "")
	b.until("it fails", func() bool {
		st := b.status(d)
		return st.Word == "failing" && strings.Contains(*st.LastError, "redirect")
	})
	if other.mu.Lock(); other.asked != 0 {
		t.Error("a redirect was followed")
	}
}

func TestSecretsAreEncryptedAndRotated(t *testing.T) {
	b, s := newBed(t), newSink(t)
	d, made := b.createWith(s.URL, nil)
	secret := made["signing"]
	stored := func() string {
		doc := must(b.engine.Destination(t.Context(), b.m.ID, d.ID))
		return string(doc.Content)
	}
	first := stored()
	if secret == "" || strings.Contains(first, secret) || strings.Contains(first, secret[6:]) {
		t.Errorf("stored: %s", first)
	}
	if n, err := b.s.RotateKey(t.Context()); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	if stored() == first {
		t.Error("the secret was not encrypted again")
	}
	var kept Destination
	if err := json.Unmarshal([]byte(stored()), &kept); err != nil || kept.Secrets["signing"][0].Key != b.keys.current()[0].id {
		t.Errorf("%v: it is encrypted by an old key", err)
	}
	reopened := must(OpenKeyring(b.keys.path))
	if text, err := reopened.open(kept.place("signing"), kept.Secrets["signing"][0]); err != nil || text != secret {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := reopened.open(kept.place("other"), kept.Secrets["signing"][0]); err == nil {
		t.Error("a secret can be opened for another place")
	}
	// A secret that is replaced signs too.
	_, made, err := b.s.Update(t.Context(), b.m, d.ID, Change{Secrets: map[string]string{"signing": ""}})
	if err != nil || made["signing"] == "" || made["signing"] == secret {
		t.Fatalf("%v, %v", made, err)
	}
	b.send("m", "Purchase", "")
	b.until("delivered", func() bool { return b.status(d).Delivered == 1 })
	if n := strings.Count(s.all()[0].header.Get("webhook-signature"), "v1,"); n != 2 {
		t.Errorf("%d signatures, want 2", n)
	}
}

func TestADamagedKeyFileSaysWhatToDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret.key")
	for _, text := range []string{"", "abcdefgh c2hv"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenKeyring(path); err == nil || !strings.Contains(err.Error(), adviceKeys) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
