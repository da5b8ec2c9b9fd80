package openapi_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/goccy/go-json/jsontext"

	"mtagd/partnerapi/export"
	"mtagd/partnerapi/openapi"
	"mtagd/partnerapi/openapi/openapitest"
)

// A merge in YAML can give an object a name twice. JSON readers do not agree on what that means.
func TestTheDocumentHasEachNameOnce(t *testing.T) {
	text, err := openapi.Document("https://api.example.net", "https://tags.example.net")
	must(t, err)
	if file, err := os.ReadFile("openapi.json"); err != nil || !bytes.Equal(file, text) {
		t.Errorf("openapi.json.gz is not openapi.json (%v): run make clients", err)
	}
	if _, err := jsontext.NewDecoder(bytes.NewReader(text)).ReadValue(); err != nil {
		t.Error(err)
	}
}

// TestExamplesFitTheirSchemas checks the examples of requests and answers.
func TestExamplesFitTheirSchemas(t *testing.T) {
	document, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	check := func(where string, content openapi3.Content) {
		for kind, media := range content {
			if media.Example == nil {
				continue
			}
			text, err := json.Marshal(media.Example)
			if err == nil {
				err = document.CheckJSON(media.Schema, text)
			}
			if err != nil {
				t.Errorf("%s, %s: %v", where, kind, err)
			}
		}
	}
	for _, o := range document.Operations() {
		if o.RequestBody != nil {
			check(o.OperationID, o.RequestBody.Value.Content)
		}
		for status, answer := range o.Responses.Map() {
			check(o.OperationID+" "+status, answer.Value.Content)
			if json := answer.Value.Content.Get("application/json"); status < "300" && json != nil && json.Example == nil {
				t.Errorf("%s %s has no example", o.OperationID, status)
			}
		}
	}
}

// TestEverythingIsDescribed looks for operations, parameters, answers, schemas and fields without a description.
func TestEverythingIsDescribed(t *testing.T) {
	document, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range document.Operations() {
		if o.Summary == "" {
			t.Errorf("%s has no summary", o.OperationID)
		}
		for _, p := range o.Parameters {
			if p.Value.Description == "" {
				t.Errorf("%s: %s has no description", o.OperationID, p.Value.Name)
			}
		}
		for status, answer := range o.Responses.Map() {
			if *answer.Value.Description == "" {
				t.Errorf("%s: %s has no description", o.OperationID, status)
			}
		}
	}
	var look func(where string, s *openapi3.Schema)
	look = func(where string, s *openapi3.Schema) {
		if s.Description == "" {
			t.Errorf("%s has no description", where)
		}
		for name, p := range s.Properties {
			look(where+"."+name, p.Value)
		}
		if s.Items != nil {
			for name, p := range s.Items.Value.Properties {
				look(where+"[]."+name, p.Value)
			}
		}
	}
	for name, s := range document.Components.Schemas {
		look(name, s.Value)
	}
}

func TestTheDocumentEscapesAddresses(t *testing.T) {
	const odd = `https://x"<i>`
	text, err := openapi.Document(odd, "https://tags.example.net")
	must(t, err)
	var document struct{ Servers []struct{ URL string } }
	if err := json.Unmarshal(text, &document); err != nil || document.Servers[0].URL != odd {
		t.Errorf("the server is %q: %v", document.Servers, err)
	}
}

// TestEventsHaveTheFieldsOfTheService compares the schemas of events with the table that listings and files are made by.
func TestEventsHaveTheFieldsOfTheService(t *testing.T) {
	document, err := openapitest.Load()
	if err != nil {
		t.Fatal(err)
	}
	types := map[export.Type]string{export.Text: "string", export.Time: "date-time", export.Flag: "boolean", export.JSON: "object"}
	for name, view := range map[string]export.View{"Event": export.Listing, "ReceivedEvent": export.Feed} {
		schema := document.Components.Schemas[name].Value
		got, want := map[string]string{}, map[string]string{}
		for field, property := range schema.Properties {
			if got[field] = property.Value.Type.Slice()[0]; property.Value.Format == "date-time" {
				got[field] = "date-time"
			}
		}
		for _, f := range export.Fields {
			if f.In(view) {
				want[f.Name] = types[f.Type]
			}
		}
		if !maps.Equal(got, want) || len(schema.Required) != len(want) {
			t.Errorf("%s has %v, want %v; required are %v", name, got, want, schema.Required)
		}
	}
}
