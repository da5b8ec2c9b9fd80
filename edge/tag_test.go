package edge

import (
	"errors"
	"strings"
	"testing"

	"mtagd/store"
)

const event = `{"muid":"m","event":"PageView"}`

func TestATagAnswersOnItsOwnHostAlone(t *testing.T) {
	w := newWorld(t)
	client, server := string(w.client.ID), string(w.serverSide.ID)
	for _, tt := range []struct {
		name, host, path string
		status           int
		part             string
	}{
		{"a client-side tag on the client tag host", clientHost, "/mark/" + client, 201, ""},
		{"a host in capitals with a port", strings.ToUpper(clientHost) + ":8080", "/mark/" + client, 201, ""},
		{"a host with a trailing dot", clientHost + ".", "/mark/" + client, 201, ""},
		{"a server-side tag on its host", w.serverSide.Host, "/mark/" + server, 201, ""},
		{"a preverified tag on the tracking domain", trackingHost, "/mark/" + string(w.preverified.ID), 201, ""},
		{"a client-side tag on a server-side tag's host", w.serverSide.Host, "/mark/" + client, 404, "Tag not found"},
		{"a server-side tag on the client tag host", clientHost, "/mark/" + server, 404, "Tag not found"},
		{"a server-side tag on another tag's host", trackingHost, "/mark/" + server, 404, "Tag not found"},
		{"an unknown tag", clientHost, "/mark/cs_unknown", 404, `{"success":false,"message":"Tag not found"}`},
		{"a tag in other case", clientHost, "/mark/" + strings.ToLower(client) + "X", 404, "Tag not found"},
		{"a tag id with an escape", clientHost, "/mark/%63" + client[1:], 404, "Tag not found"},
		{"a tag that waits for DNS", w.inactive.Host, "/mark/" + string(w.inactive.ID), 403, `{"success":false,"message":"Tag is not active"}`},
		{"the id of a tag that waits for DNS", w.inactive.Host, "/id/" + string(w.inactive.ID), 403, "Tag is not active"},
		{"a tag in the query", clientHost, "/mark?tagId=" + client, 201, ""},
		{"a tag in a longer query", clientHost, "/mark?x=http://y&tagId=" + client + "&z=1", 201, ""},
		{"an empty tag in the query", clientHost, "/mark?tagId=", 404, "Tag not found"},
		{"no tag on a host of one tag", w.serverSide.Host, "/mark", 201, ""},
		{"an id for the only tag of a host", w.serverSide.Host, "/id", 200, `"muid":"m"`},
		{"a slash after the tag", clientHost, "/mark/" + client + "/", 404, "Not found"},
		{"a slash without a tag", clientHost, "/mark/", 404, "Not found"},
		{"two slashes", clientHost, "//mark/" + client, 404, "Not found"},
		{"dots in the path", clientHost, "/x/../mark/" + client, 404, "Not found"},
		{"another path", clientHost, "/", 404, `{"success":false,"message":"Not found"}`},
		{"a partner path on a tag host", clientHost, "/v1/partners/merchant", 404, "Not found"},
		{"the base host is the partner API's", baseHost, "/mark/" + client, 200, `{"partner":"/mark/`},
		{"a foreign host", "evil.test", "/mark/" + client, 421, `{"success":false,"message":`},
		{"a partner path on a foreign host", "evil.test", "/v1/partners/merchant", 421, `"statusCode":421`},
		{"a host behind a user name", "x@" + clientHost, "/mark/" + client, 400, ""},
	} {
		t.Run(tt.name, func(t *testing.T) { w.do("POST", tt.host, tt.path, event).want(t, tt.status, tt.part) })
	}
}

func TestNoTagIsMeantOnAHostOfSeveral(t *testing.T) {
	w := newWorld(t)
	w.do("POST", clientHost, "/mark", event).want(t, 201, "")
	p := w.client.Partner
	m, err := w.engine.AddMerchant(t.Context(), p, "Second", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.engine.GenerateTag(t.Context(), m.ID, w.client.Type, ""); err != nil {
		t.Fatal(err)
	}
	w.do("POST", clientHost, "/mark", event).want(t, 404, "Tag not found")
}

func TestOneHostForBothSurfaces(t *testing.T) {
	w := newWorld(t, func(cfg *Config) { cfg.ClientTagHost = baseHost })
	w.do("POST", baseHost, "/mark/"+string(w.client.ID), event, "Origin", "https://shop.test").want(t, 201, "")
	w.do("GET", baseHost, "/health", "").want(t, 200, "ok")
	for _, path := range []string{"/", "/v1/partners/merchant", "/marks", "/demo/"} {
		r := w.do("GET", baseHost, path, "", "Origin", "https://shop.test")
		r.want(t, 200, `{"partner":"`+path)
		if r.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: the partner API answered with CORS", path)
		}
	}
}

func TestMethods(t *testing.T) {
	w := newWorld(t)
	mark := "/mark/" + string(w.client.ID)
	for _, tt := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", mark, 405, "POST, OPTIONS"},
		{"DELETE", "/id", 405, "POST, OPTIONS"},
		{"POST", "/script", 405, "GET, HEAD, OPTIONS"},
		{"PUT", "/health", 405, "GET, HEAD, OPTIONS"},
		{"HEAD", "/health", 200, ""},
		{"HEAD", "/script", 200, ""},
		{"OPTIONS", mark, 204, "POST, OPTIONS"},
		{"GET", "/health/", 404, ""},
		{"GET", "/script/x", 404, ""},
	} {
		r := w.do(tt.method, clientHost, tt.path, "")
		if r.status != tt.status || r.header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: %d, Allow %q; want %d, %q", tt.method, tt.path, r.status, r.header.Get("Allow"), tt.status, tt.allow)
		}
	}
}

func TestEveryAnswerOfATagHostCanBeReadByThePage(t *testing.T) {
	f := &faulty{}
	w := newWorld(t, replaceEngine(f))
	check := func(name string, r reply, status int) {
		t.Helper()
		h := r.header
		if r.status != status || h.Get("Access-Control-Allow-Origin") != "https://shop.test" ||
			h.Get("Access-Control-Allow-Credentials") != "true" || !strings.Contains(strings.Join(h.Values("Vary"), ","), "Origin") {
			t.Errorf("%s: %d %v", name, r.status, h)
		}
	}
	origin := []string{"Origin", "https://shop.test"}
	mark := "/mark/" + string(w.client.ID)
	check("accepted", w.do("POST", clientHost, mark, event, origin...), 201)
	check("refused", w.do("POST", clientHost, mark, `{}`, origin...), 400)
	check("too large", w.do("POST", clientHost, mark, strings.Repeat("x", 2<<20), origin...), 413)
	check("unknown tag", w.do("POST", clientHost, "/mark/x", event, origin...), 404)
	check("unknown path", w.do("GET", clientHost, "/nothing", "", origin...), 404)
	check("script", w.do("GET", clientHost, "/script", "", origin...), 200)
	f.ready = errors.New("not ready")
	check("not ready", w.do("GET", w.serverSide.Host, "/health", "", origin...), 503)
	f.record = func([]store.Mark) error { panic("on purpose") }
	check("panic", w.do("POST", clientHost, mark, event, origin...), 500)

	r := w.do("OPTIONS", clientHost, mark, "", append(origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type, x-y")...)
	check("preflight", r, 204)
	if r.header.Get("Access-Control-Allow-Headers") != "content-type, x-y" || r.header.Get("Access-Control-Max-Age") != "86400" ||
		!strings.Contains(r.header.Get("Access-Control-Allow-Methods"), "POST") {
		t.Errorf("preflight: %v", r.header)
	}
	if r := w.do("POST", "evil.test", mark, event, origin...); r.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a foreign host answered with CORS")
	}
	if r := w.do("POST", clientHost, mark, event); len(r.header.Values("Access-Control-Allow-Origin")) != 0 {
		t.Errorf("CORS without an Origin")
	}
}

func TestHealthFollowsTheEngine(t *testing.T) {
	f := &faulty{}
	w := newWorld(t, replaceEngine(f))
	r := w.do("GET", clientHost, "/health", "")
	r.want(t, 200, `{"status":"ok"}`)
	if r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("Cache-Control %q", r.header.Get("Cache-Control"))
	}
	f.ready = errOnPurpose
	w.do("GET", clientHost, "/health", "").want(t, 503, `{"status":"unavailable"}`)
}
