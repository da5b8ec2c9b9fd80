package openapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store/testenv"
)

const (
	goDir         = "../client/go"
	typescriptDir = "../client/typescript"
)

// TestTheClients runs the same requests with both clients, through a network that fails each of them several times: before
// and after the service has done what was asked. Nothing may be there twice, nothing may be missing, and errors have their
// fields.
func TestTheClients(t *testing.T) {
	t.Run("Go", func(t *testing.T) {
		testContract(t, func(url, key string) ([]byte, error) {
			file := filepath.Join(t.TempDir(), "got.json")
			command := exec.CommandContext(t.Context(), "go", "test", "-C", goDir, "-vet=off", "-count=1", "-run", "TestContract")
			command.Env = append(os.Environ(), "CONTRACT="+url+" "+key+" "+file)
			if out, err := command.CombinedOutput(); err != nil {
				return out, err
			}
			return os.ReadFile(file)
		})
	})
	t.Run("TypeScript", func(t *testing.T) {
		node, dir := needNode(t), t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type":"module"}`), 0o600))
		out, err := exec.CommandContext(t.Context(), filepath.Join(typescriptDir, "node_modules/.bin/tsc"), "-p", typescriptDir, "--outDir", dir).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		testContract(t, func(url, key string) ([]byte, error) {
			return exec.CommandContext(t.Context(), node, filepath.Join(dir, "contract.js"), url, key).CombinedOutput()
		})
	})
}

func testContract(t *testing.T, run func(url, key string) ([]byte, error)) {
	s := newService(t)
	partner := s.fixture(true)
	network := &badNetwork{TB: t, service: s.url, attempts: map[string][]time.Time{}, hangs: make(chan struct{})}
	server := httptest.NewServer(network)
	defer server.Close()
	out, err := run(server.URL, partner.key)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var all []any
	for i := range 251 {
		all = append(all, float64(i))
	}
	want := map[string]any{
		"accepted": 250., "refused": 400., "listed": all, "followed": all, "forEver": true, "exported": 251., "brokenOff": "no answer",
		"secret": "no answer", "secrets": 1., "invalid": "400 VALIDATION_ERROR limit true true", "missing": "404 NOT_FOUND  true true",
		"stranger": "401 AUTHENTICATION_ERROR  true true", "nobody": "400   true true", "cancelled": "no answer",
	}
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s: got %v, want %v", name, got[name], want[name])
		}
	}
	answer := s.get(partner.key, "/v1/partners/merchant?name=Contract")
	if !strings.Contains(answer, `"totalItems":1`) {
		t.Errorf("there is not one merchant: %s", answer)
	}
	for request, times := range network.attempts {
		if n := len(times); strings.HasPrefix(request, "PATCH") && (n < 2 || times[n-1].Sub(times[n-2]) < time.Second) {
			t.Errorf("%s was repeated before Retry-After", request)
		}
		if strings.Contains(request, "/secret") && len(times) != 2 {
			t.Errorf("%s was sent %d times, although it may have been done", request, len(times))
		}
	}
}

func (s *service) get(key, path string) string {
	request, err := http.NewRequest(http.MethodGet, s.url+path, nil)
	must(s, err)
	_, body := s.send(key, request)
	return body
}

// badNetwork passes requests on to a service. Each fails four times before.
type badNetwork struct {
	testing.TB
	service  string
	hangs    chan struct{} // closed once a request hangs
	mu       sync.Mutex
	attempts map[string][]time.Time // by request
}

func (n *badNetwork) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/hangs" {
		<-n.hangs
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		n.Error(err)
	}
	request := strings.Join([]string{r.Method, r.URL.String(), r.Header.Get("Authorization"), r.Header.Get("Idempotency-Key"), string(body)}, " ")
	n.mu.Lock()
	n.attempts[request] = append(n.attempts[request], time.Now())
	attempt := len(n.attempts[request])
	n.mu.Unlock()

	faults := []string{"lost", "proxy", "cut", "busy"}
	switch {
	case strings.HasSuffix(r.URL.Path, "/config") && r.Header.Get("Authorization") != "":
		close(n.hangs)
		<-r.Context().Done()
		return
	case strings.HasSuffix(r.URL.Path, "/secret"):
		faults = []string{"busy", "lost"}
	case r.URL.Query().Get("format") == "csv":
		faults = []string{"cut"}
	case r.URL.Query().Get("format") != "":
		faults[2] = "lost" // who reads a stream sees where it breaks off
	}
	fault := ""
	if attempt <= len(faults) {
		fault = faults[attempt-1]
	}
	switch fault {
	case "proxy":
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, "<h1>Bad gateway</h1>")
		return
	case "busy":
		if r.Method == http.MethodPatch {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	forward, err := http.NewRequestWithContext(r.Context(), r.Method, n.service+r.URL.String(), bytes.NewReader(body))
	if err != nil {
		n.Error(err)
		return
	}
	forward.Header = r.Header.Clone()
	forward.Header.Del("Accept-Encoding")
	response, err := http.DefaultTransport.RoundTrip(forward)
	if err != nil {
		n.Error(err)
		return
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		n.Error(err)
	}
	switch fault {
	case "lost":
		panic(http.ErrAbortHandler)
	case "cut":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(response.StatusCode)
		_, _ = w.Write(answer[:len(answer)/2])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(answer)
}

// TestTheClientsAreUpToDate generates both clients again.
func TestTheClientsAreUpToDate(t *testing.T) {
	testenv.NotShort(t, "the go command")
	dir := t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	run("go", "build", "-pgo=off", "-o", dir+"/generate", "../client/generate")
	generate := func(kind, committed string) {
		t.Helper()
		run(dir+"/generate", kind, dir+"/generated")
		compare(t, dir+"/generated", committed)
	}
	generate("go", goDir+"/client.gen.go")
	generate("routes", typescriptDir+"/routes.ts")
	generate("json", "openapi.json")
	needNode(t)
	run(typescriptDir+"/node_modules/.bin/openapi-typescript", "openapi.json", "-o", dir+"/schema.ts")
	compare(t, dir+"/schema.ts", typescriptDir+"/schema.ts")
}

func compare(t *testing.T, generated, committed string) {
	t.Helper()
	got, err := os.ReadFile(generated)
	must(t, err)
	want, err := os.ReadFile(committed)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s is out of date: run make clients", committed)
	}
}

// needNode returns the program node. It skips the test without node and the packages of the TypeScript client.
func needNode(t *testing.T) string {
	t.Helper()
	node := testenv.Program(t, "node")
	if _, err := os.Stat(typescriptDir + "/node_modules"); err != nil {
		testenv.Missing(t, "the packages of the TypeScript client are not installed: make node")
	}
	return node
}
