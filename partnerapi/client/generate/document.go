package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"mtagd/partnerapi/openapi/openapitest"
)

// jsonDocument returns openapi.yaml of the working directory as JSON, in the same order. Each operation has the curl command
// that sends its example, as x-codeSamples, which many viewers of documents show.
func jsonDocument() ([]byte, error) {
	source, err := os.ReadFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	long, err := yaml.YAMLToJSON(source)
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, long); err != nil {
		return nil, err
	}
	text := compact.Bytes()
	document, err := openapitest.Parse(text)
	if err != nil {
		return nil, err
	}
	for _, o := range document.Operations() {
		samples, err := json.Marshal([]map[string]string{{"lang": "Shell", "source": command(document, o, text)}})
		if err != nil {
			return nil, err
		}
		id := []byte(`"operationId":"` + o.OperationID + `",`)
		text = bytes.Replace(text, id, slices.Concat(id, []byte(`"x-codeSamples":`), samples, []byte(",")), 1)
	}
	return text, nil
}

// command returns the command that sends the example of an operation. Parameters without an example are left out. The shell
// variable KEY has the API key.
func command(document *openapitest.Document, o openapitest.Operation, text []byte) string {
	address := slices.Concat(document.Paths.Value(o.Path).Servers, document.Servers)[0].URL + o.Path
	body := at(text, "paths", o.Path, strings.ToLower(o.Method), "requestBody", "content", "application/json", "example")
	command := "curl"
	if o.Method != http.MethodGet && (o.Method != http.MethodPost || body == nil) {
		command += " -X " + o.Method
	}
	var query []string
	for _, p := range o.Parameters {
		value := fmt.Sprint(p.Value.Example)
		switch {
		case p.Value.Example == nil:
		case p.Value.In == "path":
			address = strings.ReplaceAll(address, "{"+p.Value.Name+"}", url.PathEscape(value))
		case p.Value.In == "query":
			query = append(query, p.Value.Name+"="+strings.ReplaceAll(url.QueryEscape(value), "%2C", ","))
		}
	}
	if query != nil {
		address += "?" + strings.Join(query, "&")
	}
	command += " " + shellQuote(address)
	if o.Security == nil { // an API key
		command += ` \` + "\n" + `  -H "Authorization: Bearer $KEY"`
	}
	if body != nil {
		command += ` \` + "\n" + `  -d ` + shellQuote(string(body))
	}
	return command
}

// at returns the value at a place in a JSON text, as it stands there; nil when there is none.
func at(text json.RawMessage, names ...string) json.RawMessage {
	for _, name := range names {
		var members map[string]json.RawMessage
		_ = json.Unmarshal(text, &members) // of what is no object, nothing
		text = members[name]
	}
	return text
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
