package main

import (
	"fmt"
	"go/format"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"mtagd/partnerapi/openapi/openapitest"
)

// writer writes the types and the methods of the Go client.
type writer struct {
	text    strings.Builder
	pending []func() // types of objects inside others, which are written after these
}

// byHand are the operations whose methods are in client.go, and the types that these do not need.
var byHand = []string{"sendEvents", "EventOrEvents", "NewEvents", "Error", "TagError", "VerificationPending", "Unhealthy", "TriedEvent"}

func goClient(document *openapitest.Document) ([]byte, error) {
	w := &writer{}
	schemas := document.Components.Schemas
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		if !slices.Contains(byHand, name) {
			w.declare(name, schemas[name].Value)
		}
	}
	for _, o := range operations(document) {
		if !slices.Contains(byHand, o.OperationID) {
			w.method(o)
		}
	}
	head := "// Code generated from the OpenAPI document. DO NOT EDIT: make clients.\n\npackage client\n\nimport (\n\"context\"\n"
	for _, used := range []string{"encoding/json", "io", "iter", "net/url", "time"} {
		if strings.Contains(w.text.String(), used[strings.LastIndexByte(used, '/')+1:]+".") {
			head += fmt.Sprintf("%q\n", used)
		}
	}
	return format.Source([]byte(head + ")\n" + w.text.String()))
}

// declare writes the type of an object, and then those inside it.
func (w *writer) declare(name string, schema *openapi3.Schema) {
	w.comment(name, schema.Description)
	fmt.Fprintf(&w.text, "type %s struct {\n", name)
	for _, key := range slices.Sorted(maps.Keys(schema.Properties)) {
		property, required := schema.Properties[key], slices.Contains(schema.Required, key)
		if property.Ref == "" {
			w.comment("", property.Value.Description)
		}
		of, tag := w.fieldType(name+goName(key), property, required), key
		if !required {
			tag += ",omitzero"
		}
		fmt.Fprintf(&w.text, "%s %s `json:%q`\n", goName(key), of, tag)
	}
	if others := schema.AdditionalProperties.Has; others != nil && *others {
		fmt.Fprintf(&w.text, "// Fields are all others.\nFields map[string]any `json:\"-\"`\n}\n\n"+
			"// MarshalJSON implements json.Marshaler.\nfunc (o %[1]s) MarshalJSON() ([]byte, error) {\ntype known %[1]s\nreturn withFields(known(o), o.Fields)\n}\n\n", name)
	} else {
		w.text.WriteString("}\n\n")
	}
	for len(w.pending) > 0 {
		next := w.pending[0]
		w.pending = w.pending[1:]
		next()
	}
}

// fieldType returns the type of a field. Numbers and booleans that may be absent are pointers, because 0 and false are
// values.
func (w *writer) fieldType(name string, schema *openapi3.SchemaRef, required bool) string {
	of, null := w.typeOf(name, schema)
	nilable := strings.HasPrefix(of, "[]") || strings.HasPrefix(of, "map") || of == "json.RawMessage" || of == "any"
	switch {
	case null && !required:
		return "Nullable[" + of + "]"
	case nilable:
		return of
	case null, !required && of != "string" && of != "time.Time":
		return "*" + of
	}
	return of
}

// goTypes are the types of values that are neither objects nor lists.
var goTypes = map[string]string{"string": "string", "boolean": "bool", "integer": "int64", "number": "float64", "": "any"}

// typeOf returns the type of a schema, and whether it may be null. name is for an object that has no name of its own.
func (w *writer) typeOf(name string, ref *openapi3.SchemaRef) (of string, null bool) {
	if ref.Ref != "" {
		of = ref.Ref[strings.LastIndexByte(ref.Ref, '/')+1:]
		if slices.Contains(byHand, of) {
			of = "any"
		}
		return of, false
	}
	schema := ref.Value
	if one := schema.OneOf; len(one) == 2 && one[1].Value.Type.Is("null") {
		of, _ = w.typeOf(name, one[0])
		return of, true
	} else if one != nil {
		return "json.RawMessage", false
	}
	kind := ""
	if schema.Type != nil {
		kind, null = schema.Type.Slice()[0], schema.Type.Includes("null")
	}
	switch {
	case schema.Format == "date-time":
		return "time.Time", null
	case kind == "array":
		item, _ := w.typeOf(name, schema.Items)
		return "[]" + item, null
	case kind == "object" && schema.Properties != nil:
		w.pending = append(w.pending, func() { w.declare(name, schema) })
		return name, null
	case kind == "object" && schema.AdditionalProperties.Schema != nil:
		of, _ := w.typeOf(name, schema.AdditionalProperties.Schema)
		return "map[string]" + of, null
	case kind == "object":
		return "map[string]any", null
	}
	return goTypes[kind], null
}

// method writes the method of an operation, the struct of its query, and, for a list in pages, the method that lists all.
func (w *writer) method(o openapitest.Operation) {
	name := goName(o.OperationID)
	signature, arguments, path := "ctx context.Context", "ctx", fmt.Sprintf("%q", o.Path)
	query := &openapi3.Schema{Description: "The parameters of " + name + ".", Properties: openapi3.Schemas{}}
	for _, p := range o.Parameters {
		key := p.Value.Name
		switch p.Value.In {
		case "path":
			argument := lower(goName(key))
			path = strings.Replace(path, "{"+key+"}", `" + url.PathEscape(`+argument+`) + "`, 1)
			signature, arguments = signature+", "+argument+" string", arguments+", "+argument
		case "query":
			schema := *p.Value.Schema.Value
			schema.Description = p.Value.Description
			query.Properties[key] = &openapi3.SchemaRef{Value: &schema}
			if p.Value.Required {
				query.Required = append(query.Required, key)
			}
		}
	}
	fields := fmt.Sprintf("method: %q, path: %s, repeat: %s", o.Method, strings.TrimSuffix(path, ` + ""`), repeat(o))
	if o.RequestBody != nil {
		of, _ := w.typeOf(name+"Body", o.RequestBody.Value.Content.Get("application/json").Schema)
		signature += ", body " + of
		fields += ", body: body"
	}
	if len(query.Properties) > 0 {
		w.declare(name+"Query", query)
		signature += ", query " + name + "Query"
		fields += ", query: query"
	}
	w.comment(name, o.Summary+".\n\n"+o.Description)
	answer := answerOf(o)
	if answer == nil {
		fmt.Fprintf(&w.text, "func (c *Client) %s(%s) (io.ReadCloser, error) {\nreturn c.do(ctx, request{%s, stream: true}, nil)\n}\n\n", name, signature, fields)
		return
	}
	of, _ := w.typeOf(name+"Answer", answer)
	fmt.Fprintf(&w.text, "func (c *Client) %s(%s) (*%s, error) {\nreturn call[%s](ctx, c, request{%s})\n}\n\n", name, signature, of, of, fields)

	if answer.Value.Properties["pagination"] == nil {
		return
	}
	for key, list := range answer.Value.Properties {
		if !list.Value.Type.Is("array") {
			continue
		}
		item, _ := w.typeOf("", list.Value.Items)
		fmt.Fprintf(&w.text, "// %[1]s lists what all pages of %[2]s have, 100 at a time unless query.Limit says otherwise.\n"+
			"func (c *Client) %[1]s(%[3]s) iter.Seq2[%[4]s, error] {\nif query.Limit == nil {\nlimit := int64(100)\nquery.Limit = &limit\n}\n"+
			"return all(func(page int64) ([]%[4]s, bool, error) {\nquery.Page = &page\nanswer, err := c.%[2]s(%[5]s, query)\n"+
			"if err != nil {\nreturn nil, false, err\n}\nreturn answer.%[6]s, answer.Pagination.HasNextPage, nil\n})\n}\n\n",
			"All"+strings.TrimPrefix(name, "List"), name, signature, item, arguments, goName(key))
	}
}

// answerOf returns the schema of a success as JSON; nil if it is something else.
func answerOf(o openapitest.Operation) *openapi3.SchemaRef {
	for _, status := range []string{"200", "201", "202"} {
		if answer := o.Responses.Value(status); answer != nil && answer.Value.Content["application/json"] != nil {
			return answer.Value.Content["application/json"].Schema
		}
	}
	return nil
}

// comment writes a description as a comment.
func (w *writer) comment(name, text string) {
	text = strings.TrimPrefix(strings.TrimSpace(name+": "+text), ": ")
	if text == "" {
		return
	}
	for _, paragraph := range strings.Split(text, "\n") {
		w.text.WriteString("//")
		column := 2
		for _, word := range strings.Fields(paragraph) {
			if column+len(word) > 125 {
				w.text.WriteString("\n//")
				column = 2
			}
			w.text.WriteString(" " + word)
			column += 1 + len(word)
		}
		w.text.WriteByte('\n')
	}
}

var initialisms = regexp.MustCompile(`^(id|api|dns|url|ttl|muid|csv|http|json)$`)

// goName returns the Go name of a field, a parameter or an operation, such as TagID for tagId.
func goName(name string) string {
	var words strings.Builder
	for _, word := range regexp.MustCompile(`[A-Z]*[a-z0-9]+|[A-Z]+`).FindAllString(name, -1) {
		if initialisms.MatchString(strings.ToLower(word)) {
			words.WriteString(strings.ToUpper(word))
		} else {
			words.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return words.String()
}

// lower makes the first word of a name lower case.
func lower(name string) string {
	n := len(name) - len(strings.TrimLeft(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
	if n > 1 && n < len(name) {
		n--
	}
	return strings.ToLower(name[:n]) + name[n:]
}
