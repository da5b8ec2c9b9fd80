// Package openapi describes the whole HTTP interface of the service, the partner API and the tag hosts, as an OpenAPI 3.1
// document, and shows it as a reference page.
//
// Change an endpoint in openapi.yaml, too, and run make clients. Until then the tests of the handlers fail, because package
// openapitest checks all their answers.
//
// Read in this order:
//
//	openapi.yaml    the document
//	openapi.go      the document as JSON
//	curl.go         the commands that send the examples
//	page.go         the files of the reference page: Swagger UI, and what is in page/
package openapi

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml"

	"mtagd/partnerapi/export"
)

//go:embed openapi.yaml
var source []byte

// The addresses of the servers in openapi.yaml.
const (
	baseExample    = "https://api.example.net"
	tagHostExample = "https://tags.example.net"
)

// Document returns the document as JSON, in the order of openapi.yaml. base and tagHost are the addresses of the partner API
// and of the shared host of client-side tags, such as https://api.example.net. Each operation
// has the command that sends its example. It takes some 50 ms.
func Document(base, tagHost string) ([]byte, error) {
	long, err := yaml.YAMLToJSON(source)
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	var document bytes.Buffer
	if err := json.Compact(&document, long); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	whole, err := addCommands(replaceServer(replaceServer(document.Bytes(), baseExample, base), tagHostExample, tagHost))
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	return whole, nil
}

func replaceServer(document []byte, from, to string) []byte {
	url := func(address string) []byte { return export.AppendString([]byte(`"url":`), address) }
	return bytes.ReplaceAll(document, url(from), url(to))
}
