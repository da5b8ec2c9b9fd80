package main

import (
	"fmt"
	"go/format"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// writer writes the types and the methods of the Go client.
type writer struct {
	document object
	text     strings.Builder
	pending  []func() // types of objects inside others, which are written after these
}

// byHand are the operations whose methods are in client.go, and the types that these do not need.
var byHand = []string{"sendEvents", "EventOrEvents", "NewEvents", "Error", "TagError", "VerificationPending", "Unhealthy", "TriedEvent"}

func goClient(document object) ([]byte, error) {
	w := &writer{document: document}
	schemas := document["components"].(object)["schemas"].(object)
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		if !slices.Contains(byHand, name) {
			w.declare(name, schemas[name].(object))
		}
	}
	for _, o := range operations(document) {
		if !slices.Contains(byHand, o.id) {
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
func (w *writer) declare(name string, schema object) {
	w.comment(name, schema["description"])
	fmt.Fprintf(&w.text, "type %s struct {\n", name)
	properties, _ := schema["properties"].(object)
	required, _ := schema["required"].([]any)
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		property := properties[key].(object)
		w.comment("", property["description"])
		of, tag := w.fieldType(name+goName(key), property, slices.Contains(required, any(key))), key
		if !slices.Contains(required, any(key)) {
			tag += ",omitzero"
		}
		fmt.Fprintf(&w.text, "%s %s `json:%q`\n", goName(key), of, tag)
	}
	if schema["additionalProperties"] == true {
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

// fieldType returns the type of a field. Numbers and booleans that may be absent are pointers, because 0 and false are values.
func (w *writer) fieldType(name string, schema object, required bool) string {
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

// typeOf returns the type of a schema, and whether it may be null. name is for an object that has no name of its own.
func (w *writer) typeOf(name string, schema object) (of string, null bool) {
	if ref, ok := schema["$ref"].(string); ok {
		of = ref[strings.LastIndexByte(ref, '/')+1:]
		if slices.Contains(byHand, of) {
			of = "any"
		}
		return of, false
	}
	if one, ok := schema["oneOf"].([]any); ok {
		if len(one) == 2 && one[1].(object)["type"] == "null" {
			of, _ = w.typeOf(name, one[0].(object))
			return of, true
		}
		return "json.RawMessage", false
	}
	kind, _ := schema["type"].(string)
	if kinds, ok := schema["type"].([]any); ok {
		kind, null = kinds[0].(string), slices.Contains(kinds, any("null"))
	}
	switch kind {
	case "string":
		if schema["format"] == "date-time" {
			return "time.Time", null
		}
		return "string", null
	case "boolean":
		return "bool", null
	case "integer":
		return "int64", null
	case "number":
		return "float64", null
	case "array":
		item, _ := w.typeOf(name, schema["items"].(object))
		return "[]" + item, null
	case "object":
		if schema["properties"] == nil {
			if values, ok := schema["additionalProperties"].(object); ok {
				of, _ := w.typeOf(name, values)
				return "map[string]" + of, null
			}
			return "map[string]any", null
		}
		w.pending = append(w.pending, func() { w.declare(name, schema) })
		return name, null
	}
	return "any", null
}

// method writes the method of an operation, the struct of its query, and, for a list in pages, the method that lists all.
func (w *writer) method(o operation) {
	name := goName(o.id)
	signature, arguments, path := "ctx context.Context", "ctx", fmt.Sprintf("%q", o.path)
	for _, p := range o.parameters("path", "") {
		key := p["name"].(string)
		argument := lower(goName(key))
		path = strings.Replace(path, "{"+key+"}", `" + url.PathEscape(`+argument+`) + "`, 1)
		signature, arguments = signature+", "+argument+" string", arguments+", "+argument
	}
	fields := fmt.Sprintf("method: %q, path: %s, repeat: %s", o.method, strings.TrimSuffix(path, ` + ""`), repeat(o))
	if body := o.body(); body != nil {
		of, _ := w.typeOf(name+"Body", body)
		signature += ", body " + of
		fields += ", body: body"
	}
	if query := o.parameters("query", ""); len(query) > 0 {
		properties, required := object{}, []any{}
		for _, p := range query {
			schema := maps.Clone(resolve(w.document, p["schema"].(object)))
			schema["description"] = p["description"]
			properties[p["name"].(string)] = schema
			if p["required"] == true {
				required = append(required, p["name"])
			}
		}
		w.declare(name+"Query", object{"description": "The parameters of " + name + ".", "properties": properties, "required": required})
		signature += ", query " + name + "Query"
		fields += ", query: query"
	}
	description, _ := o.object["description"].(string)
	w.comment(name, fmt.Sprint(o.object["summary"], ".\n\n", description))
	answer := o.answer()
	if answer == nil {
		fmt.Fprintf(&w.text, "func (c *Client) %s(%s) (io.ReadCloser, error) {\nreturn c.do(ctx, request{%s, stream: true}, nil)\n}\n\n", name, signature, fields)
		return
	}
	of, _ := w.typeOf(name+"Answer", answer)
	fmt.Fprintf(&w.text, "func (c *Client) %s(%s) (*%s, error) {\nreturn call[%s](ctx, c, request{%s})\n}\n\n", name, signature, of, of, fields)

	properties, _ := resolve(w.document, answer)["properties"].(object)
	if properties["pagination"] == nil {
		return
	}
	for key, p := range properties {
		list := p.(object)
		if list["type"] != "array" {
			continue
		}
		item, _ := w.typeOf("", list["items"].(object))
		fmt.Fprintf(&w.text, "// %[1]s lists what all pages of %[2]s have, 100 at a time unless query.Limit says otherwise.\n"+
			"func (c *Client) %[1]s(%[3]s) iter.Seq2[%[4]s, error] {\nif query.Limit == nil {\nlimit := int64(100)\nquery.Limit = &limit\n}\n"+
			"return all(func(page int64) ([]%[4]s, bool, error) {\nquery.Page = &page\nanswer, err := c.%[2]s(%[5]s, query)\n"+
			"if err != nil {\nreturn nil, false, err\n}\nreturn answer.%[6]s, answer.Pagination.HasNextPage, nil\n})\n}\n\n",
			"All"+strings.TrimPrefix(name, "List"), name, signature, item, arguments, goName(key))
	}
}

// comment writes a description as a comment.
func (w *writer) comment(name string, description any) {
	text, _ := description.(string)
	text = strings.TrimSpace(name + ": " + text)
	text = strings.TrimPrefix(text, ": ")
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
