// Package openapi describes the whole HTTP interface of the service, the partner API and the tag hosts, as an OpenAPI 3.1
// document, and shows it as a reference page.
//
// Change an endpoint in openapi.yaml, too, and run make clients. Until then the tests of the handlers fail, because package
// openapitest checks all their answers.
//
// Read in this order:
//
//	openapi.yaml    the document
//	openapi.json    the same as JSON, with the commands that send the examples; generated, and compressed in openapi.json.gz
//	openapi.go      the document of a service
//	page.go         the files of the reference page: Swagger UI, and what is in page/
package openapi

import (
	"bytes"
	_ "embed"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi/export"
)

//go:generate go run -pgo=off ../client/generate json openapi.json

//go:embed openapi.json.gz
var packed []byte

// The addresses in openapi.yaml.
const (
	baseExample    = "https://api.example.net"
	tagHostExample = "https://tags.example.net"
)

// Document returns the document as JSON, in the order of openapi.yaml. base and tagHost are the addresses of the partner API
// and of the shared host of client-side tags, such as https://api.example.net.
func Document(base, tagHost string) ([]byte, error) {
	example, err := fasthttp.AppendGunzipBytes(nil, packed)
	if err != nil {
		return nil, err
	}
	return replaceAddress(replaceAddress(example, baseExample, base), tagHostExample, tagHost), nil
}

func replaceAddress(document []byte, from, to string) []byte {
	quoted := export.AppendString(nil, to)
	return bytes.ReplaceAll(document, []byte(from), quoted[1:len(quoted)-1])
}
