package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"
	"time"
)

// A browser signs in over HTTPS, and an operator sees the certificates.
func TestConsoleOverTLS(t *testing.T) {
	w := newSecureWorld(t)
	client := w.client()
	if _, err := w.begin(client, "shop.com"); err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client.Jar = jar
	send := func(method, url, body string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Console", "1")
		r.Header.Set("Origin", "https://"+baseHost)
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response, string(text)
	}
	const console = "https://" + baseHost + "/console/"

	page, _ := send("GET", console, "")
	if page.StatusCode != 200 {
		t.Errorf("the page: %s, %v", page.Status, page.Header)
	}
	if redirected, _ := send("GET", "http://"+baseHost+"/console/", ""); redirected.StatusCode != 308 || redirected.Header.Get("Location") != console {
		t.Errorf("over HTTP: %s, %v", redirected.Status, redirected.Header)
	}
	if refused, _ := send("POST", "http://"+baseHost+"/console/session", `{"apiKey":"`+w.key+`"}`); refused.StatusCode != 403 {
		t.Errorf("a key over HTTP: %s", refused.Status)
	}
	if refused, _ := send("POST", "http://"+baseHost+"/console/link", `{"link":"mtl_"}`); refused.StatusCode != 403 {
		t.Errorf("a link over HTTP: %s", refused.Status)
	}
	if response, text := send("POST", console+"session", `{"apiKey":"`+w.key+`"}`); response.StatusCode != 200 {
		t.Fatal(text)
	}
	if response, text := send("GET", "https://"+baseHost+"/v1/partners/config", ""); response.StatusCode != 200 || !strings.Contains(text, w.id) {
		t.Errorf("the API: %s %s", response.Status, text)
	}
	if response, text := send("DELETE", console+"session", ""); response.StatusCode != 204 {
		t.Errorf("signing out: %s %s", response.Status, text)
	}
	if response, text := send("GET", "https://"+baseHost+"/v1/partners/config", ""); response.StatusCode != 401 {
		t.Errorf("the API afterwards: %s %s", response.Status, text)
	}

	var link struct{ URL string }
	if err := runMtagd(&link, "console", "link", "--operator", "--data", w.data); err != nil {
		t.Fatal(err)
	}
	text, ok := strings.CutPrefix(link.URL, console+"#link=")
	if !ok {
		t.Errorf("the link is another page's")
	}
	if response, text := send("POST", console+"session", `{"link":"`+text+`"}`); response.StatusCode != 200 {
		t.Fatal(text)
	}
	var overview struct {
		Hosts struct {
			Total, Due, NotDNS int
			Items              []struct {
				Host, Kind  string
				DNS         *struct{ Connected bool }
				Certificate struct {
					Status   string
					NotAfter time.Time
				}
			}
		}
		Rates struct{ Events int }
	}
	_, body := send("GET", console+"operator/overview", "")
	if err := json.Unmarshal([]byte(body), &overview); err != nil {
		t.Fatal(err)
	}
	h := overview.Hosts
	if h.Total != 3 || h.Due != 0 || h.NotDNS != 0 || overview.Rates.Events != 1 {
		t.Fatalf("%s", body)
	}
	for _, host := range h.Items {
		if host.Certificate.Status != "valid" || host.Certificate.NotAfter.Before(time.Now()) || (host.Kind == "own") != (host.DNS == nil) {
			t.Errorf("%+v", host)
		}
	}
}
