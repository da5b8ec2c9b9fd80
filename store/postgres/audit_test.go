package postgres

import (
	"log/slog"
	"strings"
	"testing"

	"mtagd/store"
	"mtagd/store/postgres/pgtest"
)

// The entry of a change that was made is copied to the log of the process, and that of a change that failed is not.
func TestAuditEntriesAreLogged(t *testing.T) {
	var lines strings.Builder
	e, err := openURL(pgtest.Database(t), Options{Log: slog.New(slog.NewTextHandler(&lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	p, err := e.AddPartner(t.Context(), "Acme")
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner { p.ID = "x"; return p })
	if err == nil {
		t.Error("no error")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	want := "msg=audit id=1 action=partner.added actor=service partner=" + string(p.ID)
	if got := lines.String(); !strings.Contains(got, want) || strings.Count(got, "msg=audit") != 1 {
		t.Errorf("the log is %s, want %s", got, want)
	}
}
