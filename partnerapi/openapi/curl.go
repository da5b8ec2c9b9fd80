package openapi

import (
	"net/url"
	"strings"

	"github.com/goccy/go-json/jsontext"
)

// curl returns the command that sends an operation's example to a server. Parameters without an example are left out. The
// shell variable KEY has the API key.
func curl(server, method, path string, parameters []parameter, body jsontext.Value, withKey bool) string {
	command := "curl"
	if method != "GET" && (method != "POST" || body == nil) {
		command += " -X " + method
	}
	var query []string
	for _, p := range parameters {
		switch value := plain(p.Example); {
		case p.Example == nil:
		case p.In == "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(value))
		case p.In == "query":
			query = append(query, p.Name+"="+strings.ReplaceAll(url.QueryEscape(value), "%2C", ","))
		}
	}
	address := server + path
	if query != nil {
		address += "?" + strings.Join(query, "&")
	}
	command += " " + shellQuote(address)
	if withKey {
		command += ` \` + "\n" + `  -H "Authorization: Bearer $KEY"`
	}
	if body != nil {
		command += ` \` + "\n" + `  -d ` + shellQuote(string(body))
	}
	return command
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
