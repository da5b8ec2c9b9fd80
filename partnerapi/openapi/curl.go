package openapi

import (
	"net/url"
	"strings"

	"github.com/goccy/go-json/jsontext"
)

// curl returns the command that sends an operation's example to its server. Parameters without an example are left out. The
// shell variable KEY has the API key.
func curl(o *operation) string {
	var body jsontext.Value
	for _, c := range o.RequestBody.Content {
		body = c.Value.Example
	}
	command := "curl"
	if o.method != "GET" && (o.method != "POST" || body == nil) {
		command += " -X " + o.method
	}
	path := o.path
	var query []string
	for _, p := range o.Parameters {
		switch value := plain(p.Example); {
		case p.Example == nil:
		case p.In == "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(value))
		case p.In == "query":
			query = append(query, p.Name+"="+strings.ReplaceAll(url.QueryEscape(value), "%2C", ","))
		}
	}
	address := o.server + path
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
