// Command generate writes what the clients have from the OpenAPI document of the service: "go" the types and methods of the Go
// client, "routes" the table of operations of the TypeScript client, and "json" the document from which openapi-typescript makes
// its types. In all of them, all errors of an operation are one, and what a client has no use for is left out.
package main

import (
	"encoding/json"
	"log"
	"maps"
	"os"
	"slices"
	"strings"

	"mtagd/partnerapi/openapi"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: generate go|routes|json FILE")
	}
	text, err := openapi.Document("https://api.example.net", "https://tags.example.net")
	if err != nil {
		log.Fatal(err)
	}
	var document map[string]any
	if err := json.Unmarshal(text, &document); err != nil {
		log.Fatal(err)
	}
	reduce(document)
	switch os.Args[1] {
	case "go":
		text, err = goClient(document)
	case "routes":
		text = routes(document)
	default:
		text, err = json.Marshal(document)
	}
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[2], text, 0o644); err != nil {
		log.Fatal(err)
	}
}

type object = map[string]any

// repeatable are the POSTs that may be sent again although they have no Idempotency-Key: they do nothing, or the same as once.
// Events have an event_id.
var repeatable = []string{"generateTag", "verifyTag", "erasePerson", "readPersonalData", "tryEvents", "sendEvents", "resolveMUID"}

// repeat says after what a client may repeat an operation: safe after anything, keyed with its Idempotency-Key, once only after 429.
func repeat(o operation) string {
	switch {
	case len(o.parameters("header", "Idempotency-Key")) > 0:
		return "keyed"
	case o.method != "POST" || slices.Contains(repeatable, o.id):
		return "safe"
	}
	return "once"
}

// omitted are the operations that no client has: other spellings of an operation, and what browsers read.
var omitted = []string{"generateTagByShortPath", "sendEventsOfHost", "resolveMUIDOfHost", "readScript", "readScriptVersion", "readDocument", "readReference"}

func reduce(document object) {
	paths, components := document["paths"].(object), document["components"].(object)
	for path, item := range paths {
		item := item.(object)
		maps.DeleteFunc(item, func(_ string, o any) bool {
			operation, ok := o.(object)
			return ok && slices.Contains(omitted, operation["operationId"].(string))
		})
		operations := 0
		for _, o := range item {
			if operation, ok := o.(object); ok {
				operations++
				mergeErrors(operation, components["responses"].(object))
				dropCookies(operation)
			}
		}
		if operations == 0 {
			delete(paths, path)
		}
	}
	delete(components, "responses")
	simplify(document)
}

// mergeErrors replaces the errors of an operation by one answer, except those with another body.
func mergeErrors(operation, shared object) {
	responses := operation["responses"].(object)
	for status, r := range maps.Clone(responses) {
		answer := r.(object)
		if ref, ok := answer["$ref"].(string); ok {
			answer = shared[ref[strings.LastIndexByte(ref, '/')+1:]].(object)
		}
		content, _ := answer["content"].(object)
		media, _ := content["application/json"].(object)
		schema, _ := media["schema"].(object)
		if ref := schema["$ref"]; ref == errorRef || ref == tagErrorRef {
			delete(responses, status)
			responses["default"] = object{"description": "What went wrong", "content": object{"application/json": object{"schema": schema}}}
		}
	}
}

const (
	errorRef    = "#/components/schemas/Error"
	tagErrorRef = "#/components/schemas/TagError"
)

// dropCookies removes the parameters in cookies, which a browser sends by itself.
func dropCookies(operation object) {
	parameters, _ := operation["parameters"].([]any)
	operation["parameters"] = slices.DeleteFunc(parameters, func(p any) bool { return p.(object)["in"] == "cookie" })
}

// simplify removes what makes types of Go or TypeScript clumsy from all schemas: constants, which would become types of their
// own, and the format of ids, which clients only pass on.
func simplify(v any) {
	switch v := v.(type) {
	case object:
		if _, isSchema := v["type"]; isSchema {
			delete(v, "const")
		}
		if v["format"] == "uuid" {
			delete(v, "format")
		}
		for _, in := range v {
			simplify(in)
		}
	case []any:
		for _, in := range v {
			simplify(in)
		}
	}
}
