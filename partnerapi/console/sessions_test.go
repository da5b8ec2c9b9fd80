package console

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mtagd/store"
)

const (
	linkPath     = "/console/link"
	sessionsPath = "/console/sessions"
)

// asPage sends a request as the page sends it.
func (s *service) asPage(cookie, method, uri string) answer {
	s.t.Helper()
	return s.request(method, uri, "", "Cookie", cookie, "X-Console", "1")
}

func (s *service) readOnly(p store.PartnerID, opt store.KeyOptions) (cookie string) {
	s.t.Helper()
	opt.Scope = store.ReadOnly
	_, text, err := s.engine.IssueKey(s.t.Context(), p, opt)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.signIn(text).is(200).cookie()
}

// sessions returns the list that a session sees.
func (s *service) sessions(cookie string) (list struct {
	Sessions []signedInJSON
	Total    int
}) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.asPage(cookie, "GET", sessionsPath).is(200).body), &list); err != nil {
		s.t.Fatal(err)
	}
	return list
}

// Whoever opens a link sees whom it signs in before it is used. To look at it changes nothing.
func TestALinkIsLookedAtBeforeItIsUsed(t *testing.T) {
	s := newService(t)
	p, _, text := s.partner("Agency")
	for who, want := range map[store.PartnerID]string{
		p.ID: `{"role":"partner","partner":{"id":"` + string(p.ID) + `","name":"Agency"},"scope":"full","expiresAt":"2026-11-20T08:45:00Z"}`,
		"":   `{"role":"operator","scope":"read-only","expiresAt":"2026-11-20T08:45:00Z"}`,
	} {
		link := s.link(who)
		body := `{"link":"` + string(link) + `"}`
		s.request("POST", linkPath, body, "Sec-Fetch-Site", "cross-site").fails(403, "FORBIDDEN")
		s.request("POST", sessionPath, body, "Sec-Fetch-Site", "cross-site").fails(403, "FORBIDDEN")
		for range 2 {
			a := s.request("POST", linkPath, body).is(200)
			if a.body != want || len(a.header.Peek("Set-Cookie")) > 0 {
				t.Errorf("got  %s\nwant %s", a.body, want)
			}
		}
		s.useLink(link).is(200)
		s.request("POST", linkPath, body).fails(401, "AUTHENTICATION_ERROR")
	}
	s.request("POST", linkPath, `{"apiKey":"`+string(text)+`"}`).fails(400, "VALIDATION_ERROR").says("link")
	s.request("POST", linkPath, `{"link":"mtl_x"}`).fails(401, "AUTHENTICATION_ERROR")
}

func TestAPartnerSeesAndEndsItsSessions(t *testing.T) {
	s := newService(t)
	p, key, text := s.partner("Agency")
	_, _, otherText := s.partner("Other")
	other := s.signIn(otherText).is(200).cookie()
	if _, err := s.engine.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner { p.Suspended = true; return p }); err != nil {
		t.Fatal(err)
	}
	mine := s.signIn(text).is(200).cookie()
	s.setNow(s.time().Add(time.Minute))
	ofLink := s.useLink(s.link(p.ID)).is(200).cookie()
	s.setNow(s.time().Add(time.Minute))
	reader := s.readOnly(p.ID, store.KeyOptions{Name: "Ann"})

	list := s.sessions(mine)
	if len(list.Sessions) != 3 || list.Total != 3 {
		t.Fatalf("%+v", list)
	}
	if got := list.Sessions[0]; got.KeyName != "Ann" || got.Key == "" || got.Current || store.FormatTime(got.BegunAt) != "2026-11-20T08:32:00Z" || !got.SeenAt.Equal(got.BegunAt) || store.FormatTime(got.ExpiresAt) != "2026-11-20T20:32:00Z" {
		t.Errorf("of the second key: %+v", got)
	}
	if got := list.Sessions[1]; got.Link == "" || got.Key != "" || got.Current || store.FormatTime(got.SeenAt) != "2026-11-20T08:31:00Z" {
		t.Errorf("of the link: %+v", got)
	}
	if got := list.Sessions[2]; got.Key != key.ID || !got.Current || store.FormatTime(got.SeenAt) != "2026-11-20T08:32:00Z" {
		t.Errorf("this one: %+v", got)
	}
	if got := s.sessions(other); got.Total != 1 || !got.Sessions[0].Current {
		t.Errorf("the other partner sees %+v", got)
	}

	// Another partner's session is not found. One that can only read ends no other, and an operator has none of these.
	of := func(n int) string { return sessionsPath + "/" + string(list.Sessions[n].ID) }
	s.asPage(other, "DELETE", of(1)).fails(404, "NOT_FOUND")
	s.asPage(mine, "DELETE", sessionsPath+"/aaaaaaaaaaaa").is(404)
	s.asPage(reader, "DELETE", of(1)).fails(403, "FORBIDDEN")
	s.asPage(reader, "DELETE", of(0)).fails(403, "FORBIDDEN") // DELETE /console/session ends its own
	s.asPage(reader, "DELETE", sessionsPath).fails(403, "FORBIDDEN")
	s.asPage(reader, "GET", sessionsPath).is(200)
	s.asPage(s.operator(), "GET", sessionsPath).fails(403, "FORBIDDEN")
	s.asPage(s.operator(), "DELETE", of(1)).fails(403, "FORBIDDEN")
	s.request("DELETE", of(1), "", "Cookie", mine).is(401)
	s.request("DELETE", sessionsPath, "", "Cookie", mine, "X-Console", "1", "Sec-Fetch-Site", "same-site").is(401)
	s.request("GET", sessionsPath, "", "Authorization", "Bearer "+string(text)).is(401)
	s.asPage(mine, "POST", of(1)).is(405)
	if got := s.sessions(mine); got.Total != 3 {
		t.Errorf("%d are left", got.Total)
	}

	s.asPage(mine, "DELETE", of(1)).is(204)
	s.request("GET", sessionPath, "", "Cookie", ofLink).is(401)
	s.asPage(mine, "DELETE", of(1)).is(404)
	entries, err := s.engine.Audit(t.Context(), store.AuditQuery{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if e := entries[0]; e.Action != store.SessionEnded || e.Actor.Kind != store.ByKey || e.Actor.Name != string(key.ID) || e.Partner != p.ID ||
		e.Detail != string(list.Sessions[1].ID) {
		t.Errorf("the audit log has %+v", e)
	}

	unused := s.link(p.ID)
	s.asPage(mine, "DELETE", sessionsPath).is(204)
	for _, cookie := range []string{mine, reader} {
		s.request("GET", sessionPath, "", "Cookie", cookie).is(401)
	}
	s.useLink(unused).is(401)
	s.request("GET", sessionPath, "", "Cookie", other).is(200)
	if strings.Contains(s.log.String(), "mtc_") {
		t.Error("the log has a session")
	}
}

// A list has the newest sessions, and says how many there are.
func TestAListOfManySessions(t *testing.T) {
	s := newService(t)
	p, _, text := s.partner("Agency")
	for range maxSessions/store.MaxSessions + 1 {
		key, _, err := s.engine.IssueKey(t.Context(), p.ID, store.KeyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range store.MaxSessions {
			if _, _, err := s.engine.BeginSession(t.Context(), key.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.setNow(s.time().Add(time.Minute))
	list := s.sessions(s.signIn(text).is(200).cookie())
	if len(list.Sessions) != maxSessions || list.Total != maxSessions+store.MaxSessions+1 || !list.Sessions[0].Current {
		t.Errorf("%d of %d, %+v", len(list.Sessions), list.Total, list.Sessions[0])
	}
}

func TestASessionForPersonalData(t *testing.T) {
	s := newService(t)
	p, _, _ := s.partner("Agency")
	cookie := s.readOnly(p.ID, store.KeyOptions{Personal: true})
	s.asPage(cookie, "GET", sessionPath).is(200).says(`"scope":"read-only","personalData":true`)
	s.asPage(s.readOnly(p.ID, store.KeyOptions{}), "GET", sessionPath).is(200).says(`"scope":"read-only","expiresAt"`)
}
