package partnerapi

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dustin/go-humanize"
	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/partnerapi/openapi"
	"mtagd/partnerapi/openapi/openapitest"
	"mtagd/store"
	"mtagd/store/testenv"
)

// TestTheDocumentHasTheRoutes compares the routes of the API with the paths of openapi.yaml: methods and query parameters.
func TestTheDocumentHasTheRoutes(t *testing.T) {
	document, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string][]string{}
	for _, o := range document.Operations() {
		if !strings.HasPrefix(o.Path, "/v1/") {
			continue // on a tag host
		}
		query := []string{}
		for _, p := range o.Parameters {
			if p.Value.In == "query" {
				query = append(query, p.Value.Name)
			}
		}
		documented[o.Method+" "+o.Path] = query
	}
	s := newService(t)
	s.deliver()
	api := s.api
	resources := api.resources()
	for path := range api.references() {
		if strings.HasPrefix(path, "/v1/docs/") {
			path = "/v1/docs/{file}"
		}
		resources[path] = resource{"GET": {}}
	}
	for path, res := range resources {
		for method, op := range res {
			query, ok := documented[method+" "+path]
			if !ok {
				t.Errorf("openapi.yaml does not have %s %s", method, path)
			}
			delete(documented, method+" "+path)
			if got, want := slices.Sorted(slices.Values(query)), slices.Sorted(slices.Values(op.query)); ok && !slices.Equal(got, want) {
				t.Errorf("%s %s: openapi.yaml has the query parameters %q, the API %q", method, path, got, want)
			}
		}
	}
	for _, operation := range slices.Sorted(maps.Keys(documented)) {
		t.Errorf("openapi.yaml has %s, the API does not", operation)
	}
}

func TestDrillTheDocumentNeedsNoKeyAndIsKeptByClients(t *testing.T) {
	testenv.Drill(t)
	s := newService(t)
	first := s.request("GET", "/v1/openapi.json", "").is(200).has("openapi", "3.1.1").has("servers.0.url", "https://api.example.net")
	again := s.request("GET", "/v1/openapi.json", "", "If-None-Match", string(first.header.Peek("ETag")))
	if again.status != 304 || again.body != "" {
		t.Errorf("the second request got %d with %d bytes, want 304 without", again.status, len(again.body))
	}
	compressed := s.request("GET", "/v1/openapi.json", "", "Accept-Encoding", "gzip, br")
	plain, err := fasthttp.AppendUnbrotliBytes(nil, []byte(compressed.body))
	if err != nil || string(plain) != first.body {
		t.Errorf("the compressed document is another one: %v", err)
	}
	a := s.request("POST", "/v1/openapi.json", "")
	a.fails(405, "VALIDATION_ERROR", "Method not allowed")
	if allow := string(a.header.Peek("Allow")); allow != "GET, HEAD" {
		t.Errorf("Allow %q", allow)
	}
}

// The document names the addresses of the service that serves it.
func TestDrillTheDocumentNamesTheServersOfTheService(t *testing.T) {
	testenv.Drill(t)
	s := newService(t)
	s.api.BaseURL = "http://localhost:8080"
	s.api.TagURL = func(host string) string { return "http://" + host + ":8080" }
	s.handle = s.api.routes()
	a := s.request("GET", "/v1/openapi.json", "").is(200).has("servers.0.url", "http://localhost:8080")
	if strings.Contains(a.body, `"url":"https://api`) || !strings.Contains(a.body, `"url":"http://tags.example.net:8080"`) {
		t.Error("the document names another service's hosts")
	}
}

// The rates and shares of a partner stand in sentences of the document.
func TestTheDocumentHasTheDefaultLimits(t *testing.T) {
	document, err := openapi.Document("https://api.example.net", "https://tags.example.net")
	if err != nil {
		t.Fatal(err)
	}
	text := string(document)
	number := func(n int64) string { return humanize.Comma(n) }
	rate, writes := int64(store.DefaultRequestsPerSecond), int64(store.DefaultWritesPerMinute)
	for _, sentence := range []string{
		"send " + number(rate) + " requests a second, and " + number(rate*int64(requestBurst.Seconds())) + " at once",
		"something " + number(writes) + " a minute, and " + number(writes*int64(writeBurst.Minutes())) + " at once",
		"at most " + number(int64(store.DefaultMerchants)) + " merchants",
		"at most " + number(int64(store.DefaultLabels)) + " tags",
		number(int64(store.DefaultUnverifiedClaims)) + " domains",
		"At most " + number(verificationsPerPartner) + " verifications",
		"up to " + number(int64(slotTimeout.Seconds())) + " seconds",
		number(exportsPerPartner) + " exports",
		number(int64(store.DefaultFeedReaders)) + " streams",
		number(int64(store.DefaultAnswerBytes>>20)) + " MiB",
		number(store.MaxKeys) + " valid keys",
		"address may send " + number(limit.DefaultAddressEvents) + " events a second, and " + number(30*limit.DefaultAddressEvents) + " at once",
		"may get " + number(int64(store.DefaultEventsPerSecond)) + " a second, and " + number(10*int64(store.DefaultEventsPerSecond)) + " at once",
	} {
		if !strings.Contains(text, sentence) {
			t.Errorf("openapi.yaml does not say %q", sentence)
		}
	}
}
