package certs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/certmagic"

	"mtagd/store"
	"mtagd/tlsmgr/acmetest"
)

func TestRestartOrdersNothing(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	tag := w.addTag("shop.com", true)
	stop := w.start()
	before := w.mustVisit(tag.Host)
	w.untilStatus(w.ownHost, store.CertificateValid)
	stop()
	ordered := w.ca.Orders()
	w.ca.breakDown(true)
	w.start()
	if after := w.mustVisit(tag.Host); !after.Equal(before) {
		t.Error("another certificate after the restart")
	}
	w.untilStatus(w.ownHost, store.CertificateValid)
	if n := w.ca.Orders(); n != ordered {
		t.Errorf("%d orders after the restart", n-ordered)
	}
}

// A kill in the middle of a renewal leaves the new key beside the old certificate.
func TestUnusableFilesAreReplaced(t *testing.T) {
	for name, c := range map[string]struct{ file, content string }{
		"another key":        {".key", newKey(t)},
		"half a certificate": {".crt", "-----BEGIN CERTIFICATE-----\nMII"},
		"empty metadata":     {".json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCertWorld(t, acmetest.Options{})
			stop := w.start()
			before := w.mustVisit(w.ownHost)
			stop()
			files, err := filepath.Glob(filepath.Join(w.dir, "certificates", "*", w.ownHost, "*"+c.file))
			if err != nil || len(files) != 1 {
				t.Fatalf("files %v, %v", files, err)
			}
			if err := os.WriteFile(files[0], []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			w.start()
			if w.mustVisit(w.ownHost).Equal(before) {
				t.Error("the old certificate is still served")
			}
		})
	}
}

// A file that cannot be read at the moment may be intact, so it is not replaced.
func TestUnreadableFilesAreKept(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	stop := w.start()
	w.untilStatus(w.ownHost, store.CertificateValid)
	stop()
	files, err := filepath.Glob(filepath.Join(w.dir, "certificates", "*", w.ownHost, "*.key"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	aside := files[0] + ".aside"
	if err := os.Rename(files[0], aside); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(files[0], files[0]); err != nil { // not even root can read a link to itself
		t.Fatal(err)
	}
	ordered := w.ca.Orders()
	w.start()
	w.untilStatus(w.ownHost, store.CertificateFailed)
	if err := os.Rename(aside, files[0]); err != nil { // at once: while there is no file, a certificate is ordered
		t.Fatal(err)
	}
	w.untilStatus(w.ownHost, store.CertificateValid)
	if n := w.ca.Orders(); n != ordered {
		t.Errorf("%d orders", n-ordered)
	}
}

func newKey(t *testing.T) string {
	t.Helper()
	key, err := certmagic.StandardKeyGenerator{}.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := certmagic.PEMEncodePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The same key is the same account, so a restart registers no other.
func TestAccountOutlivesARestart(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	var accounts []string
	for range 2 {
		stop := w.start()
		w.untilStatus(w.ownHost, store.CertificateValid)
		account, err := w.certs.ca.account.open(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		accounts = append(accounts, account.Location)
		stop()
		if err := os.RemoveAll(filepath.Join(w.dir, "certificates")); err != nil {
			t.Fatal(err)
		}
	}
	if accounts[0] == "" || accounts[0] != accounts[1] {
		t.Errorf("accounts %q", accounts)
	}
}

// A CA that was set up again does not know the accounts of before.
func TestAccountThatTheCADoesNotKnowIsRegistered(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.start()
	w.untilStatus(w.ownHost, store.CertificateValid)
	account := w.certs.ca.account
	lost := *account.registered
	lost.Location += "0"
	account.registered = &lost
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.untilStatus(tag.Host, store.CertificateValid)
	if account.registered.Location == lost.Location {
		t.Error("the account was not registered")
	}
}
