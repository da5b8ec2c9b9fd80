package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// operation is one of the document, with what belongs to its path.
type operation struct {
	id, method, path string
	object           object
	all              []object // parameters
}

// operations lists the operations of a document by their ids.
func operations(document object) []operation {
	var list []operation
	for path, item := range document["paths"].(object) {
		for method, o := range item.(object) {
			o, ok := o.(object)
			if !ok {
				continue
			}
			op := operation{id: o["operationId"].(string), method: strings.ToUpper(method), path: path, object: o}
			for _, parameters := range []any{item.(object)["parameters"], o["parameters"]} {
				parameters, _ := parameters.([]any)
				for _, p := range parameters {
					op.all = append(op.all, resolve(document, p.(object)))
				}
			}
			list = append(list, op)
		}
	}
	slices.SortFunc(list, func(a, b operation) int { return strings.Compare(a.id, b.id) })
	return list
}

// parameters returns those in a place; with a name only that one.
func (o operation) parameters(in, name string) []object {
	var list []object
	for _, p := range o.all {
		if p["in"] == in && (name == "" || p["name"] == name) {
			list = append(list, p)
		}
	}
	return list
}

// answer returns the schema of a success as JSON; nil if it is something else.
func (o operation) answer() object {
	responses := o.object["responses"].(object)
	for _, status := range slices.Sorted(maps.Keys(responses)) {
		content, _ := responses[status].(object)["content"].(object)
		if media, ok := content["application/json"].(object); ok && status[0] == '2' {
			return media["schema"].(object)
		}
	}
	return nil
}

// body returns the schema of the body of the request; nil without one.
func (o operation) body() object {
	body, _ := o.object["requestBody"].(object)
	content, _ := body["content"].(object)
	media, _ := content["application/json"].(object)
	schema, _ := media["schema"].(object)
	return schema
}

// resolve follows a reference to a component.
func resolve(document, o object) object {
	ref, ok := o["$ref"].(string)
	if !ok {
		return o
	}
	for _, step := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		document = document[step].(object)
	}
	return document
}

// routes writes the table of operations of the TypeScript client.
func routes(document object) []byte {
	var text strings.Builder
	text.WriteString("// Generated from the OpenAPI document. Do not edit: make clients.\n\n" +
		"/** The method and the path of each operation, and after what it may be repeated. */\nexport const routes = {\n")
	for _, o := range operations(document) {
		fmt.Fprintf(&text, "  %s: [%q, %q, %q],\n", o.id, o.method, o.path, repeat(o))
	}
	text.WriteString("} as const;\n")
	return []byte(text.String())
}
