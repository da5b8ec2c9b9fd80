package openapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"mtagd/partnerapi/openapi/openapitest"
)

// call is a request of an operation, as a test changes it.
type call struct {
	openapitest.Operation
	parameters map[string]string // by place and name, such as query/limit
	body       any               // a JSON value; nil for none
}

// exampleOf returns the documented example of an operation, with the ids of a fixture.
func exampleOf(t testing.TB, o openapitest.Operation, f fixture) call {
	t.Helper()
	c := call{Operation: o, parameters: map[string]string{}}
	for _, p := range o.Parameters {
		if p.Value.Example != nil {
			c.parameters[p.Value.In+"/"+p.Value.Name] = f.example.Replace(fmt.Sprint(p.Value.Example))
		}
	}
	if media := mediaOf(o); media != nil {
		text, err := json.Marshal(media.Example)
		must(t, err)
		must(t, json.Unmarshal([]byte(f.example.Replace(string(text))), &c.body))
	}
	return c
}

// mediaOf returns the JSON body of an operation; nil when it has none.
func mediaOf(o openapitest.Operation) *openapi3.MediaType {
	if o.RequestBody == nil {
		return nil
	}
	return o.RequestBody.Value.Content.Get("application/json")
}

// with returns the call with another value of a parameter.
func (c call) with(place, value string) call {
	c.parameters = maps.Clone(c.parameters)
	c.parameters[place] = value
	return c
}

// without returns the call without a parameter.
func (c call) without(place string) call {
	c.parameters = maps.Clone(c.parameters)
	delete(c.parameters, place)
	return c
}

// withField returns the call with another value of a field of its body; absent removes the field.
func (c call) withField(name string, value any) call {
	body := maps.Clone(c.body.(map[string]any))
	body[name] = value
	if value == absent {
		delete(body, name)
	}
	c.body = body
	return c
}

// absent stands for a field that is not sent.
var absent = new(int)

// request returns the request to a service.
func (c call) request(s *service) *http.Request {
	s.Helper()
	path, query := c.Path, url.Values{}
	for place, value := range c.parameters {
		in, name, _ := strings.Cut(place, "/")
		switch in {
		case "path":
			path = strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(value))
		case "query":
			query.Set(name, value)
		}
	}
	address := s.url + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	body := ""
	if c.body != nil {
		text, err := json.Marshal(c.body)
		must(s, err)
		body = string(text)
	}
	r := newRequest(s, c.Method, address, body)
	for place, value := range c.parameters {
		switch in, name, _ := strings.Cut(place, "/"); in {
		case "header":
			r.Header.Set(name, value)
		case "cookie":
			r.AddCookie(&http.Cookie{Name: name, Value: value})
		}
	}
	return r
}
