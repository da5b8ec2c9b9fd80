package openapi_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"mtagd/partnerapi/openapi/openapitest"
	"mtagd/store/testenv"
)

// TestRandomRequests sends requests that are made from the schemas, most of them wrong somewhere. No answer may be a 5xx,
// and each must fit the document. A failure names the seed, and the request is the same with the same seed.
func TestRandomRequests(t *testing.T) {
	s := newService(t)
	for _, o := range s.document.Operations() {
		f := s.fixture(needsBare(o))
		for seed := range testenv.Rounds(10) { // of each operation
			g := generator{rand.New(rand.NewChaCha8(sha256.Sum256(fmt.Append(nil, o.OperationID, seed)))), o}
			c := g.change(exampleOf(t, o, f))
			status, body := s.send(f.key, c.request(s))
			if status >= 500 {
				t.Errorf("%s, seed %d: %d %s, after the parameters %q and the body %.500v", o.OperationID, seed, status, body, c.parameters, c.body)
			}
			if status < 300 && usesUp(o) {
				f = s.fixture(needsBare(o))
			}
		}
	}
}

// generator makes random requests of an operation.
type generator struct {
	*rand.Rand
	o openapitest.Operation
}

// change returns a call with some other parameters, and another body.
func (g generator) change(c call) call {
	for _, p := range g.o.Parameters {
		place := p.Value.In + "/" + p.Value.Name
		switch g.IntN(4) {
		case 0:
			if p.Value.In != "path" {
				c = c.without(place)
			}
		case 1:
			if v := fmt.Sprint(g.value(p.Value.Schema, 0)); isSendable(p.Value.In, v) {
				c = c.with(place, v)
			}
		}
	}
	if place := "query/wait"; c.parameters[place] != "" {
		c = c.with(place, "0") // so that no request waits for events
	}
	media := mediaOf(g.o)
	if media == nil {
		return c
	}
	switch g.IntN(4) {
	case 0:
		c.body = g.anything(0)
	case 1:
		c.body = g.value(media.Schema, 0)
	default:
		fields, _ := g.value(media.Schema, 0).(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if g.IntN(2) == 0 {
				c = c.withField(name, fields[name])
			}
		}
	}
	return c
}

// isSendable reports whether HTTP can carry a value at a place.
func isSendable(in, v string) bool {
	switch in {
	case "path":
		return v != "" && v != "." && v != ".."
	case "query":
		return true
	}
	return !strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c > '~' })
}

// value returns a value that fits a schema in most of its parts.
func (g generator) value(ref *openapi3.SchemaRef, depth int) any {
	s := ref.Value
	switch {
	case g.IntN(8) == 0:
		return g.anything(depth)
	case len(s.OneOf) > 0:
		return g.value(s.OneOf[g.IntN(len(s.OneOf))], depth)
	case s.Enum != nil:
		return s.Enum[g.IntN(len(s.Enum))]
	case s.Type.Includes("object"):
		object := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			if g.IntN(4) > 0 {
				object[name] = g.value(s.Properties[name], depth+1)
			}
		}
		return object
	case s.Type.Includes("array"):
		list := []any{}
		for range 1 + g.IntN(3) {
			list = append(list, g.value(s.Items, depth+1))
		}
		return list
	case s.Type.Includes("integer"):
		return g.IntN(200) - 5
	case s.Type.Includes("boolean"):
		return g.IntN(2) == 0
	}
	return g.text()
}

// anything returns any JSON value.
func (g generator) anything(depth int) any {
	switch g.IntN(8) {
	case 0:
		return nil
	case 1:
		return g.IntN(2) == 0
	case 2:
		return []any{0, -1, 1e300, 1 << 40, 0.5}[g.IntN(5)]
	case 3:
		if depth > 3 {
			return nil
		}
		return []any{g.anything(depth + 1), g.anything(depth + 1)}
	case 4:
		if depth > 3 {
			return nil
		}
		return map[string]any{g.text(): g.anything(depth + 1)}
	}
	return g.text()
}

// text returns a string: one of those that matter somewhere, or one of random characters.
func (g generator) text() string {
	known := []string{"", "x", " ", "0", "-1", "9999999999999999999999", "latest", "null", "true", "2026-11-20", "2026-11-20T08:30:00Z",
		"0000-00-00", "23:59:60Z", "example.com", "co.uk", "https://example.com", "EUROPE/Berlin", "Local", "Purchase", "A,,B", "%zz", "..",
		"00000000-0000-4000-8000-000000000000", "cur_", "evt_0000000002hp2002", strings.Repeat("a.", 200) + "com", strings.Repeat("x", 5000)}
	if g.IntN(3) > 0 {
		return known[g.IntN(len(known))]
	}
	var b strings.Builder
	for range g.IntN(12) {
		b.WriteRune(rune(slices.Max([]int{1, g.IntN(0x300)})))
	}
	return b.String()
}
