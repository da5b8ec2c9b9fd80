package openapi_test

import (
	"bufio"
	"bytes"
	"encoding/json"
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

// TestTheCommandsOfTheDocumentWork runs the cURL command of each operation, as the document of the running service has it.
// Each must succeed, and the answer must fit the document.
func TestTheCommandsOfTheDocumentWork(t *testing.T) {
	testenv.Program(t, "curl")
	s := newService(t)
	_, text := s.send("", newRequest(t, "GET", s.url+"/v1/openapi.json", ""))
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	must(t, json.Unmarshal([]byte(text), &document))
	f := s.fixture(false)
	for _, o := range s.document.Operations() {
		t.Run(o.OperationID, func(t *testing.T) {
			var operation struct {
				Commands []struct{ Source string } `json:"x-codeSamples"`
			}
			must(t, json.Unmarshal(document.Paths[o.Path][strings.ToLower(o.Method)], &operation))
			if len(operation.Commands) != 1 {
				t.Fatalf("it has %d commands", len(operation.Commands))
			}
			if needsBare(o) {
				f = s.fixture(true)
			}
			status, body := run(t, s, o, f, f.example.Replace(operation.Commands[0].Source))
			if status < 200 || status > 299 {
				t.Errorf("%d %s", status, body)
			}
			if usesUp(o) {
				f = s.fixture(false)
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

// The page must load nothing but files of the service.
func TestThePageIsSelfContained(t *testing.T) {
	s := newService(t)
	_, page := s.send("", newRequest(t, "GET", s.url+"/v1/docs", ""))
	links := regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(page, -1)
	if len(links) != 5 {
		t.Errorf("the page has the links %q", links)
	}
	for _, link := range append(links, []string{"", "docs"}) {
		response, err := http.Get(s.url + "/v1/" + link[1])
		must(t, err)
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", link[1], response.Status)
		}
		if policy := response.Header.Get("Content-Security-Policy"); policy != "default-src 'none'; script-src 'self'; style-src 'self'; "+
			"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" {
			t.Errorf("%s: Content-Security-Policy %q", link[1], policy)
		}
	}
	if status, _ := s.send("", newRequest(t, "GET", s.url+"/v1/docs/other.js", "")); status != http.StatusNotFound {
		t.Errorf("a file that does not exist: %d", status)
	}
}

func newRequest(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must(t, err)
	return r
}
