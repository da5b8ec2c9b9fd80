// Command generate makes the OpenAPI document of the service from openapi.yaml ("json", and compressed beside it), and what the
// clients have from it: "go" the types and methods of the Go client, "routes" the table of operations of the TypeScript
// client.
package main

import (
	"fmt"
	"log"
	"os"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi/openapi/openapitest"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: generate go|routes|json FILE")
	}
	document, err := openapitest.Load()
	var text []byte
	switch {
	case os.Args[1] == "json": // replaces the document, so an error of Load does not matter
		text, err = jsonDocument()
	case err != nil:
	case os.Args[1] == "go":
		text, err = goClient(document)
	default:
		text = routes(document)
	}
	if err != nil {
		log.Fatal(err)
	}
	err = os.WriteFile(os.Args[2], text, 0o644)
	if err == nil && os.Args[1] == "json" {
		err = os.WriteFile(os.Args[2]+".gz", fasthttp.AppendGzipBytesLevel(nil, text, fasthttp.CompressBestCompression), 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// omitted are the operations that no client has: other spellings of an operation, and what browsers read.
var omitted = []string{"generateTagByShortPath", "sendEventsOfHost", "resolveMUIDOfHost", "readScript", "readScriptVersion", "readDocument", "readReference", "readReferenceFile"}

// operations lists the operations of the clients by their ids.
func operations(document *openapitest.Document) []openapitest.Operation {
	list := slices.DeleteFunc(document.Operations(), func(o openapitest.Operation) bool { return slices.Contains(omitted, o.OperationID) })
	slices.SortFunc(list, func(a, b openapitest.Operation) int { return strings.Compare(a.OperationID, b.OperationID) })
	return list
}

// repeatable are the POSTs that may be sent again although they have no Idempotency-Key: sending one twice has the same
// effect as sending it once. Events have an event_id.
var repeatable = []string{"generateTag", "verifyTag", "erasePerson", "readPersonalData", "tryEvents", "sendEvents", "resolveMUID"}

// repeat says when a client may repeat an operation: "safe" after any failure, "keyed" after any failure with the same
// Idempotency-Key, "once" only after 429.
func repeat(o openapitest.Operation) string {
	switch {
	case o.Parameters.GetByInAndName("header", "Idempotency-Key") != nil:
		return "keyed"
	case o.Method != "POST" || slices.Contains(repeatable, o.OperationID):
		return "safe"
	}
	return "once"
}

// routes writes the table of operations of the TypeScript client.
func routes(document *openapitest.Document) []byte {
	var text strings.Builder
	text.WriteString("// Generated from the OpenAPI document. Do not edit: make clients.\n\n" +
		"/** The method and the path of each operation, and after what it may be repeated. */\nexport const routes = {\n")
	for _, o := range operations(document) {
		fmt.Fprintf(&text, "  %s: [%q, %q, %q],\n", o.OperationID, o.Method, o.Path, repeat(o))
	}
	text.WriteString("} as const;\n")
	return []byte(text.String())
}
