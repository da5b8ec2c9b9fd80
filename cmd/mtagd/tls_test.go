package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store/testenv"
	"mtagd/tlsmgr/acmetest"
)

// secureWorld is a service with HTTPS, its CA, and the DNS that both use.
type secureWorld struct {
	*testing.T
	*service
	data string
	zone *zone
	ca   *acmetest.CA
	key  string // of the partner
	id   string // of the partner
}

func newSecureWorld(t *testing.T, flags ...string) *secureWorld {
	t.Helper()
	zone, err := startZone()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(zone.stop)
	for _, name := range []string{baseHost, tagHost, cnameTarget} {
		if err := zone.set(name, "A", "127.0.0.1"); err != nil {
			t.Fatal(err)
		}
	}
	w := &secureWorld{T: t, data: t.TempDir(), zone: zone, ca: acmetest.Start(t, acmetest.Options{Resolver: zone.address})}
	flags = append([]string{"--tls", "acme", "--https", "127.0.0.1:0", "--acme-ca", w.ca.URL, "--acme-ca-root", w.ca.RootsFile}, flags...)
	if w.service, err = startService(w.data, zone.address, flags...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
	w.ca.Validate(w.http, w.https)
	if w.id, w.key, err = newPartner(w.data, "Partner"); err != nil {
		t.Fatal(err)
	}
	return w
}

// client connects to the service for every host in a URL, and trusts only the CA.
func (w *secureWorld) client() *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			to := w.https
			if strings.HasSuffix(address, ":80") {
				to = w.http
			}
			return new(net.Dialer).DialContext(ctx, network, to)
		},
		TLSClientConfig:     &tls.Config{RootCAs: w.ca.Issuers},
		TLSHandshakeTimeout: startTimeout,
	}
	w.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport:     transport,
		Timeout:       startTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// call sends a request and reads the JSON of a 200 or 201.
func (w *secureWorld) call(client *http.Client, method, url, key, body string, into any) error {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, text.String())
	}
	return json.Unmarshal(text.Bytes(), into)
}

func (w *secureWorld) api(client *http.Client, method, path, body string, into any) error {
	return w.call(client, method, "https://"+baseHost+"/v1/partners"+path, w.key, body, into)
}

// newTag makes a merchant with a server-side tag whose DNS is correct.
func (w *secureWorld) newTag(client *http.Client, domain string) (merchant, tag, host string, err error) {
	var m struct{ MerchantID string }
	if err := w.api(client, "POST", "/merchant", `{"name":"Shop"}`, &m); err != nil {
		return "", "", "", err
	}
	var generated struct {
		TagID  string
		Record struct{ Name string }
	}
	body := fmt.Sprintf(`{"merchantId":%q,"type":"server-side","domain":%q}`, m.MerchantID, domain)
	if err := w.api(client, "POST", "/tracktag/generate", body, &generated); err != nil {
		return "", "", "", err
	}
	host = generated.Record.Name + "." + domain
	return m.MerchantID, generated.TagID, host, w.zone.set(host, "CNAME", cnameTarget+".")
}

// verify verifies the DNS of a tag host. It returns an error if the DNS is wrong.
func (w *secureWorld) verify(client *http.Client, merchant, host string) error {
	var verified struct{ Verified bool }
	err := w.api(client, "POST", "/tracktag/verify", fmt.Sprintf(`{"merchantId":%q,"subdomain":%q}`, merchant, host), &verified)
	if err == nil && !verified.Verified {
		err = errors.New("not verified")
	}
	return err
}

// begin creates a shop and sends its first event over HTTPS. It returns the time from the verification to the event.
func (w *secureWorld) begin(client *http.Client, domain string) (time.Duration, error) {
	merchant, tag, host, err := w.newTag(client, domain)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := w.verify(client, merchant, host); err != nil {
		return 0, err
	}
	var accepted struct{ Message string }
	err = w.call(client, "POST", "https://"+host+"/mark/"+tag, "", `{"muid":"m-1","event":"Purchase","value":3}`, &accepted)
	if err != nil {
		return 0, err
	}
	took := time.Since(began)
	var listed struct {
		Events []struct {
			Name string `json:"event_name"`
		}
	}
	if err := w.api(client, "GET", "/events?merchantId="+merchant, "", &listed); err != nil {
		return 0, err
	}
	if len(listed.Events) != 1 || listed.Events[0].Name != "Purchase" {
		return 0, fmt.Errorf("listed %+v", listed.Events)
	}
	return took, nil
}

// secureHosts is how many shops TestShopsOverTLS creates. Each gets a certificate from the CA, which runs in this
// process.
const secureHosts = 30

// Many shops at the same time generate a tag, verify it, send an event over HTTPS and list it. The CA gets one order for
// each of their hosts, and for the service's own two.
func TestShopsOverTLS(t *testing.T) {
	testenv.NotShort(t, "time")
	w := newSecureWorld(t)
	client := w.client()
	var all sync.WaitGroup
	var mu sync.Mutex
	var times []time.Duration
	slots := make(chan struct{}, 8)
	for i := range secureHosts {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			took, err := w.begin(client, fmt.Sprintf("shop-%d.com", i))
			if err != nil {
				t.Errorf("shop %d: %v", i, err)
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, took)
		})
	}
	all.Wait()
	slices.Sort(times)
	t.Logf("from verify to the first event: median %v, p95 %v, most %v", times[len(times)/2], times[len(times)*95/100], times[len(times)-1])
	if n := w.ca.Orders(); n != secureHosts+2 {
		t.Errorf("%d orders for %d hosts", n, secureHosts+2)
	}
	resp, err := http.Get("http://" + w.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var metrics bytes.Buffer
	if _, err := metrics.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("mtagd_certificates{status=\"valid\"} %d\n", secureHosts+2); !strings.Contains(metrics.String(), want) {
		t.Errorf("the metrics do not contain %s", want)
	}
}

func TestTagReadShowsTheCertificate(t *testing.T) {
	w := newSecureWorld(t)
	client := w.client()
	merchant, tag, host, err := w.newTag(client, "shop.com")
	if err != nil {
		t.Fatal(err)
	}
	type read struct {
		Certificate *struct {
			Status, Detail    string
			NotAfter, NextTry *time.Time
		}
	}
	var before, after read
	if err := w.api(client, "GET", "/tracktag/"+tag, "", &before); err != nil {
		t.Fatal(err)
	}
	if c := before.Certificate; c == nil || c.Status != "none" || c.NotAfter != nil {
		t.Errorf("before verify: %+v", c)
	}
	if err := w.verify(client, merchant, host); err != nil {
		t.Fatal(err)
	}
	var health struct{ Status string }
	if err := w.call(client, "GET", "https://"+host+"/health", "", "", &health); err != nil { // waits for the certificate
		t.Fatal(err)
	}
	if err := w.api(client, "GET", "/tracktag/"+tag, "", &after); err != nil {
		t.Fatal(err)
	}
	if c := after.Certificate; c == nil || c.Status != "valid" || c.NotAfter == nil || time.Until(*c.NotAfter) < 24*time.Hour {
		t.Errorf("after verify: %+v", c)
	}
}

// The name that CAA records must allow comes from the CA's directory.
func TestTagReadShowsCAARecordsThatForbidTheCertificate(t *testing.T) {
	w := newSecureWorld(t)
	client := w.client()
	if err := w.zone.set("shop.com", "CAA", `0 issue "other.example"`); err != nil {
		t.Fatal(err)
	}
	merchant, tag, host, err := w.newTag(client, "shop.com")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.verify(client, merchant, host); err != nil {
		t.Error(err)
	}
	var read struct {
		DNS struct{ Verdict, Code, Detail string }
	}
	if err := w.api(client, "GET", "/tracktag/"+tag, "", &read); err != nil {
		t.Fatal(err)
	}
	const want = "the CAA records at shop.com forbid pebble.letsencrypt.org"
	if d := read.DNS; d.Verdict != "correct" || d.Code != "ok_caa_forbids" || !strings.Contains(d.Detail, want) {
		t.Errorf("dns is %+v", d)
	}
}

func TestPreverifyOrdersACertificateForTheTrackingDomain(t *testing.T) {
	w := newSecureWorld(t)
	const domain = "track.agency.com"
	if err := w.zone.set(domain, "CNAME", cnameTarget+"."); err != nil {
		t.Fatal(err)
	}
	if err := runMtagd(nil, "partner", "preverify", w.id, "--domain", domain, "--data", w.data); err != nil {
		t.Fatal(err)
	}
	if err := w.waitLog(fmt.Sprintf(`"msg":"certificate issued","host":%q`, domain)); err != nil { // before any handshake
		t.Fatal(err)
	}
	var health struct{ Status string }
	if err := w.call(w.client(), "GET", "https://"+domain+"/health", "", "", &health); err != nil || health.Status != "ok" {
		t.Errorf("%v, %+v", err, health)
	}
}

func TestPlainHTTPRedirectsToHTTPS(t *testing.T) {
	w := newSecureWorld(t)
	client := w.client()
	for _, c := range []struct {
		host, path string
		status     int
		location   string
	}{
		{baseHost, "/v1/partners/merchant?page=2", 308, "https://" + baseHost + "/v1/partners/merchant?page=2"},
		{tagHost, "/mark/cs_1", 308, "https://" + tagHost + "/mark/cs_1"},
		{"nobody.test", "/", 421, ""},
		{tagHost, "/.well-known/acme-challenge/none", 404, ""},
	} {
		req, err := http.NewRequest("POST", "http://"+c.host+c.path, strings.NewReader(`{"muid":"m"}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status || resp.Header.Get("Location") != c.location {
			t.Errorf("%s%s: %s, Location %q", c.host, c.path, resp.Status, resp.Header.Get("Location"))
		}
	}
}
