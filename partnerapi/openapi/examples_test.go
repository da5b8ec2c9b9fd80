package openapi_test

import (
	"bufio"
	"bytes"
	"html"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mtagd/partnerapi/openapi/openapitest"
	"mtagd/store/testenv"
)

// TestTheCommandsOfThePageWork runs the cURL command of each operation, as the page of the running service shows it. Each
// must succeed, and the answer must fit the document.
func TestTheCommandsOfThePageWork(t *testing.T) {
	testenv.Program(t, "curl")
	s := newService(t)
	_, page := s.send("", newRequest(t, "GET", s.url+"/v1/docs", ""))
	for _, o := range s.document.Operations() {
		t.Run(o.OperationID, func(t *testing.T) {
			command := regexp.MustCompile(`(?s)<article id="` + o.OperationID + `".*?<pre class="curl"[^>]*>(.*?)</pre>`).FindStringSubmatch(page)
			if command == nil {
				t.Fatal("the page has no command")
			}
			f := s.fixture(needsBare(o))
			status, body := run(t, s, o, f, f.example.Replace(html.UnescapeString(command[1])))
			if status < 200 || status > 299 {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

// run runs a command, with a shell function in the place of curl that notes the answer.
func run(t *testing.T, s *service, o openapitest.Operation, f fixture, command string) (status int, body string) {
	t.Helper()
	dir := t.TempDir()
	head, file := filepath.Join(dir, "head"), filepath.Join(dir, "body")
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", `curl() { command curl -sS -D "$HEAD" -o "$BODY" "$@"; }`+"\n"+command)
	cmd.Env = append(os.Environ(), "KEY="+f.key, "HEAD="+head, "BODY="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s%s", err, command, out)
	}
	text, err := os.ReadFile(file)
	must(t, err)
	headers, err := os.ReadFile(head)
	must(t, err)
	response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(headers)), nil)
	must(t, err)
	response.Body.Close()
	(&service{TB: t, document: s.document}).check(o.Method, o.Path, response, text)
	return response.StatusCode, string(text)
}

// TestEventsOfFilesAndStreamsFitTheirSchema reads an event from an export and from a stream of the feed, whose bodies the
// document describes in words only.
func TestEventsOfFilesAndStreamsFitTheirSchema(t *testing.T) {
	s := newService(t)
	f := s.fixture(false)
	received := s.document.Components.Schemas["ReceivedEvent"]
	received.Ref = "#/components/schemas/ReceivedEvent"
	for _, c := range []struct{ uri, accept, before string }{
		{"/v1/partners/events/export?merchantId=0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11", "*/*", ""},
		{"/v1/partners/events/feed", "text/event-stream", "data: "},
	} {
		request := newRequest(t, "GET", s.url+f.example.Replace(c.uri), "")
		request.Header.Set("Authorization", "Bearer "+f.key)
		request.Header.Set("Accept", c.accept)
		response, err := http.DefaultClient.Do(request)
		must(t, err)
		found := false
		for lines := bufio.NewScanner(response.Body); !found && lines.Scan(); {
			if text, ok := strings.CutPrefix(lines.Text(), c.before); ok {
				found = true
				if err := s.document.CheckJSON(received, []byte(text)); err != nil {
					t.Errorf("%s: %v", c.uri, err)
				}
			}
		}
		response.Body.Close()
		if !found {
			t.Errorf("%s has no event", c.uri)
		}
	}
}

// The page must not load anything, and must work without a script.
func TestThePageIsSelfContained(t *testing.T) {
	s := newService(t)
	response, err := http.Get(s.url + "/v1/docs")
	must(t, err)
	response.Body.Close()
	policy := response.Header.Get("Content-Security-Policy")
	if !regexp.MustCompile(`^default-src 'none'; style-src 'sha256-[A-Za-z0-9+/=]{44}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'$`).MatchString(policy) {
		t.Errorf("Content-Security-Policy %q", policy)
	}
	_, page := s.send("", newRequest(t, "GET", s.url+"/v1/docs", ""))
	if loaded := regexp.MustCompile(`<script|<img|<link|<iframe|\bsrc=|\bstyle=|@import|url\(|\bon[a-z]+=`).FindAllString(page, -1); loaded != nil {
		t.Errorf("the page has %q", loaded)
	}
	ids := map[string]bool{}
	for _, id := range regexp.MustCompile(`\bid="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if ids[id[1]] || strings.ContainsAny(id[1], " %") {
			t.Errorf("the id %q is there twice or malformed", id[1])
		}
		ids[id[1]] = true
	}
	for _, link := range regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if anchor, ok := strings.CutPrefix(link[1], "#"); link[1] != "openapi.json" && (!ok || !ids[anchor]) {
			t.Errorf("the link %q leads nowhere", link[1])
		}
	}
}

func newRequest(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must(t, err)
	return r
}
