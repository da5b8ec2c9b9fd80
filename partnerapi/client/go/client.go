// Package client is a client of the partner API and of the tag hosts. The file client.gen.go is generated from the OpenAPI
// document of the service; the reference page under /v1/docs explains every request.
//
// New makes a client. Its methods, such as ListEventsWithResponse, return the body of a success as JSON200 or JSON201, and
// that of an error as JSONDefault.
package client

//go:generate sh -euc "go run ../generate openapi.json; go tool -modfile=../../../tools/go.mod oapi-codegen -config oapi-codegen.yaml -o client.gen.go openapi.json; rm openapi.json"

import (
	"context"
	"net/http"
)

// New returns a client of a server: the base host with your API key, or a tag host with a secret of the merchant. The key may be
// empty for a tag host. url is such as https://api.example.net. Options come from this package, such as WithHTTPClient.
func New(url, key string, options ...ClientOption) (*ClientWithResponses, error) {
	if key != "" {
		options = append(options, WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+key)
			return nil
		}))
	}
	return NewClientWithResponses(url, options...)
}
