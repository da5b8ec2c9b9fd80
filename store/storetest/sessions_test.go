package storetest

import (
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

func (b *bed) begin(k store.Key) (store.Session, store.SessionText) {
	b.t.Helper()
	s, text, err := b.BeginSession(b.t.Context(), k.ID)
	testenv.Check(b.t, err)
	return s, text
}

func (b *bed) link(partner store.PartnerID) (store.Session, store.SessionText) {
	b.t.Helper()
	link, text, err := b.AddLink(b.t.Context(), partner)
	testenv.Check(b.t, err)
	return link, text
}

// expectSession expects that a text is that of a valid session, or that it is not.
func (b *bed) expectSession(text store.SessionText, want bool) {
	b.t.Helper()
	if s, _, ok := b.Directory().AuthenticateSession(text, b.clock.Now()); ok != want {
		b.t.Errorf("the session %s is valid: %v, want %v", s.ID, ok, want)
	}
}

// expectNoLinks expects that none of these texts is that of a link.
func (b *bed) expectNoLinks(texts ...store.SessionText) {
	b.t.Helper()
	for _, text := range texts {
		_, err := b.Link(b.t.Context(), text)
		expectKind(b.t, err, store.KindNotFound)
		_, _, err = b.UseLink(b.t.Context(), text)
		expectKind(b.t, err, store.KindNotFound)
	}
}

var sessionTests = []test{
	{"a session has the scope of its key and is a use of it, after reopening too", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		key, _, err := b.IssueKey(t.Context(), p.ID, store.KeyOptions{Scope: store.ReadOnly})
		testenv.Check(t, err)
		_, text := b.begin(key)
		for range b.reopened {
			s, got, ok := b.Directory().AuthenticateSession(text, b.clock.Now())
			if !ok || s.Partner != p.ID || s.Key != key.ID || got.ID != key.ID || got.Scope != store.ReadOnly {
				t.Errorf("%+v, %+v, %v", s, got, ok)
			}
			if b.Directory().LastUse(key.ID).IsZero() {
				t.Error("the key was not used")
			}
		}
		other, otherText := b.begin(key)
		if s, _, _ := b.Directory().AuthenticateSession(otherText, b.clock.Now()); s.ID != other.ID {
			t.Errorf("the text of %s is that of %s", other.ID, s.ID)
		}
		wrong := []byte(otherText)
		wrong[30] = 'a' + (wrong[30]-'a'+1)%26
		b.expectSession(store.SessionText(wrong), false)
	}},
	{"it is stored when a session was last used, once in an hour", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		key, _ := b.key(p, 0)
		_, text := b.begin(key)
		began := b.clock.Now()
		expect := func(when string, want time.Duration) {
			t.Helper()
			list := b.Directory().Sessions(p.ID, b.clock.Now())
			if len(list) != 1 || list[0].SeenAt.Sub(began.Add(want)).Abs() > time.Minute {
				t.Errorf("%s: %+v, want that it was seen after %v", when, list, want)
			}
		}
		expect("unused", 0)
		for range 2 {
			b.clock.move(40 * time.Minute)
			b.expectSession(text, true)
		}
		expect("used after 40 and 80 minutes", 80*time.Minute)
		b.reopen() // at the latest when it closes
		expect("after reopening", 80*time.Minute)
		b.clock.move(10 * time.Minute)
		b.expectSession(text, true)
		expect("used ten minutes later", 90*time.Minute)
		b.reopen()
		expect("which is not stored yet", 80*time.Minute)
	}},
	{"a session ends with its life, its key and its partner", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		short, _ := b.key(p, time.Hour)
		long, _ := b.key(p, 0)
		_, ofShort := b.begin(short)
		_, ofLong := b.begin(long)
		b.expectSession(ofShort, true)
		b.clock.move(time.Hour)
		b.expectSession(ofShort, false)
		b.expectSession(ofLong, true)
		b.clock.move(store.SessionLife - time.Hour)
		b.expectSession(ofLong, false)

		_, ofLong = b.begin(long)
		_, link := b.link(p.ID)
		_, ofLink, err := b.UseLink(t.Context(), link)
		testenv.Check(t, err)
		if _, err := b.RevokeKey(t.Context(), long.ID, true); err != nil {
			t.Fatal(err)
		}
		b.expectSession(ofLong, false)
		b.expectSession(ofLink, true)
		if _, err := b.DeletePartner(t.Context(), p.ID, true); err != nil {
			t.Fatal(err)
		}
		b.expectSession(ofLink, false)
		b.reopen()
		b.expectSession(ofLink, false)
	}},
	{"a session that was ended stays so", func(t *testing.T, b *bed) {
		key, _ := b.key(b.partner("Acme"), 0)
		s, text := b.begin(key)
		_, other := b.begin(key)
		testenv.Check(t, b.EndSession(t.Context(), s.ID))
		for range 2 {
			b.expectSession(text, false)
			b.expectSession(other, true)
			expectKind(t, b.EndSession(t.Context(), s.ID), store.KindNotFound)
			b.kill()
		}
	}},
	{"all sessions and links of a partner, or of operators, end together", func(t *testing.T, b *bed) {
		p, other := b.partner("Acme"), b.partner("Other")
		key, _ := b.key(p, 0)
		otherKey, _ := b.key(other, 0)
		_, ofKey := b.begin(key)
		_, ofOther := b.begin(otherKey)
		begin := func(partner store.PartnerID) store.SessionText {
			_, link := b.link(partner)
			_, text, err := b.UseLink(t.Context(), link)
			testenv.Check(t, err)
			return text
		}
		b.clock.move(time.Minute)
		ofLink, ofOperator := begin(p.ID), begin("")
		for range b.reopened {
			if list := b.Directory().Sessions(p.ID, b.clock.Now()); len(list) != 2 || list[0].Link == "" || list[1].Key != key.ID {
				t.Errorf("the sessions, newest first: %+v", list)
			}
		}
		_, unused := b.link(p.ID)
		n := len(b.auditLog())
		if ended, err := b.EndSessions(t.Context(), p.ID); err != nil || ended != 3 {
			t.Errorf("%d ended, %v; want 3", ended, err)
		}
		if left := b.Directory().Sessions(p.ID, b.clock.Now()); len(left) != 0 {
			t.Errorf("these are left: %+v", left)
		}
		if got := len(b.auditLog()) - n; got != 3 {
			t.Errorf("%d audit entries", got)
		}
		for range b.reopened {
			b.expectSession(ofKey, false)
			b.expectSession(ofLink, false)
			b.expectSession(ofOther, true)
			b.expectSession(ofOperator, true)
			b.expectNoLinks(unused)
		}
		if ended, err := b.EndSessions(t.Context(), ""); err != nil || ended != 1 {
			t.Errorf("%d ended, %v; want 1", ended, err)
		}
		b.expectSession(ofOperator, false)
		b.expectSession(ofOther, true)
		_, err := b.EndSessions(t.Context(), store.NewPartnerID())
		expectKind(t, err, store.KindNotFound)
	}},
	{"a link begins one session, after reopening too, and is none itself", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		link, text := b.link(p.ID)
		b.reopen()
		b.expectSession(text, false)
		for range 2 {
			if got, err := b.Link(t.Context(), text); err != nil || got.ID != link.ID || got.Partner != p.ID {
				t.Errorf("the link is %+v, %v", got, err)
			}
		}
		expectKind(t, b.EndSession(t.Context(), link.ID), store.KindNotFound)
		var begun []store.SessionText
		for _, r := range atOnce(4, func(int) (r struct {
			s    store.Session
			text store.SessionText
			err  error
		}) {
			r.s, r.text, r.err = b.UseLink(t.Context(), text)
			return r
		}) {
			if r.err != nil {
				expectKind(t, r.err, store.KindNotFound)
				continue
			}
			if r.s.Partner != p.ID || r.s.Key != "" || r.s.Link != link.ID {
				t.Errorf("got %+v", r.s)
			}
			begun = append(begun, r.text)
		}
		if len(begun) != 1 {
			t.Fatalf("%d sessions", len(begun))
		}
		b.kill()
		b.expectSession(begun[0], true)
		b.expectNoLinks(text, begun[0], "mtl_", "")
	}},
	{"a link ends after its time, and with its partner", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		late, lateText := b.link(p.ID)
		if got := late.ExpiresAt.Sub(late.CreatedAt); got != store.LinkLife {
			t.Errorf("it lasts %v", got)
		}
		b.clock.move(store.LinkLife)
		b.expectNoLinks(lateText)
		_, orphan := b.link(p.ID)
		if _, err := b.DeletePartner(t.Context(), p.ID, true); err != nil {
			t.Fatal(err)
		}
		b.expectNoLinks(orphan)
		_, _, err := b.AddLink(t.Context(), p.ID)
		expectKind(t, err, store.KindNotFound)
	}},
	{"a link without a partner begins an operator's session", func(t *testing.T, b *bed) {
		_, text := b.link("")
		s, session, err := b.UseLink(t.Context(), text)
		if err != nil || !s.IsOperators() {
			t.Fatal(s, err)
		}
		b.expectSession(session, true)
	}},
	{"a session begins with a valid key only", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		revoked, _ := b.key(p, 0)
		if _, err := b.RevokeKey(t.Context(), revoked.ID, true); err != nil {
			t.Fatal(err)
		}
		expired, _ := b.key(p, time.Nanosecond)
		for _, id := range []store.KeyID{revoked.ID, expired.ID, "aaaaaaaaaaaa", ""} {
			_, _, err := b.BeginSession(t.Context(), id)
			expectKind(t, err, store.KindNotFound)
		}
	}},
	{"the oldest session of a key ends when it has too many", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		key, _ := b.key(p, 0)
		other, _ := b.key(p, 0)
		_, ofOther := b.begin(other)
		var texts []store.SessionText
		for range store.MaxSessions + 1 {
			_, text := b.begin(key)
			texts = append(texts, text)
		}
		for range b.reopened {
			b.expectSession(ofOther, true)
			b.expectSession(texts[0], false)
			b.expectSession(texts[1], true)
			b.expectSession(texts[store.MaxSessions], true)
		}
	}},
	{"links and sessions are in the audit log", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		key, _ := b.key(p, 0)
		n := len(b.auditLog())
		s, _ := b.begin(key)
		link, text := b.link(p.ID)
		ctx := store.WithActor(t.Context(), link.Actor())
		begun, _, err := b.UseLink(ctx, text)
		testenv.Check(t, err)
		testenv.Check(t, b.EndSession(store.WithActor(t.Context(), begun.Actor()), begun.ID))
		if _, _, err := b.UseLink(ctx, text); err == nil {
			t.Fatal("the link was used twice")
		}
		service, byLink := store.Actor{Kind: "service"}, store.Actor{Kind: "link", Name: string(link.ID)}
		b.expectAudit(n,
			store.AuditEntry{Actor: service, Action: "session.begun", Partner: p.ID, Key: key.ID, Detail: string(s.ID)},
			store.AuditEntry{Actor: service, Action: "link.made", Partner: p.ID, Detail: string(link.ID)},
			store.AuditEntry{Actor: byLink, Action: "session.begun", Partner: p.ID, Detail: string(begun.ID)},
			store.AuditEntry{Actor: byLink, Action: "session.ended", Partner: p.ID, Detail: string(begun.ID)},
		)
	}},
}
