package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/testenv"
)

func TestParseMoment(t *testing.T) {
	now := time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)
	for _, c := range []struct {
		text string
		want time.Time // zero: refused
	}{
		{"2026-11-19T08:30:00Z", now.Add(-24 * time.Hour)},
		{"2026-11-19T09:30:00+01:00", now.Add(-24 * time.Hour)},
		{"2026-11-20", time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)},
		{"24h", now.Add(-24 * time.Hour)},
		{"7d", now.Add(-7 * 24 * time.Hour)},
		{"-24h", time.Time{}},
		{"yesterday", time.Time{}},
		{"2026-11-31", time.Time{}},
		{"", time.Time{}},
	} {
		if got, err := parseMoment(c.text, now); !got.Equal(c.want) || (err == nil) == c.want.IsZero() {
			t.Errorf("%q: %v, %v, want %v", c.text, got, err, c.want)
		}
	}
}

// The user who runs a command is in the audit log, through the socket as the kernel says, and without a server.
func TestTheAuditLogNamesTheUser(t *testing.T) {
	me, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		testenv.Skip(t, "this user has no name")
	}
	data := t.TempDir()
	control, err := local.OpenControl(data, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client := Client{Data: data, Open: func(context.Context, bool) (Control, error) { return nil, errors.New("not needed") }}
	socket, err := Listen(data)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: Handler(control), ConnContext: ConnContext}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(socket) }()
	if _, err := client.Run(t.Context(), partnerAdd{Name: "Through the socket"}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(server.Close(), control.Close()); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}

	client.Open = func(context.Context, bool) (Control, error) { return local.OpenControl(data, local.Options{}) }
	if _, err := client.Run(t.Context(), partnerAdd{Name: "Without a server"}); err != nil {
		t.Fatal(err)
	}
	answer, err := client.Run(t.Context(), AuditCommand{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	var entries []store.AuditEntry
	if err := json.Unmarshal(answer, &entries); err != nil || len(entries) != 2 {
		t.Fatalf("%s, %v", answer, err)
	}
	for _, e := range entries {
		// Where somebody logged in as another user, both names are there.
		if e.Actor.Kind != store.ByOperator || e.Actor.Name != me.Username && !strings.HasSuffix(e.Actor.Name, " (as "+me.Username+")") {
			t.Errorf("the actor is %+v, want operator %s", e.Actor, me.Username)
		}
	}
}

func TestTheTableOfTheAuditLog(t *testing.T) {
	entries := []store.AuditEntry{
		{ID: 1, At: time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC), Actor: store.Actor{Kind: store.ByOperator, Name: "ann"},
			Action: store.PartnerSuspended, Partner: "p", Reason: "flood"},
		{ID: 2, At: time.Date(2026, 11, 20, 8, 30, 1, 0, time.UTC), Actor: store.Actor{Kind: store.ByService},
			Action: store.TagDisconnected, Partner: "p", Merchant: "m", Tag: "ss_1", Detail: "no_record"},
	}
	message, err := json.Marshal(entries)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (AuditCommand{}).Print(&out, message); err != nil {
		t.Fatal(err)
	}
	want := `TIME                  ACTOR         ACTION             PARTNER  SUBJECT  DETAIL
2026-11-20T08:30:00Z  operator ann  partner.suspended  p        -        reason: flood
2026-11-20T08:30:01Z  service       tag.disconnected   p        ss_1     no_record
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	out.Reset()
	if err := (AuditCommand{JSON: true}).Print(&out, []byte("null")); err != nil || out.Len() > 0 {
		t.Errorf("an empty log prints %q, %v", out.String(), err)
	}
}
