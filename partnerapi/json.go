package partnerapi

import (
	"bytes"
	"errors"

	"github.com/goccy/go-json/jsontext"
	"github.com/goccy/go-json/v2"
	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// decode reads the request's JSON object into a struct whose fields are strings. Names are matched
// exactly, unknown ones ignored, repeated ones refused; null is as good as absent. The Content-Type
// is not looked at.
func decode(r *fasthttp.RequestCtx, into any) error {
	body := r.PostBody()
	if object := bytes.TrimLeft(body, " \t\r\n"); len(object) == 0 || object[0] != '{' {
		return store.Invalid("body", "must be a JSON object")
	}
	err := json.Unmarshal(body, into)
	if err == nil {
		return nil
	}
	if wrong, ok := errors.AsType[*json.SemanticError](err); ok {
		return store.Invalid(wrong.JSONPointer.LastToken(), "must be a string")
	}
	return store.Invalid("body", "must be valid JSON in UTF-8, without repeated names")
}

// reply answers with v as JSON.
func reply(r *fasthttp.RequestCtx, status int, v any) error {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	send(r, status, body)
	return nil
}

// send answers with a body, which it takes over.
func send(r *fasthttp.RequestCtx, status int, body []byte) {
	r.SetStatusCode(status)
	r.SetContentType("application/json")
	r.Response.SetBodyRaw(body)
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	// The only error is that of invalid UTF-8, which by then was replaced by U+FFFD.
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
