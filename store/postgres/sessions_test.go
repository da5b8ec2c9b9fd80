package postgres

import (
	"testing"

	"mtagd/store/pgtest"
	"mtagd/store/testenv"
)

// In service, the database's clock decides whether a link is still valid.
func TestALinkByTheServersClock(t *testing.T) {
	e, err := openURL(pgtest.Database(t), Options{Log: quiet})
	testenv.Check(t, err)
	defer e.Close()
	link, text, err := e.AddLink(t.Context(), "")
	testenv.Check(t, err)
	if got, err := e.Link(t.Context(), text); err != nil || got.ID != link.ID {
		t.Errorf("%+v, %v", got, err)
	}
	if _, _, err := e.UseLink(t.Context(), text); err != nil {
		t.Error(err)
	}
}
