package postgres

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/testenv"
)

// The entry of a change that was made is copied to the log of the process, and that of a change that failed is not.
func TestAuditEntriesAreLogged(t *testing.T) {
	var lines strings.Builder
	e, err := openURL(pgtest.Database(t), Options{Log: slog.New(slog.NewTextHandler(&lines, nil))})
	testenv.Check(t, err)
	p, err := e.AddPartner(t.Context(), "Acme")
	testenv.Check(t, err)
	_, err = e.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner { p.ID = "x"; return p })
	if err == nil {
		t.Error("no error")
	}
	testenv.Check(t, e.Close())
	want := "msg=audit id=1 action=partner.added actor=service partner=" + string(p.ID)
	if got := lines.String(); !strings.Contains(got, want) || strings.Count(got, "msg=audit") != 1 {
		t.Errorf("the log is %s, want %s", got, want)
	}
}

// A partner that has more young entries than its share is refused further ones, once a node has seen that, except when it
// takes access away. Later it may go on.
func TestChangesAreRefusedBeforeYoungEntriesAreDropped(t *testing.T) {
	var now atomic.Int64 // s since 1970
	e, err := openURL(pgtest.Database(t), Options{Log: quiet, Now: func() time.Time { return time.Unix(now.Load(), 0) }, AuditLimits: store.AuditLimits{Partners: 10, PartnerAge: time.Hour}})
	testenv.Check(t, err)
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	p, err := e.AddPartner(t.Context(), "Acme")
	testenv.Check(t, err)
	key, _, err := e.IssueKey(t.Context(), p.ID, store.KeyOptions{})
	testenv.Check(t, err)
	byKey := store.WithActor(t.Context(), store.Actor{Kind: store.ByKey, Name: string(key.ID)})
	toggle := func(ctx context.Context) error {
		_, err := e.UpdatePartner(ctx, p.ID, func(p store.Partner) store.Partner { p.Suspended = !p.Suspended; return p })
		return err
	}
	expect := func(entries int) {
		t.Helper()
		testenv.Check(t, e.Tidy(t.Context()))
		if all, err := e.Audit(t.Context(), store.AuditQuery{Limit: 100}); err != nil || len(all) != entries {
			t.Errorf("%d entries, %v; want %d", len(all), err, entries)
		}
	}
	for range 10 {
		testenv.Check(t, toggle(byKey))
	}
	expect(12)
	if err := toggle(byKey); !errors.Is(err, store.ErrAuditFull) {
		t.Errorf("one more: %v", err)
	}
	if err := toggle(t.Context()); err != nil {
		t.Errorf("of the service: %v", err)
	}
	if _, err := e.RevokeKey(byKey, key.ID, true); err != nil {
		t.Errorf("to revoke the key: %v", err)
	}
	expect(14)
	now.Add(3600)
	expect(10)
	if err := toggle(byKey); err != nil {
		t.Errorf("an hour later: %v", err)
	}
}
