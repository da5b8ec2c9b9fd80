package console

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"mtagd/partnerapi"
	"mtagd/store"
)

// get reads an operator's page into a value.
func (s *service) get(cookie, uri string, into any) {
	s.t.Helper()
	a := s.request("GET", uri, "", "Cookie", cookie, "X-Console", "1").is(200)
	if err := json.Unmarshal([]byte(a.body), into); err != nil {
		s.t.Fatalf("%v: %s", err, a.body)
	}
}

const (
	overviewPath = "/console/operator/overview"
	auditPath    = "/console/operator/audit"
)

func TestOnlyOperatorsSeeTheService(t *testing.T) {
	s := newService(t)
	_, _, text := s.partner("Agency")
	partner := s.signIn(text).is(200).cookie()
	a := s.useLink(s.link("")).is(200)
	if want := `{"role":"operator","scope":"read-only","expiresAt":"2026-11-20T20:30:00Z"}`; a.body != want {
		t.Errorf("got %s, want %s", a.body, want)
	}
	for _, uri := range []string{overviewPath, auditPath} {
		s.request("GET", uri, "").fails(401, "AUTHENTICATION_ERROR")
		s.request("GET", uri, "", "Authorization", "Bearer "+string(text)).is(401)
		if refused := s.request("GET", uri, "", "Cookie", partner, "X-Console", "1").fails(403, "FORBIDDEN"); refused.caller != "" {
			t.Errorf("a refused request counts for %q, and not for its address", refused.caller)
		}
		s.request("GET", uri, "", "Cookie", a.cookie()).is(401)
		s.request("GET", uri, "", "Cookie", a.cookie(), "X-Console", "1", "Sec-Fetch-Site", "same-site").is(401)
		if got := s.request("GET", uri, "", "Cookie", a.cookie(), "X-Console", "1").is(200); got.caller != string(partnerapi.Operator) {
			t.Errorf("a request counts for %q, not for the operators", got.caller)
		}
		s.request("POST", uri, "{}", "Cookie", a.cookie(), "X-Console", "1").is(405)
	}
	s.request("GET", "/v1/partners/config", "", "Cookie", a.cookie(), "X-Console", "1").is(401)
	s.request("DELETE", sessionPath, "", "Cookie", a.cookie()).is(204)
	s.request("GET", overviewPath, "", "Cookie", a.cookie(), "X-Console", "1").is(401)
}

// fakeCertificates are certificates by host.
type fakeCertificates map[string]store.Certificate

func (f fakeCertificates) Certificate(host string) store.Certificate { return f[host] }

func TestOverview(t *testing.T) {
	var start time.Time
	certificates := fakeCertificates{}
	s := newService(t, func(cfg *Config) { cfg.Certificates, start = certificates, cfg.Now() })
	s.setNow(start.Add(-time.Second))
	p, _, _ := s.partner("Agency")
	s.setNow(start)
	other, _, _ := s.partner("Other")
	m, err := s.engine.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.engine.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Without a tag"}); err != nil {
		t.Fatal(err)
	}
	tag, _, err := s.engine.GenerateTag(t.Context(), m.ID, store.ServerSide, "shop.com")
	if err != nil {
		t.Fatal(err)
	}
	found := store.DNSFinding{Verdict: store.DNSCorrect, Code: "ok", Detail: "It is right.", CheckedAt: s.time()}
	if tag, err = s.engine.UpdateTag(t.Context(), tag.ID, func(t store.Tag) store.Tag { return t.AfterVerify(found) }); err != nil {
		t.Fatal(err)
	}
	certificates["api.example.net"] = store.Certificate{Status: store.CertificateValid, NotAfter: start.Add(60 * 24 * time.Hour)}
	certificates["tags.example.net"] = store.Certificate{Status: store.CertificateValid, NotAfter: start.Add(24 * time.Hour)}
	certificates[tag.Host] = store.Certificate{Status: store.CertificateFailed, Detail: "no CAA"}
	event := store.Mark{Merchant: m.ID, Tag: tag.ID, Identity: store.Identity{MUID: "user-1"}, Name: "PageView", Time: s.time(), Raw: []byte(`{"a":1}`)}
	if err := s.engine.Record(t.Context(), []store.Mark{event}); err != nil {
		t.Fatal(err)
	}
	s.system = System{
		Version: "v1.2.3", Started: start.Add(-time.Hour), NotReady: errors.New("the disk is full"),
		Disk:   Disks{7, []Disk{{"journal", 10, 100, 5}}},
		Rates:  Rates{Over: 100 * time.Second, Events: 50, Refused: map[string]uint64{"malformed": 3, "address_events": 7, "suspended": 0}},
		Backup: &Backup{Every: 6 * time.Hour, Last: start.Add(-2 * time.Hour), Failed: start.Add(-time.Minute), Error: "no room", Failures: 2},
	}
	cookie := s.operator()
	var view overviewJSON
	s.get(cookie, overviewPath, &view)

	if view.Version != "v1.2.3" || view.Uptime != 3600 || view.Ready || view.NotReady != "the disk is full" || !view.Now.Equal(start) {
		t.Errorf("%+v", view)
	}
	if len(view.Partners.Items) != 2 || view.Partners.Total != 2 {
		t.Fatalf("partners: %+v", view.Partners)
	}
	if got := view.Partners.Items[0]; got.ID != p.ID || got.Name != "Agency" || got.Merchants != 2 || *got.Events != 1 || *got.Bytes == 0 || got.Suspended {
		t.Errorf("partner: %+v", got)
	}
	if got := view.Partners.Items[1]; got.ID != other.ID || got.Merchants != 0 || *got.Events != 0 {
		t.Errorf("partner: %+v", got)
	}
	var hosts []string
	for _, h := range view.Hosts.Items {
		hosts = append(hosts, h.Host)
	}
	if got := strings.Join(hosts, " "); got != tag.Host+" tags.example.net api.example.net" && got != "tags.example.net "+tag.Host+" api.example.net" {
		t.Errorf("hosts: %s", got)
	}
	if view.Hosts.Total != 3 || view.Hosts.Due != 2 || view.Hosts.NotDNS != 0 {
		t.Errorf("hosts: %+v", view.Hosts)
	}
	for _, h := range view.Hosts.Items {
		if h.Host == tag.Host && (h.Partner != p.ID || h.Kind != "server-side" || !h.DNS.Connected || h.DNS.Detail != "It is right." || !h.Certificate.Due || h.Certificate.Detail != "no CAA") {
			t.Errorf("host: %+v %+v %+v", h, h.DNS, h.Certificate)
		}
	}
	if len(view.Disk.Parts) != 1 || view.Disk.Parts[0] != (Disk{"journal", 10, 100, 5}) || view.Disk.Reserve != 7 {
		t.Errorf("disk: %+v", view.Disk)
	}
	if r := view.Rates; r.EventsPerSecond != 0.5 || r.Refused != 10 || len(r.Causes) != 2 || r.Causes[0] != (causeJSON{"address_events", 7}) {
		t.Errorf("rates: %+v", r)
	}
	if b := view.Backups; b == nil || *b.Age != 7200 || !b.Last.Equal(start.Add(-2*time.Hour)) || b.Error != "no room" || b.Failures != 2 || b.Interval != 21600 {
		t.Errorf("backups: %+v", b)
	}
	if view.Suspended.Total != 0 || view.Suspended.Items == nil {
		t.Errorf("suspended: %+v", view.Suspended)
	}

	// What an operator does shows at once; the figures are counted again after a minute.
	for _, err := range []error{
		suspend(s, p.ID, m.ID, tag.ID),
		s.engine.Record(t.Context(), []store.Mark{event}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.get(cookie, overviewPath, &view)
	kinds := []string{}
	for _, item := range view.Suspended.Items {
		kinds = append(kinds, item.Kind+" "+item.Name)
	}
	if got := strings.Join(kinds, ", "); got != "partner Agency, merchant Shop, tag server-side" || view.Suspended.Total != 3 {
		t.Errorf("suspended: %s", got)
	}
	if !view.Partners.Items[0].Suspended || *view.Partners.Items[0].Events != 1 {
		t.Errorf("partner: %+v", view.Partners.Items[0])
	}
	s.setNow(s.time().Add(time.Minute))
	s.get(cookie, overviewPath, &view)
	if got := view.Partners; *got.Items[0].Events != 2 || !got.CountedAt.Equal(start.Add(time.Minute)) {
		t.Errorf("after a minute: %+v", got)
	}
}

// suspend suspends a partner, a merchant and a tag.
func suspend(s *service, p store.PartnerID, m store.MerchantID, tag store.TagID) error {
	_, err := s.engine.UpdatePartner(s.t.Context(), p, func(p store.Partner) store.Partner { p.Suspended = true; return p })
	_, err2 := s.engine.UpdateMerchant(s.t.Context(), m, func(m store.Merchant) store.Merchant { m.Suspended = true; return m })
	_, err3 := s.engine.UpdateTag(s.t.Context(), tag, func(t store.Tag) store.Tag { t.Suspended = true; return t })
	return errors.Join(err, err2, err3)
}

func TestAnOverviewOfAnEmptyService(t *testing.T) {
	s := newService(t)
	a := s.request("GET", overviewPath, "", "Cookie", s.operator(), "X-Console", "1").is(200)
	for _, part := range []string{`"partners":{"total":0,`, `"items":[]`, `"backups":null`, `"certificate":null`, `"causes":[]`, `"parts":[]`} {
		a.says(part)
	}
	if strings.Contains(a.body, ":[null") || strings.Contains(a.body, `"items":null`) {
		t.Errorf("a list is null: %s", a.body)
	}
}

func TestAudit(t *testing.T) {
	s := newService(t)
	p, key, _ := s.partner("Agency")
	_, otherKey, _ := s.partner("Other")
	cookie := s.operator()
	var log struct{ Entries []entryJSON }
	s.get(cookie, auditPath, &log)
	var actions []string
	for _, e := range log.Entries {
		actions = append(actions, string(e.Action))
	}
	if got := strings.Join(actions, " "); got != "session.begun link.made key.issued partner.added key.issued partner.added" {
		t.Errorf("newest first: %s", got)
	}
	if e := log.Entries[2]; e.Key != otherKey.ID || e.PartnerName != "Other" || store.FormatTime(e.At) != "2026-11-20T08:30:00Z" || e.Actor.Kind != store.ByService {
		t.Errorf("%+v", e)
	}
	if e := log.Entries[0]; e.Actor.Kind != store.ByLink || e.Actor.Name != log.Entries[1].Detail || e.Partner != "" {
		t.Errorf("%+v", e)
	}
	s.get(cookie, auditPath+"?limit=1&partnerId="+string(p.ID), &log)
	if len(log.Entries) != 1 || log.Entries[0].Key != key.ID {
		t.Errorf("%+v", log.Entries)
	}
	s.get(cookie, auditPath+"?before=2", &log)
	if len(log.Entries) != 1 || log.Entries[0].Action != store.PartnerAdded {
		t.Errorf("%+v", log.Entries)
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "limit=", "before=0", "before=-1", "before="} {
		name, _, _ := strings.Cut(query, "=")
		s.request("GET", auditPath+"?"+query, "", "Cookie", cookie, "X-Console", "1").fails(400, "VALIDATION_ERROR").says(name)
	}
}

// uncounted is an engine whose events cannot be counted, as while its index is rebuilt.
type uncounted struct{ store.Engine }

func (uncounted) Usage(context.Context, []store.MerchantID) ([]store.Usage, error) {
	return nil, store.Unavailable("the index is being rebuilt")
}

func TestAnOverviewWithoutFigures(t *testing.T) {
	s := newService(t, func(cfg *Config) { cfg.Engine = uncounted{cfg.Engine} })
	p, _, _ := s.partner("Agency")
	m, err := s.engine.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.engine.GenerateTag(t.Context(), m.ID, store.ClientSide, ""); err != nil {
		t.Fatal(err)
	}
	var view overviewJSON
	s.get(s.operator(), overviewPath, &view)
	if got := view.Partners.Items[0]; got.Merchants != 1 || got.Events != nil || got.Bytes != nil {
		t.Errorf("%+v", got)
	}
}
