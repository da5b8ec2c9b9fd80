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
)

// TestTheCommandsOfThePageWork runs the cURL command of each operation, as the page of the running service shows it. Each must
// succeed, and the answer must fit the document.
func TestTheCommandsOfThePageWork(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("the examples need curl")
	}
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
