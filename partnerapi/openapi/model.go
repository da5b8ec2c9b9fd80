package openapi

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-json/jsontext"
	"github.com/goccy/go-json/v2"
)

// readDocument reads a document, in its order.
func readDocument(text []byte) (*document, error) {
	d := new(document)
	if err := json.Unmarshal(text, d, json.MatchCaseInsensitiveNames(true)); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	for _, path := range d.Paths {
		item := path.Value
		for _, o := range []named[*operation]{{"GET", item.Get}, {"POST", item.Post}, {"PUT", item.Put}, {"PATCH", item.Patch}, {"DELETE", item.Delete}} {
			if o.Value == nil {
				continue
			}
			o.Value.method, o.Value.path, o.Value.server = o.Name, path.Name, slices.Concat(item.Servers, d.Servers)[0].address()
			o.Value.Parameters = slices.Concat(item.Parameters, o.Value.Parameters)
			for i, p := range o.Value.Parameters {
				if p.Ref != "" {
					o.Value.Parameters[i] = d.Components.Parameters.get(p.Ref)
				}
			}
			d.operations = append(d.operations, o.Value)
		}
	}
	return d, nil
}

// document is what the page needs of an OpenAPI document.
type document struct {
	Info       struct{ Title, Version, Summary, Description string }
	Servers    []server
	Tags       []struct{ Name, Description string }
	Paths      ordered[pathItem]
	Components struct {
		Parameters      ordered[parameter]
		Responses       ordered[response]
		Schemas         ordered[schema]
		SecuritySchemes ordered[struct{ Description string }]
	}

	operations []*operation // of all paths
}

type server struct {
	URL, Description string
	Variables        ordered[struct{ Default, Description string }]
}

// address returns the URL with the default of each variable.
func (s server) address() string {
	url := s.URL
	for _, v := range s.Variables {
		url = strings.ReplaceAll(url, "{"+v.Name+"}", v.Value.Default)
	}
	return url
}

type pathItem struct {
	Servers                       []server
	Parameters                    []parameter
	Get, Post, Put, Patch, Delete *operation
}

type operation struct {
	ID          string `json:"operationId"`
	Tags        []string
	Summary     string
	Description string
	Security    []map[string][]string // nil: an API key
	Parameters  []parameter           // those of the path, too
	RequestBody struct{ Content content }
	Responses   ordered[response]

	method, path, server string
}

// parameter is a parameter, or a field of an object.
type parameter struct {
	Ref         string `json:"$ref"`
	Name, In    string // In is empty for a field of an object
	Required    bool
	Description string
	Schema      schema
	Example     jsontext.Value
}

type response struct {
	Ref         string `json:"$ref"`
	Description string
	Content     content
}

// content is bodies by their media type.
type content = ordered[struct {
	Schema  schema
	Example jsontext.Value
}]

type schema struct {
	Ref         string `json:"$ref"`
	Type        typeNames
	Description string
	Format      string
	Pattern     string
	Default     jsontext.Value
	Const       jsontext.Value
	Enum        []jsontext.Value
	Minimum     jsontext.Value
	Maximum     jsontext.Value
	MinLength   *int
	MaxLength   *int
	MinItems    *int
	MaxItems    *int
	Properties  ordered[schema]
	Required    []string
	Items       *schema
	OneOf       []schema
}

// typeNames is one name, or several in an array.
type typeNames []string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (t *typeNames) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == '[' {
		return json.UnmarshalDecode(d, (*[]string)(t))
	}
	*t = make(typeNames, 1)
	return json.UnmarshalDecode(d, &(*t)[0])
}

// ordered is a JSON object in its order.
type ordered[T any] []named[T]

type named[T any] struct {
	Name  string
	Value T
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (o *ordered[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		member := named[T]{Name: name.String()}
		if err := json.UnmarshalDecode(d, &member.Value); err != nil {
			return err
		}
		*o = append(*o, member)
	}
	_, err := d.ReadToken() // the closing brace
	return err
}

// get returns the value of a reference, such as #/components/schemas/Tag.
func (o ordered[T]) get(ref string) T {
	name := nameOf(ref)
	for _, member := range o {
		if member.Name == name {
			return member.Value
		}
	}
	var none T
	return none
}

// nameOf returns the name of a component from a reference to it.
func nameOf(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

// plain returns a JSON value as text: a string without its quotes.
func plain(v jsontext.Value) string {
	if v.Kind() != '"' {
		return string(v)
	}
	text, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return string(v)
	}
	return string(text)
}
