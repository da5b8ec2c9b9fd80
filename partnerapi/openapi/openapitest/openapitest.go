// Package openapitest checks answers of the service against openapi.yaml. Tests of the handlers check every answer with it,
// so the document cannot differ from the service.
//
// The check is stricter than the document: an answer with a field that the document does not have is an error, although
// clients must ignore such fields.
package openapitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/valyala/fasthttp"

	"mtagd/partnerapi/openapi"
)

// Document is the document of a service with the hosts of the examples, and the schemas that it has compiled.
type Document struct {
	*openapi3.T
	compiler *jsonschema.Compiler
	mu       sync.Mutex
	schemas  map[*openapi3.SchemaRef]*jsonschema.Schema
}

// Load returns the document. Tests share it.
var Load = sync.OnceValues(func() (*Document, error) {
	text, err := openapi.Document("https://api.example.net", "https://tags.example.net")
	if err != nil {
		return nil, err
	}
	return Parse(text)
})

// Parse reads a document.
func Parse(text []byte) (*Document, error) {
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData(text)
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(loader.Context); err != nil {
		return nil, err
	}
	d := &Document{T: doc, compiler: jsonschema.NewCompiler(), schemas: map[*openapi3.SchemaRef]*jsonschema.Schema{}}
	d.compiler.AssertFormat()
	whole, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	closeObjects(whole)
	return d, d.compiler.AddResource(resource, whole)
}

const resource = "https://api.example.net/v1/openapi.json"

// closeObjects forbids the properties that a schema does not name, in all schemas that do not mention others.
func closeObjects(v any) {
	switch v := v.(type) {
	case map[string]any:
		_, names := v["properties"].(map[string]any)
		if _, others := v["additionalProperties"]; names && !others {
			v["additionalProperties"] = false
		}
		for _, in := range v {
			closeObjects(in)
		}
	case []any:
		for _, in := range v {
			closeObjects(in)
		}
	}
}

// Check returns an error unless the document has this answer to a request with a method and a path. An answer to a request
// that the document does not have must be 404, 405 or 429. The preflights of browsers are not checked.
func (d *Document) Check(method, path string, r *fasthttp.Response) error {
	status, isHead := r.StatusCode(), method == fasthttp.MethodHead
	if status == statusClientGone || method == fasthttp.MethodOptions && status == fasthttp.StatusNoContent {
		return nil
	}
	if isHead {
		method = fasthttp.MethodGet
	}
	template, operation := d.Find(method, path)
	var err error
	switch {
	case operation == nil && !slices.Contains(refused, status):
		err = errors.New("the operation is not documented")
	case operation != nil:
		err = d.checkAnswer(operation, r, isHead)
	}
	if err != nil {
		return fmt.Errorf("%s %s (%s) answered %d %s %.300q: %w", method, path, template, status, r.Header.ContentType(), bodyOf(r), err)
	}
	return nil
}

// refused are the statuses of a request that the document does not have.
var refused = []int{fasthttp.StatusNotFound, fasthttp.StatusMethodNotAllowed, fasthttp.StatusTooManyRequests}

// statusClientGone is the status of a request whose client has gone. Nobody reads the answer.
const statusClientGone = 499

// Find returns the operation of a method and a path, and the template of the path; nil when there is none.
func (d *Document) Find(method, path string) (template string, operation *openapi3.Operation) {
	path, _, _ = strings.Cut(path, "?")
	best := -1
	for t, item := range d.Paths.Map() {
		if literal, ok := matches(t, path); ok && literal > best {
			best, template, operation = literal, t, item.Operations()[method]
		}
	}
	return template, operation
}

// matches reports whether a path fits a template, and how many of its segments are literal.
func matches(template, path string) (literal int, ok bool) {
	want, got := strings.Split(template, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return 0, false
	}
	for i := range want {
		switch {
		case want[i] == got[i]:
			literal++
		case !strings.HasPrefix(want[i], "{") || got[i] == "":
			return 0, false
		}
	}
	return literal, true
}

func (d *Document) checkAnswer(operation *openapi3.Operation, r *fasthttp.Response, isHead bool) error {
	ref := operation.Responses.Value(strconv.Itoa(r.StatusCode()))
	if ref == nil {
		return errors.New("the status is not documented")
	}
	for name, header := range ref.Value.Headers {
		value := string(r.Header.Peek(name))
		if value == "" {
			return fmt.Errorf("no header %s", name)
		}
		if _, err := strconv.Atoi(value); header.Value.Schema.Value.Type.Is("integer") && err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
	}
	if len(ref.Value.Content) == 0 {
		if len(bodyOf(r)) > 0 {
			return errors.New("a body is not documented")
		}
		return nil
	}
	kind, _, err := mime.ParseMediaType(string(r.Header.ContentType()))
	if err != nil {
		return fmt.Errorf("Content-Type: %w", err)
	}
	content, ok := ref.Value.Content[kind]
	if !ok {
		return errors.New("the Content-Type is not documented")
	}
	if kind != "application/json" || isHead || r.IsBodyStream() {
		return nil
	}
	body, err := r.BodyUncompressed()
	if err != nil {
		return err
	}
	return d.CheckJSON(content.Schema, body)
}

// CheckJSON returns an error unless a JSON text fits a schema of the document.
func (d *Document) CheckJSON(schema *openapi3.SchemaRef, text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	compiled, err := d.compile(schema)
	if err != nil {
		return err
	}
	return compiled.Validate(value)
}

// compile compiles a schema, once.
func (d *Document) compile(schema *openapi3.SchemaRef) (*jsonschema.Schema, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if compiled := d.schemas[schema]; compiled != nil {
		return compiled, nil
	}
	location := resource + schema.Ref
	if schema.Ref == "" { // not a component
		text, err := json.Marshal(schema)
		if err != nil {
			return nil, err
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(bytes.ReplaceAll(text, []byte(`"#/`), []byte(`"`+resource+`#/`))))
		if err != nil {
			return nil, err
		}
		closeObjects(value)
		location = fmt.Sprintf("%s?%d", resource, len(d.schemas))
		if err := d.compiler.AddResource(location, value); err != nil {
			return nil, err
		}
	}
	compiled, err := d.compiler.Compile(location)
	if err == nil {
		d.schemas[schema] = compiled
	}
	return compiled, err
}

// Wrap returns a handler that checks each answer of another one, and passes errors to report.
func (d *Document) Wrap(handle fasthttp.RequestHandler, report func(error)) fasthttp.RequestHandler {
	return func(r *fasthttp.RequestCtx) {
		handle(r)
		if err := d.Check(string(r.Method()), string(r.URI().PathOriginal()), &r.Response); err != nil {
			report(err)
		}
	}
}

func bodyOf(r *fasthttp.Response) []byte {
	if r.IsBodyStream() {
		return nil
	}
	return r.Body()
}

// Operation is one operation of the document.
type Operation struct {
	*openapi3.Operation
	Method, Path string
	Parameters   openapi3.Parameters // those of the path, too
}

// Operations returns all operations, in the order of their paths.
func (d *Document) Operations() []Operation {
	var all []Operation
	for path, item := range d.Paths.Map() {
		for method, operation := range item.Operations() {
			all = append(all, Operation{operation, method, path, slices.Concat(item.Parameters, operation.Parameters)})
		}
	}
	slices.SortFunc(all, func(a, b Operation) int { return strings.Compare(a.Path+a.Method, b.Path+b.Method) })
	return all
}
