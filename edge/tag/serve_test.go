package tag

import (
	"strings"
	"testing"

	"mtagd/edge/tag/tagtest"
	"mtagd/partnerapi/openapi/openapitest"
	"mtagd/store"
)

func TestATagAnswersOnlyOnItsOwnHost(t *testing.T) {
	w := newWorld(t)
	client, server := string(w.Client.ID), string(w.ServerSide.ID)
	for _, tt := range []struct {
		name, host, path string
		status           int
		part             string
	}{
		{"a client-side tag on the client tag host", clientHost, "/mark/" + client, 201, ""},
		{"a host in capitals with a port", strings.ToUpper(clientHost) + ":8080", "/mark/" + client, 201, ""},
		{"a host with a trailing dot", clientHost + ".", "/mark/" + client, 201, ""},
		{"a server-side tag on its host", w.ServerSide.Host, "/mark/" + server, 201, ""},
		{"a preverified tag on the tracking domain", tagtest.TrackingHost, "/mark/" + string(w.Preverified.ID), 201, ""},
		{"a client-side tag on a server-side tag's host", w.ServerSide.Host, "/mark/" + client, 404, "Tag not found"},
		{"a server-side tag on the client tag host", clientHost, "/mark/" + server, 404, "Tag not found"},
		{"a server-side tag on another tag's host", tagtest.TrackingHost, "/mark/" + server, 404, "Tag not found"},
		{"an unknown tag", clientHost, "/mark/cs_unknown", 404, `{"success":false,"message":"Tag not found"}`},
		{"a tag in other case", clientHost, "/mark/" + strings.ToLower(client) + "X", 404, "Tag not found"},
		{"a percent-encoded tag id", clientHost, "/mark/" + strings.Replace(client, "_", "%5F", 1), 201, ""},
		{"a percent-encoded tag id in the query", clientHost, "/mark?tagId=" + strings.Replace(client, "_", "%5f", 1), 201, ""},
		{"a tag id that is percent-encoded twice", clientHost, "/mark/" + strings.Replace(client, "_", "%255F", 1), 404, "Tag not found"},
		{"a tag id in the query that is percent-encoded twice", clientHost, "/mark?tagId=" + strings.Replace(client, "_", "%255F", 1), 404, "Tag not found"},
		{"an encoded slash in a tag id", clientHost, "/mark/" + client + "%2F", 404, "Tag not found"},
		{"a malformed escape", clientHost, "/mark/" + client + "%5", 404, "Tag not found"},
		{"a malformed escape in the query", clientHost, "/mark?tagId=" + client + "%zz", 404, "Tag not found"},
		{"a tag that waits for DNS", w.Inactive.Host, "/mark/" + string(w.Inactive.ID), 403, `{"success":false,"message":"Tag is not active"}`},
		{"/id of a tag that waits for DNS", w.Inactive.Host, "/id/" + string(w.Inactive.ID), 403, "Tag is not active"},
		{"a tag in the query", clientHost, "/mark?tagId=" + client, 201, ""},
		{"a tag in a longer query", clientHost, "/mark?x=http://y&tagId=" + client + "&z=1", 201, ""},
		{"an empty tag id in the query", clientHost, "/mark?tagId=", 404, "Tag not found"},
		{"no tag id on a host of one tag", w.ServerSide.Host, "/mark", 201, ""},
		{"/id for the only tag of a host", w.ServerSide.Host, "/id", 200, `"muid":"m"`},
		{"a slash after the tag", clientHost, "/mark/" + client + "/", 404, "Not found"},
		{"a slash without a tag", clientHost, "/mark/", 404, "Not found"},
		{"two slashes", clientHost, "//mark/" + client, 404, "Not found"},
		{"dots in the path", clientHost, "/x/../mark/" + client, 404, "Not found"},
		{"another path", clientHost, "/", 404, `{"success":false,"message":"Not found"}`},
		{"a partner path on a tag host", clientHost, "/v1/partners/merchant", 404, "Not found"},
	} {
		t.Run(tt.name, func(t *testing.T) { w.do("POST", tt.host, tt.path, event).Want(t, tt.status, tt.part) })
	}
}

func TestAHostOfSeveralTagsNeedsATagID(t *testing.T) {
	w := newWorld(t)
	w.do("POST", clientHost, "/mark", event).Want(t, 201, "")
	p := w.Client.Partner
	m, err := w.Engine.AddMerchant(t.Context(), p, store.NewMerchant{Name: "Second"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Engine.GenerateTag(t.Context(), m.ID, w.Client.Type, ""); err != nil {
		t.Fatal(err)
	}
	w.do("POST", clientHost, "/mark", event).Want(t, 404, "Tag not found")
}

func TestASuspendedTagAcceptsNoEvents(t *testing.T) {
	w := newWorld(t)
	const suspended = `{"success":false,"message":"Tag is suspended"}`
	tag := string(w.Client.ID)
	for name, set := range map[string]func(on bool) error{
		"tag": func(on bool) error {
			_, err := w.Engine.UpdateTag(t.Context(), w.Client.ID, func(t store.Tag) store.Tag { t.Suspended = on; return t })
			return err
		},
		"merchant": func(on bool) error {
			_, err := w.Engine.UpdateMerchant(t.Context(), w.Merchant, func(m store.Merchant) store.Merchant { m.Suspended = on; return m })
			return err
		},
		"partner": func(on bool) error {
			_, err := w.Engine.UpdatePartner(t.Context(), w.Client.Partner, func(p store.Partner) store.Partner { p.Suspended = on; return p })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(w.Events(t))
			if err := set(true); err != nil {
				t.Fatal(err)
			}
			w.mark(event).Want(t, 403, suspended)
			w.mark("["+event+","+event+"]").Want(t, 403, suspended)
			w.do("POST", clientHost, "/mark?tagId="+tag, event).Want(t, 403, suspended)
			w.do("POST", clientHost, "/id/"+tag, event).Want(t, 403, suspended)
			w.do("GET", clientHost, "/script", "").Want(t, 200, "")
			w.do("GET", clientHost, "/health", "").Want(t, 200, "")
			if after := len(w.Events(t)); after != before {
				t.Errorf("%d events are listed, want %d", after, before)
			}
			if err := set(false); err != nil {
				t.Fatal(err)
			}
			w.mark(event).Want(t, 201, "")
		})
	}
}

func TestMethods(t *testing.T) {
	w := newWorld(t)
	mark := "/mark/" + string(w.Client.ID)
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
		if r.Status != tt.status || r.Header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: %d, Allow %q; want %d, %q", tt.method, tt.path, r.Status, r.Header.Get("Allow"), tt.status, tt.allow)
		}
	}
}

func TestHealthFollowsTheEngine(t *testing.T) {
	f := &tagtest.Faulty{}
	w := newWorld(t, replaceEngine(f))
	r := w.do("GET", clientHost, "/health", "")
	r.Want(t, 200, `{"status":"ok"}`)
	if r.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("Cache-Control %q", r.Header.Get("Cache-Control"))
	}
	f.NotReady = tagtest.ErrOnPurpose
	w.do("GET", clientHost, "/health", "").Want(t, 503, `{"status":"unavailable"}`)
}

func TestTheDocumentHasTheEndpoints(t *testing.T) {
	document, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	for e := endpointNone + 1; e < Endpoints; e++ {
		if document.Paths.Value("/"+e.String()) == nil {
			t.Errorf("openapi.yaml does not have /%s", e)
		}
	}
}
