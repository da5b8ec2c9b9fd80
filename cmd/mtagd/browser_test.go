//go:build !race

// Only make test without the race detector runs these tests. With it, chromedp would be compiled for nothing.

package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"mtagd/store/testenv"
)

// A visitor's browser loads the script from a merchant's own host, and its events are listed. The host's certificate
// was ordered after the verification.
func TestBrowserSendsEventsThroughAVerifiedHost(t *testing.T) {
	testenv.NotShort(t, "a browser")
	w := newSecureWorld(t)
	client := w.client()
	merchant, tag, host, err := w.newTag(client, "shop.com")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.verify(client, merchant, host); err != nil {
		t.Fatal(err)
	}
	var read struct{ Snippet string }
	if err := w.api(client, "GET", "/tracktag/"+tag, "", &read); err != nil {
		t.Fatal(err)
	}
	shop := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(rw, "<!doctype html><html><head><title>Shop</title>"+strings.Replace(read.Snippet, "consent: false", "consent: true", 1)+"</head><body></body></html>")
	}))
	t.Cleanup(shop.Close)

	page := openBrowser(t, resolve(map[string]string{host: w.https, "www.shop.com": shop.Listener.Addr().String()}),
		trust(shop.Certificate(), w.issuerOf(host)))
	if err := chromedp.Do(page, chromedp.Navigate("https://www.shop.com/")); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(page, chromedp.Evaluate[chromedp.Void](`mtag('event', 'Purchase', {value: 89, currency: 'EUR'})`)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for end := time.Now().Add(startTimeout); len(names) < 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("listed %v", names)
		}
		var listed struct {
			Events []struct {
				Name string `json:"event_name"`
			}
		}
		if err := w.api(client, "GET", "/events?merchantId="+merchant+"&tagId="+tag, "", &listed); err != nil {
			t.Fatal(err)
		}
		names = nil
		for _, e := range listed.Events {
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "PageView Purchase" {
		t.Errorf("listed %s", got)
	}
}

// issuerOf waits for a host's certificate and returns its issuer's certificate.
func (w *secureWorld) issuerOf(host string) *x509.Certificate {
	w.Helper()
	c, err := tls.Dial("tcp", w.https, &tls.Config{ServerName: host, RootCAs: w.ca.Issuers})
	if err != nil {
		w.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[1]
}

// resolve makes a browser connect to the given addresses for these hosts. It finds no other hosts.
func resolve(addresses map[string]string) chromedp.ExecAllocatorOption {
	var rules []string
	for host, address := range addresses {
		rules = append(rules, "MAP "+host+" "+address)
	}
	rules = append(rules, "MAP * ~NOTFOUND") // the first match wins
	return chromedp.Flag("host-resolver-rules", strings.Join(rules, ","))
}

// trust makes a browser accept certificates with one of the given certificates in their chain.
func trust(certs ...*x509.Certificate) chromedp.ExecAllocatorOption {
	var keys []string
	for _, cert := range certs {
		sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		keys = append(keys, base64.StdEncoding.EncodeToString(sum[:]))
	}
	return chromedp.Flag("ignore-certificate-errors-spki-list", strings.Join(keys, ","))
}
