package storetest

import (
	"context"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

// Steps prepare what a test is about. A step that fails ends the test.

func (b *bed) partner(name string) store.Partner {
	b.t.Helper()
	p, err := b.AddPartner(b.t.Context(), name)
	testenv.Check(b.t, err)
	return p
}

func (b *bed) preverified(p store.Partner, domain string) store.Partner {
	b.t.Helper()
	p, err := b.EnablePreverified(b.t.Context(), p.ID, domain)
	testenv.Check(b.t, err)
	return p
}

func (b *bed) changePartner(p store.Partner, change func(*store.Partner)) {
	b.t.Helper()
	_, err := b.UpdatePartner(b.t.Context(), p.ID, func(p store.Partner) store.Partner { change(&p); return p })
	testenv.Check(b.t, err)
}

func (b *bed) changeMerchant(id store.MerchantID, change func(*store.Merchant)) {
	b.t.Helper()
	_, err := b.UpdateMerchant(b.t.Context(), id, func(m store.Merchant) store.Merchant { change(&m); return m })
	testenv.Check(b.t, err)
}

func (b *bed) key(p store.Partner, expiresIn time.Duration) (store.Key, store.APIKey) {
	b.t.Helper()
	k, text, err := b.IssueKey(b.t.Context(), p.ID, store.KeyOptions{ExpiresIn: expiresIn})
	testenv.Check(b.t, err)
	return k, text
}

func (b *bed) merchant(p store.Partner, name string) store.Merchant {
	b.t.Helper()
	m, err := b.AddMerchant(b.t.Context(), p.ID, store.NewMerchant{Name: name})
	testenv.Check(b.t, err)
	return m
}

// tag generates a tag that the merchant does not have yet.
func (b *bed) tag(m store.Merchant, kind store.TagType, domain string) store.Tag {
	b.t.Helper()
	tag, created, err := b.GenerateTag(b.t.Context(), m.ID, kind, domain)
	if err != nil || !created {
		b.t.Fatalf("generate %s: created %v, %v", kind, created, err)
	}
	return tag
}

// shop creates a merchant with one client-side tag.
func (b *bed) shop() (store.MerchantID, store.TagID) {
	b.t.Helper()
	tag := b.tag(b.merchant(b.partner("Acme"), "Shop"), store.ClientSide, "")
	return tag.Merchant, tag.ID
}

// mark returns a mark with a muid; its event_time is the start of the test.
func mark(m store.MerchantID, tag store.TagID, muid store.MUID) store.Mark {
	return store.Mark{Merchant: m, Tag: tag, Identity: store.Identity{MUID: muid}, Name: "Purchase", Time: start, Raw: []byte(`{}`)}
}

func withEventID(mark store.Mark, eventID string) store.Mark {
	mark.DedupeID = eventID
	return mark
}

// identifier is an identifier of a user besides the muid.
type identifier struct {
	kind  store.IdentifierKind
	value string
}

func email(v string) identifier { return identifier{store.Email, v} }

func phone(v string) identifier { return identifier{store.Phone, v} }

func device(v string) identifier { return identifier{store.DeviceID, v} }

// who returns an identity with a muid, which may be empty, and identifiers. Links of it are made with the merchant's secret.
func who(muid store.MUID, identifiers ...identifier) store.Identity {
	return said(store.BySecret, muid, identifiers...)
}

// said is who, with another source of the links.
func said(by store.LinkSource, muid store.MUID, identifiers ...identifier) store.Identity {
	id := store.Identity{MUID: muid, Source: by}
	for _, i := range identifiers {
		id.Add(i.kind, i.value)
	}
	return id
}

// markOf returns a mark with an identity.
func markOf(m store.MerchantID, tag store.TagID, id store.Identity) store.Mark {
	e := mark(m, tag, "")
	e.Identity = id
	return e
}

// Record sends events again, as senders do, while the engine is unavailable: on a busy machine its database may be silent for a moment.
func (b *bed) Record(ctx context.Context, marks []store.Mark) (err error) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if err = b.Engine.Record(ctx, marks); store.KindOf(err) != store.KindUnavailable || time.Now().After(deadline) {
			return err
		}
	}
}

// record records marks, and expects these outcomes for the first of them.
func (b *bed) record(marks []store.Mark, want ...store.Outcome) {
	b.t.Helper()
	testenv.Check(b.t, b.Record(b.t.Context(), marks))
	for i, w := range want {
		if got := marks[i].Outcome; got != w {
			b.t.Errorf("mark %d: outcome %d, want %d", i, got, w)
		}
	}
}

func (b *bed) resolve(m store.MerchantID, id store.Identity) store.MUID {
	b.t.Helper()
	muid, err := b.Resolve(b.t.Context(), m, id)
	testenv.Check(b.t, err)
	return muid
}

// latest returns the cursor after the last event.
func (b *bed) latest() store.Cursor {
	b.t.Helper()
	cursor, err := b.Latest(b.t.Context())
	testenv.Check(b.t, err)
	return cursor
}

// list returns up to 1000 of a merchant's events, oldest first, and the total.
func (b *bed) list(m store.MerchantID) ([]store.Event, int) {
	b.t.Helper()
	page, err := b.Events(b.t.Context(), store.Query{Merchant: m, SortBy: store.ByTime, Asc: true, Limit: 1000})
	testenv.Check(b.t, err)
	return page.Events, page.Total
}
