package openapi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"mtagd/store/testenv"
)

// TestEachDocumentedLimitIsReal changes one value of each documented example. What the document allows must be accepted, and
// what is just beyond must be refused with 400.
func TestEachDocumentedLimitIsReal(t *testing.T) {
	testenv.NotShort(t, "time")
	s := newService(t)
	for _, o := range s.document.Operations() {
		f := s.fixture(needsBare(o))
		try := func(what string, allowed bool, change func(call) call) {
			t.Helper()
			status, body := s.send(f.key, change(exampleOf(t, o, f)).request(s))
			if (status == 400) == allowed {
				t.Errorf("%s: %s: %d %s", o.OperationID, what, status, body)
			}
			if status < 300 && usesUp(o) {
				f = s.fixture(needsBare(o))
			}
		}
		for _, p := range o.Parameters {
			place, schema := p.Value.In+"/"+p.Value.Name, p.Value.Schema.Value
			for _, v := range valuesOf(schema) {
				if p.Value.In == "header" && v.value == "" {
					continue // the same as no header
				}
				try(fmt.Sprintf("%s=%.60s", place, v.value), v.allowed, func(c call) call { return c.with(place, fmt.Sprint(v.value)) })
			}
			if p.Value.Required && p.Value.In == "query" {
				try("without "+place, false, func(c call) call { return c.without(place) })
			}
		}
		if o.Path != "/v1/openapi.json" && strings.HasPrefix(o.Path, "/v1/partners") {
			try("with an unknown parameter", false, func(c call) call { return c.with("query/unknown", "x") })
		}
		media := mediaOf(o)
		if media == nil {
			continue
		}
		schema := media.Schema.Value
		if schema.Type == nil && schema.OneOf == nil { // any body
			continue
		}
		try("with a body that is no object", false, func(c call) call { c.body = "x"; return c })
		if len(schema.OneOf) == 2 { // an event or a batch
			schema = schema.OneOf[0].Value
			event := exampleOf(t, o, f).body
			for n, allowed := range map[int]bool{0: false, 1: true, 1000: true, 1001: false} {
				try(fmt.Sprintf("with %d events", n), allowed, func(c call) call { c.body = slices.Repeat([]any{event}, n); return c })
			}
		}
		for name, p := range schema.Properties {
			for _, v := range valuesOf(p.Value) {
				try(fmt.Sprintf("with %s=%.60v", name, v.value), v.allowed, func(c call) call { return c.withField(name, v.value) })
			}
			if slices.Contains(schema.Required, name) {
				try("without "+name, false, func(c call) call { return c.withField(name, absent) })
			}
		}
		if has := schema.AdditionalProperties.Has; has != nil && !*has {
			try("with an unknown field", false, func(c call) call { return c.withField("unknown", "x") })
		} else {
			try("with an unknown field", true, func(c call) call { return c.withField("unknown", "x") })
		}
	}
}

// value is a value, and whether a schema allows it.
type value struct {
	value   any
	allowed bool
}

// valuesOf returns values around the limits of a schema.
func valuesOf(s *openapi3.Schema) []value {
	var all []value
	add := func(v any, allowed bool) { all = append(all, value{v, allowed}) }
	for _, v := range s.Enum {
		add(v, true)
	}
	if s.Type.Includes("null") {
		add(nil, true)
	}
	switch {
	case s.Type == nil: // anything
		add(7, true)
	case s.Type.Includes("string"):
		if s.Enum != nil {
			add("other", false)
		}
		if s.MinLength > 0 {
			add(strings.Repeat("x", int(s.MinLength)-1), false)
		}
		if s.MaxLength != nil {
			add(strings.Repeat("x", int(*s.MaxLength)+1), false)
			if s.Pattern == "" {
				add(strings.Repeat("x", int(*s.MaxLength)), true)
			}
		}
		if s.Pattern != "" {
			add("é", false)
		}
		if s.Format == "uuid" || s.Format == "date-time" {
			add("x", false)
		}
	case s.Type.Includes("integer"):
		if s.Min != nil {
			add(int(*s.Min), true)
			add(int(*s.Min)-1, false)
			add("x", false)
		}
		if s.Max != nil {
			add(int(*s.Max), true)
			add(int(*s.Max)+1, false)
		}
	case s.Type.Includes("boolean"):
		add(true, true)
		add(false, true)
		add("x", false)
	}
	return all
}
