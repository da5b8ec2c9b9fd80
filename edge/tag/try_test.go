package tag

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"mtagd/edge/tag/tagtest"
	"mtagd/store"
)

func (w *world) try(tag store.Tag, body string, withSecret bool) Trial {
	w.Helper()
	ctx := newContext()
	ctx.Request.SetBodyString(body)
	trial, err := Try(w.Context(), ctx, w.server.cfg.Engine, tag, withSecret, time.Now())
	if err != nil {
		w.Fatal(err)
	}
	return trial
}

// TestTryAnswersLikeMark sends each body to both. A trial must have the status and the body of the answer, and record
// nothing.
func TestTryAnswersLikeMark(t *testing.T) {
	w := newWorld(t)
	w.mark(`{"muid":"known","email":"known@example.com","event":"Login"}`).Want(t, 201, "")
	for _, body := range []string{
		event, "", "{", `{"muid":`, "7", "null", "[]", "[7]", "[" + event, "\x1f\x8b\xff", "{\"a\":\"\xff\"}", `{}`, `{"muid":"m"}`,
		`{"muid":"m","event":"purchase"}`, `{"muid":"m","event":"Purchse"}`, `{"email":"known@example.com","event":"Login"}`,
		`{"email":"other@example.com","event":"Login"}`, `{"muid":"m","event":"Login","event_id":7}`, `{"muid":"m","event":"Login","n":1e999}`,
		`{"muid":"m","event":"Login","event":"Logout"}`, "\ufeff " + event + "\n",
		`[` + event + `,{"email":"known@example.com","event":"Login"},{"email":"other@example.com","event":"Login"},"x",{"muid":"m","event":"?"}]`,
		`[{"email":"new1@example.com","event":"Login"},{"muid":"new","email":"new1@example.com","event":"Login"},{"email":"new1@example.com","event":"Login"}]`,
		"[" + strings.Repeat(event+",", 1000) + event + "]",
		strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65),
	} {
		before := len(w.Events(t))
		trial := w.try(w.Client, body, false)
		if n := len(w.Events(t)); n != before {
			t.Errorf("%.60q: the trial has recorded %d events", body, n-before)
		}
		r := w.mark(body)
		if trial.Status != r.Status || string(trial.Answer) != r.Body {
			t.Errorf("%.60q: the trial answers %d %s\nmark %d %s", body, trial.Status, trial.Answer, r.Status, r.Body)
		}
		for _, f := range trial.Findings {
			if (f.Level == "error") != (trial.Status >= 400) && trial.Status != 200 {
				t.Errorf("%.60q: %d with %+v", body, trial.Status, f)
			}
			break // the error comes first
		}
	}
}

func TestFindingsOfATrial(t *testing.T) {
	w := newWorld(t)
	for body, want := range map[string]string{
		`{"muid":"m","event":"add to cart","event_id":"1","products":7}`:         "error event_malformed /event AddToCart",
		`{"muid":"m","type":"Purchse","event_id":"1"}`:                           "warning unknown_event /type Purchase",
		`[` + event + `,{"muid":"m","event":"Lead","event_id":"1","value":"7"}]`: "info no_event_id /0 |warning wrong_type /1/value |info no_currency /1/currency ",
		`{"muid":"m","event":"Login","event_id":"1"}`:                            "",
		`{"muid":"m"`: "error not_json  ",
		`[{"muid":"m","event":"Login","event_id":"1"},{"event":"Login","event_id":"2"}]`: "error no_identifier /1 ",
	} {
		var got []string
		for _, f := range w.try(w.Client, body, false).Findings {
			got = append(got, fmt.Sprintf("%s %s %s %s", f.Level, f.Code, f.Path, f.Suggestion))
		}
		if text := strings.Join(got, "|"); text != want {
			t.Errorf("%s\ngot  %q\nwant %q", body, text, want)
		}
	}
	if n := len(w.try(w.Client, "["+strings.Repeat(event+",", 999)+event+"]", false).Findings); n < maxTrialFindings || n > maxTrialFindings+50 {
		t.Errorf("%d findings of a large batch", n)
	}
}

// The state of the tag and of the service comes first, as in POST /mark.
func TestTrialsByState(t *testing.T) {
	faulty := &tagtest.Faulty{}
	w := newWorld(t, replaceEngine(faulty))
	if got := w.try(w.Inactive, `{"muid":"m","event":"Purchse"}`, false); got.Status != 403 || got.Findings[0].Code != "tag_not_active" || got.Findings[1].Code != "unknown_event" {
		t.Errorf("%+v", got)
	}
	if _, err := w.Engine.UpdateMerchant(t.Context(), w.Merchant, func(m store.Merchant) store.Merchant {
		secret, _ := store.NewSecret(time.Now())
		m = m.WithSecret(secret)
		m.IdentityRequiresSecret = true
		return m
	}); err != nil {
		t.Fatal(err)
	}
	if got := w.try(w.Client, `{"email":"a@b.c","event":"Login"}`, false); got.Status != 403 || got.Findings[0].Code != "secret_required" {
		t.Errorf("%+v", got)
	}
	if got := w.try(w.Client, `{"email":"a@b.c","event":"Login"}`, true); got.Status != 404 {
		t.Errorf("%+v", got)
	}
	faulty.NotReady = errors.New("the disk is full")
	if got := w.try(w.Client, event, false); got.Status != 503 || got.Findings[0].Code != "unavailable" {
		t.Errorf("%+v", got)
	}
}
