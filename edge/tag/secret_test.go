package tag

import (
	"testing"
	"time"

	"mtagd/edge/tag/tagtest"
	"mtagd/store"
)

// requireSecret sets the merchant's option, and gives the merchant a secret.
func (w *world) requireSecret(required bool) (secret string) {
	w.Helper()
	s, text := store.NewSecret(time.Now())
	_, err := w.Engine.UpdateMerchant(w.Context(), w.Merchant, func(m store.Merchant) store.Merchant {
		m.IdentityRequiresSecret = required
		return m.WithSecret(s)
	})
	if err != nil {
		w.Fatal(err)
	}
	return string(text)
}

// sends sends a body to an endpoint of the client-side tag. An empty authorization sends no header.
func (w *world) sends(endpoint, body, authorization string, headers ...string) tagtest.Reply {
	w.Helper()
	if authorization != "" {
		headers = append(headers, "Authorization", authorization)
	}
	return w.do("POST", clientHost, "/"+endpoint+"/"+string(w.Client.ID), body, headers...)
}

const (
	secretIsWrong    = `{"success":false,"message":"Authorization must be Bearer with a secret of this merchant, or be left out"}`
	secretIsRequired = `{"success":false,"message":"This merchant resolves identifiers only with its secret: send a muid, or the header Authorization: Bearer with the secret"}`
)

func TestWhoMayIdentify(t *testing.T) {
	for _, c := range []struct {
		is             string
		required, sent bool // the option; the secret
		may            bool
	}{
		{"without the option everybody may", false, false, true},
		{"without the option a secret changes nothing", false, true, true},
		{"with the option nobody may without the secret", true, false, false},
		{"with the option and the secret one may", true, true, true},
	} {
		t.Run(c.is, func(t *testing.T) {
			w := newWorld(t)
			authorization := "Bearer " + w.requireSecret(c.required)
			if !c.sent {
				authorization = ""
			}
			// What is known from before.
			setOption(w, false)
			w.sends("mark", `{"muid":"ann","email":"ann@x.com","event":"PageView"}`, "").Want(t, 201, "")
			setOption(w, c.required)

			// The shop's own events always get in. They link only if they may.
			w.sends("mark", `{"muid":"eve","email":"ann@x.com","phone":"1","event":"Link"}`, authorization).Want(t, 201, "")
			w.sends("mark", `{"deviceId":"d","event":"Link"}`, authorization, "Cookie", "_muid=cookie").Want(t, 201, "")
			w.sends("id", `{"muid":"eve","deviceId":"e"}`, authorization).Want(t, 200, `{"success":true,"muid":"eve"}`)
			muids := map[string]string{
				`"email":"ann@x.com"`: "eve", `"phone":"1"`: "eve", `"deviceId":"d"`: "cookie", `"deviceId":"e"`: "eve",
			}
			for identifier, muid := range muids {
				mark, id := w.sends("mark", `{`+identifier+`,"event":"Resolve"}`, authorization), w.sends("id", `{`+identifier+`}`, authorization)
				if !c.may {
					mark.Want(t, 403, secretIsRequired)
					id.Want(t, 403, secretIsRequired)
					continue
				}
				mark.Want(t, 201, "")
				id.Want(t, 200, `{"success":true,"muid":"`+muid+`"}`)
			}
			// The answer does not depend on whether the person is known.
			for _, stranger := range []string{`"email":"nobody@x.com"`, `"phone":"99"`} {
				mark, id := w.sends("mark", `{`+stranger+`,"event":"Resolve"}`, authorization), w.sends("id", `{`+stranger+`}`, authorization)
				if !c.may {
					mark.Want(t, 403, secretIsRequired)
					id.Want(t, 403, secretIsRequired)
					continue
				}
				mark.Want(t, 404, "No muid found")
				id.Want(t, 200, `{"success":true,"muid":null}`)
			}
			w.sends("id", `{"email":" "}`, authorization).Want(t, 400, "muid, email, or deviceId is required.")

			// A batch has the same results as single events.
			results := `{"accepted":2,"results":[{"status":201,"message":"Event accepted"},{"status":201,"message":"Event accepted"}]}`
			if !c.may {
				results = `{"accepted":1,"results":[{"status":201,"message":"Event accepted"},{"status":403,` + secretIsRequired[1:] + `]}`
			}
			w.sends("mark", `[{"muid":"m","email":"m@x.com","event":"Batch"},{"email":"ann@x.com","event":"Batch"}]`, authorization).Want(t, 200, results)

			// What was linked, seen with the option off.
			setOption(w, false)
			want := map[string]string{`"email":"ann@x.com"`: `"ann"`, `"phone":"1"`: "null", `"deviceId":"d"`: "null", `"email":"m@x.com"`: "null"}
			if c.may {
				want = map[string]string{`"email":"ann@x.com"`: `"eve"`, `"phone":"1"`: `"eve"`, `"deviceId":"d"`: `"cookie"`, `"email":"m@x.com"`: `"m"`}
			}
			for identifier, muid := range want {
				w.sends("id", `{`+identifier+`}`, "").Want(t, 200, `{"success":true,"muid":`+muid+`}`)
			}
			// Identifiers stay in the events that were recorded: they are stored as they were sent.
			for _, e := range w.Events(t) {
				if e.Name == "Link" && e.MUID == "eve" && string(e.Raw) != `{"muid":"eve","email":"ann@x.com","phone":"1","event":"Link"}` {
					t.Errorf("raw_data is %s", e.Raw)
				}
			}
		})
	}
}

func setOption(w *world, required bool) {
	w.Helper()
	_, err := w.Engine.UpdateMerchant(w.Context(), w.Merchant, func(m store.Merchant) store.Merchant {
		m.IdentityRequiresSecret = required
		return m
	})
	if err != nil {
		w.Fatal(err)
	}
}

func TestAWrongSecretDoesNotGoUnnoticed(t *testing.T) {
	w := newWorld(t)
	secret := w.requireSecret(false)
	_, unknown := store.NewSecret(time.Now())
	_, key := store.NewKey("p", time.Now(), store.KeyOptions{})
	for _, c := range []struct {
		is, authorization string
		off, on           int // the status with the option off and on
	}{
		{"the secret", "Bearer " + secret, 201, 201},
		{"the scheme in any case", "bEARER " + secret, 201, 201},
		{"another secret", "Bearer " + string(unknown), 401, 401},
		{"a typing error", "Bearer " + secret[:len(secret)-1], 401, 401},
		{"without a scheme", secret, 401, 401},
		{"another scheme", "Basic " + secret, 401, 401},
		{"two spaces", "Bearer  " + secret, 401, 401},
		{"two secrets", "Bearer " + secret + ", Bearer " + secret, 401, 401},
		{"an empty variable", "Bearer", 201, 401},
		{"an API key", "Bearer " + string(key), 201, 401},
		{"the credentials of a proxy", "Basic YTpi", 201, 401},
		{"no header", "", 201, 201},
	} {
		t.Run(c.is, func(t *testing.T) {
			for option, want := range map[bool]int{false: c.off, true: c.on} {
				setOption(w, option)
				for _, body := range []string{event, "[" + event + "]"} {
					r := w.sends("mark", body, c.authorization)
					status := want
					if want == 201 && body != event {
						status = 200
					}
					if r.Want(t, status, ""); want != 401 {
						continue
					}
					r.Want(t, 401, secretIsWrong)
					if r.Header.Get("WWW-Authenticate") != "Bearer" {
						t.Errorf("WWW-Authenticate is %q", r.Header.Get("WWW-Authenticate"))
					}
				}
				if want == 401 {
					w.sends("id", event, c.authorization).Want(t, 401, secretIsWrong)
				}
			}
		})
	}
}

func TestASecretIsOneMerchantsOnly(t *testing.T) {
	w := newWorld(t)
	secret := w.requireSecret(true)
	// Another tag of the same merchant.
	w.do("POST", w.ServerSide.Host, "/id", `{"email":"a@x.com"}`, "Authorization", "Bearer "+secret).Want(t, 200, `"muid":null`)
	if _, err := w.Engine.UpdateTag(t.Context(), w.Inactive.ID, func(t store.Tag) store.Tag {
		return t.AfterVerify(store.DNSFinding{Verdict: store.DNSCorrect})
	}); err != nil {
		t.Fatal(err)
	}
	w.do("POST", w.Inactive.Host, "/id", `{"email":"a@x.com"}`, "Authorization", "Bearer "+secret).Want(t, 401, secretIsWrong)
	w.do("POST", w.Inactive.Host, "/id", `{"email":"a@x.com"}`).Want(t, 200, `"muid":null`)
}

func TestTwoHeadersAreNoSecret(t *testing.T) {
	w := newWorld(t)
	secret := w.requireSecret(true)
	ctx := newContext()
	ctx.Request.Header.Add("Authorization", "Bearer "+secret)
	ctx.Request.Header.Add("Authorization", "Bearer "+secret)
	w.serve(ctx, "POST", clientHost, "/mark/"+string(w.Client.ID), event).Want(t, 401, secretIsWrong)
}

// A secret in a page is no secret.
func TestAPageMayNotSendASecret(t *testing.T) {
	w := newWorld(t)
	for asked, allowed := range map[string]string{
		"authorization":                    "content-type",
		"content-type, x-y":                "content-type, x-y",
		"Authorization,content-type":       "content-type",
		"x-a, AUTHORIZATION ,x-b":          "x-a, x-b",
		"proxy-authorization, x-authorize": "proxy-authorization, x-authorize",
		"":                                 "content-type",
	} {
		r := w.do("OPTIONS", clientHost, "/mark/"+string(w.Client.ID), "", "Origin", "https://shop.com",
			"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", asked)
		if got := r.Header.Get("Access-Control-Allow-Headers"); r.Status != 204 || got != allowed {
			t.Errorf("asked for %q: %d, %q allowed; want %q", asked, r.Status, got, allowed)
		}
	}
}

// What a request can prove decides which links are trusted: those with the merchant's secret, and the first ones of a
// cookie's muid.
func TestSourcesOfLinks(t *testing.T) {
	const cookie = "_muid=ann"
	for _, c := range []struct {
		is, cookie string
		withSecret bool
		body       string
		claimed    int // events of ann that a request about her email leaves out
	}{
		{"anyone", "", false, `{"muid":"ann","email":"ann@x.com","event":"Login"}`, 1},
		{"a cookie of another visitor", "_muid=eve", false, `{"muid":"ann","email":"ann@x.com","event":"Login"}`, 1},
		{"the visitor's cookie", cookie, false, `{"email":"ann@x.com","event":"Login"}`, 0},
		{"the visitor's cookie, and the same muid in the body", cookie, false, `{"muid":"ann","email":"ann@x.com","event":"Login"}`, 0},
		{"the merchant's secret", "", true, `{"muid":"ann","email":"ann@x.com","event":"Login"}`, 0},
	} {
		t.Run(c.is, func(t *testing.T) {
			w := newWorld(t)
			authorization := ""
			if secret := w.requireSecret(false); c.withSecret {
				authorization = "Bearer " + secret
			}
			w.sends("mark", `{"muid":"ann","event":"PageView"}`, "").Want(t, 201, "")
			w.sends("mark", c.body, authorization, "Cookie", c.cookie).Want(t, 201, "")
			var ann store.Identity
			ann.Add(store.Email, "ann@x.com")
			claimed, err := w.Engine.PersonalData(t.Context(), w.Merchant, ann, false, func(*store.PersonalRecord) error { return nil })
			if err != nil || claimed != c.claimed {
				t.Errorf("%d events are claimed, want %d: %v", claimed, c.claimed, err)
			}
		})
	}
}
