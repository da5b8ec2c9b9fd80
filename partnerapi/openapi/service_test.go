package openapi_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge"
	"mtagd/edge/refused"
	"mtagd/edge/sdk"
	"mtagd/edge/tag"
	"mtagd/partnerapi"
	"mtagd/partnerapi/delivery"
	"mtagd/partnerapi/openapi/openapitest"
	"mtagd/store"
	"mtagd/store/local"
)

// service is the whole service at one address: the partner API, and the tag host of client-side tags.
type service struct {
	testing.TB
	engine   store.Engine
	url      string
	document *openapitest.Document
	refused  *refused.Memory
	fixtures int
	delivery *delivery.Service
}

// clock is the time in the service. The examples of the document fit it.
func clock() time.Time { return time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC) }

func newService(t testing.TB) *service {
	t.Helper()
	document, err := openapitest.Load()
	must(t, err)
	engine, err := local.Open(t.TempDir(), local.Options{Log: slog.New(slog.DiscardHandler), Now: clock})
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &service{TB: t, engine: engine, url: "http://" + listener.Addr().String(), document: document, refused: refused.New(clock)}
	keys, err := delivery.OpenKeyring(filepath.Join(t.TempDir(), "secret.key"))
	must(t, err)
	s.delivery = delivery.Open(delivery.Config{Engine: engine, Keys: keys, Log: slog.New(slog.DiscardHandler), Now: clock})
	const host = "127.0.0.1"
	server, err := edge.New(edge.Config{
		Config:   tag.Config{Engine: engine, ClientTagHost: host, Log: slog.New(slog.DiscardHandler), Now: clock, Refused: s.refused},
		BaseHost: host,
		PartnerAPI: partnerapi.New(partnerapi.Config{
			Engine:        engine,
			Delivery:      s.delivery,
			DNS:           correctDNS{},
			BaseURL:       s.url,
			ClientTagHost: host,
			CNAMETarget:   "cname.example.net",
			TagURL:        func(string) string { return s.url },
			Log:           slog.New(slog.DiscardHandler),
			Now:           clock,
			Refused:       s.refused,
			Context:       edge.ClientContext,
			Waiting:       edge.WaitContext,
			WhenAnswered:  edge.WhenAnswered,
		}),
	})
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, err := range []error{server.Shutdown(ctx), <-served, s.delivery.Close(), engine.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// correctDNS is a partnerapi.Verifier for which the DNS of every host is correct.
type correctDNS struct{}

func (correctDNS) Verify(context.Context, string) store.DNSFinding {
	return store.DNSFinding{Verdict: store.DNSCorrect, Code: "ok", Detail: "it is", CheckedAt: clock()}
}

// fixture is a partner with what the examples of the document name.
type fixture struct {
	key     string
	tag     string // client-side
	example *strings.Replacer
}

// fixture makes one. The merchant of a bare one has no tags.
func (s *service) fixture(bare bool) fixture {
	s.Helper()
	ctx := s.Context()
	s.fixtures++
	partner, err := s.engine.AddPartner(ctx, "Agency")
	must(s, err)
	_, err = s.engine.EnablePreverified(ctx, partner.ID, fmt.Sprintf("links.agency%d.com", s.fixtures))
	must(s, err)
	_, key, err := s.engine.IssueKey(ctx, partner.ID, store.KeyOptions{})
	must(s, err)
	other, _, err := s.engine.IssueKey(ctx, partner.ID, store.KeyOptions{})
	must(s, err)
	merchant, err := s.engine.AddMerchant(ctx, partner.ID, store.NewMerchant{Name: "Shoe shop"})
	must(s, err)
	domain := fmt.Sprintf("shop%d.com", s.fixtures)
	secret, _ := store.NewSecret(clock())
	merchant, err = s.engine.UpdateMerchant(ctx, merchant.ID, func(m store.Merchant) store.Merchant { return m.WithSecret(secret) })
	must(s, err)
	var client, server store.Tag
	if !bare {
		client, _, err = s.engine.GenerateTag(ctx, merchant.ID, store.ClientSide, "")
		must(s, err)
		server, _, err = s.engine.GenerateTag(ctx, merchant.ID, store.ServerSide, domain)
		must(s, err)
		must(s, s.engine.Record(ctx, []store.Mark{{Merchant: merchant.ID, Tag: client.ID, Name: "Purchase", Time: clock().Add(-time.Second),
			Identity: store.Identity{MUID: "5f0c1c86-6f0e-4b8c-8f2a-3c1d2e4f5a6b"}, Raw: []byte(`{"event":"Purchase"}`)}}))
		s.refused.Add(&refused.Event{Merchant: merchant.ID, Tag: client.ID, Status: 400, Code: "event_malformed", Message: "no", Reason: "no", Path: "/event",
			Name: "add_to_cart", Origin: "https://www.example.com", Object: []byte(`{"event":"add_to_cart"}`)})
	}
	erasure, err := s.engine.Erase(ctx, merchant.ID, store.Identity{MUID: "another visitor"}, store.ErasureOptions{})
	must(s, err)
	destination, _, err := s.delivery.Create(ctx, merchant, delivery.Change{Type: new("webhook"), Settings: []byte(`{"url":"https://` + domain + `/events"}`), Paused: new(true)})
	must(s, err)
	return fixture{string(key), string(client.ID), strings.NewReplacer(
		"0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11", string(merchant.ID),
		"cs_Qd5xYw1Bqm3Zk0aJrVt0", string(client.ID),
		"ss_m3Zk0aJrVt0Qd5xYw1Bq", string(server.ID),
		"mtag-ab12.example.com", server.Host,
		"k3v5ho2qzj7a", string(other.ID),
		"p4d7m2xq6ria", string(secret.ID),
		"era_4QJ2B6ZL7M3KX5TWVCNDYAH2FE", string(erasure.ID),
		"5b1e8a52c3d9f04e", sdk.Versions()[0].Name,
		"dst_K7QJ2B6ZL7M3KX5TWVCNDYAH2F", destination.ID,
		"example.com", domain,
	)}
}

// needsBare reports whether an operation's example is for a merchant without tags.
func needsBare(o openapitest.Operation) bool { return strings.HasPrefix(o.OperationID, "generateTag") }

// usesUp reports whether a success of an operation may take away what its example needs the next time.
func usesUp(o openapitest.Operation) bool {
	return o.Method == "DELETE" || needsBare(o) || slices.Contains([]string{"createSecret", "createDestination", "changeDestination", "replayEvents"}, o.OperationID)
}

// send sends a request with a key, and checks the answer against the document.
func (s *service) send(key string, request *http.Request) (status int, body string) {
	s.Helper()
	if strings.HasPrefix(request.URL.Path, "/v1/partners/") {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := http.DefaultClient.Do(request)
	must(s, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(s, err)
	s.check(request.Method, request.URL.EscapedPath(), response, text)
	return response.StatusCode, string(text)
}

// check compares an answer with the document.
func (s *service) check(method, path string, response *http.Response, body []byte) {
	s.Helper()
	var r fasthttp.Response
	r.SetStatusCode(response.StatusCode)
	for name := range response.Header {
		r.Header.Set(name, response.Header.Get(name))
	}
	r.SetBodyRaw(body)
	if err := s.document.Check(method, path, &r); err != nil {
		s.Error(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
