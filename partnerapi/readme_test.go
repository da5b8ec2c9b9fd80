package partnerapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mtagd/edge/refused"
	"mtagd/store"
	"mtagd/store/testenv"
)

// TestReadmeExamples runs the commands of README.md, in their order. Each answer must have the fields of
// the JSON that the README shows below the command.
func TestReadmeExamples(t *testing.T) {
	testenv.Program(t, "curl")
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```sh\n(.*?)```.*?```json\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if n := strings.Count(string(readme), "```sh\n"); n != 12 || len(examples) != n {
		t.Fatalf("README.md has %d commands, %d of them with an answer; want 12 of both", n, len(examples))
	}

	s := newService(t)
	s.certificates = &certificates{state: store.Certificate{Status: store.CertificateValid, NotAfter: s.now()}}
	s.serve(s.engine, &s.dns)
	s.finds(store.DNSCorrect)
	p := s.partner("Agency")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.listen(listener)

	variables := map[string]string{"API": "http://" + listener.Addr().String() + "/v1/partners", "KEY": p.key}
	for _, example := range examples {
		cmd := exec.Command("sh", "-euc", example[1])
		cmd.Env = os.Environ()
		for name, value := range variables {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s%v: %s", example[1], err, out)
		}
		var shown, got any
		if err := json.Unmarshal([]byte(example[2]), &shown); err != nil {
			t.Errorf("%s%v", example[2], err)
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s%v: %s", example[1], err, out)
		}
		compareShapes(t, strings.TrimSpace(example[1]), shown, got)

		// What the next commands need.
		a := answer{t: t, body: string(out)}
		switch {
		case strings.Contains(example[1], "/merchant\""):
			variables["MERCHANT"] = a.str("merchantId")
		case strings.Contains(example[1], "/generate"):
			variables["TAG"], variables["HOST"] = a.str("tagId"), a.str("record.name")+".example.com"
			s.record(variables["MERCHANT"], variables["TAG"], event{at: "2026-11-20T08:29:59Z", name: "Purchase",
				raw: `{"event": "Purchase", "email": "ann@example.com", "value": 89, "currency": "EUR"}`})
			p.refuse(variables["MERCHANT"], variables["TAG"], func(e *refused.Event) {
				e.Object = []byte(`{"event": "add_to_cart", "muid": "visitor-1", "value": 89, "currency": "EUR"}`)
			})
		}
	}
}

// compareShapes demands that two JSON values have the same names and types. null matches any type.
func compareShapes(t *testing.T, at string, shown, got any) {
	t.Helper()
	if shown == nil || got == nil {
		return
	}
	if fmt.Sprintf("%T", shown) != fmt.Sprintf("%T", got) {
		t.Errorf("%s: the README shows %v, the answer has %v", at, shown, got)
		return
	}
	switch shown := shown.(type) {
	case map[string]any:
		got := got.(map[string]any)
		if names, gotNames := slices.Sorted(maps.Keys(shown)), slices.Sorted(maps.Keys(got)); !slices.Equal(names, gotNames) {
			t.Errorf("%s: the README shows the names %q, the answer has %q", at, names, gotNames)
		}
		for name := range shown {
			compareShapes(t, at+" ."+name, shown[name], got[name])
		}
	case []any:
		got := got.([]any)
		if len(shown) != len(got) {
			t.Errorf("%s: the README shows %d elements, the answer has %d", at, len(shown), len(got))
		}
		for i := range min(len(shown), len(got)) {
			compareShapes(t, fmt.Sprint(at, " .", i), shown[i], got[i])
		}
	}
}
