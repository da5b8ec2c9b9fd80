package openapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// addCommands adds to each operation the curl command that sends its example, as x-codeSamples, which many viewers of
// documents show.
func addCommands(document []byte) ([]byte, error) {
	var d struct {
		Servers    []server
		Paths      map[string]pathItem
		Components struct{ Parameters map[string]parameter }
	}
	if err := json.Unmarshal(document, &d); err != nil {
		return nil, err
	}
	for path, item := range d.Paths {
		for method, o := range map[string]*operation{http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodPatch: item.Patch, http.MethodDelete: item.Delete} {
			if o == nil {
				continue
			}
			parameters := slices.Concat(item.Parameters, o.Parameters)
			for i, p := range parameters {
				if _, name, isRef := strings.Cut(p.Ref, "#/components/parameters/"); isRef {
					parameters[i] = d.Components.Parameters[name]
				}
			}
			command := o.curl(method, slices.Concat(item.Servers, d.Servers)[0].address()+path, parameters)
			samples, err := json.Marshal([]map[string]string{{"lang": "Shell", "source": command}})
			if err != nil {
				return nil, err
			}
			id := []byte(`"operationId":"` + o.ID + `",`)
			document = bytes.Replace(document, id, slices.Concat(id, []byte(`"x-codeSamples":`), samples, []byte(",")), 1)
		}
	}
	return document, nil
}

type server struct {
	URL       string
	Variables map[string]struct{ Default string }
}

// address returns the URL with the default of each variable.
func (s server) address() string {
	address := s.URL
	for name, v := range s.Variables {
		address = strings.ReplaceAll(address, "{"+name+"}", v.Default)
	}
	return address
}

type pathItem struct {
	Servers                  []server
	Parameters               []parameter
	Get, Post, Patch, Delete *operation
}

type operation struct {
	ID          string           `json:"operationId"`
	Security    []map[string]any // nil: an API key
	Parameters  []parameter      // besides those of the path
	RequestBody struct {
		Content map[string]struct{ Example json.RawMessage }
	}
}

type parameter struct {
	Ref      string `json:"$ref"`
	Name, In string
	Example  json.RawMessage
}

// curl returns the command that sends the operation's example to an address. Parameters without an example are left out. The
// shell variable KEY has the API key.
func (o *operation) curl(method, address string, parameters []parameter) string {
	var body json.RawMessage
	for _, c := range o.RequestBody.Content {
		body = c.Example
	}
	command := "curl"
	if method != http.MethodGet && (method != http.MethodPost || body == nil) {
		command += " -X " + method
	}
	var query []string
	for _, p := range parameters {
		value := string(p.Example)
		_ = json.Unmarshal(p.Example, &value) // fails for what is no string, and that stays as it is
		switch {
		case p.Example == nil:
		case p.In == "path":
			address = strings.ReplaceAll(address, "{"+p.Name+"}", url.PathEscape(value))
		case p.In == "query":
			query = append(query, p.Name+"="+strings.ReplaceAll(url.QueryEscape(value), "%2C", ","))
		}
	}
	if query != nil {
		address += "?" + strings.Join(query, "&")
	}
	command += " " + shellQuote(address)
	if o.Security == nil {
		command += ` \` + "\n" + `  -H "Authorization: Bearer $KEY"`
	}
	if body != nil {
		command += ` \` + "\n" + `  -d ` + shellQuote(string(body))
	}
	return command
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
