package partnerapi

import (
	"bytes"
	"cmp"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-json/jsontext"
	"github.com/goccy/go-json/v2"
	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// decodeChange is decode for a change of a resource: it refuses unknown names.
func decodeChange(r *fasthttp.RequestCtx, into any) error {
	return decode(r, into, json.RejectUnknownMembers(true))
}

// decode reads the JSON object in the request's body into a struct. Its fields are strings, true or false, lists and objects
// of strings, any JSON, or of types that read themselves. Names match exactly. Unknown names are ignored, repeated ones are
// refused. null means absent. The Content-Type is ignored.
func decode(r *fasthttp.RequestCtx, into any, options ...json.Options) error {
	body := bytes.Trim(r.PostBody(), " \t\r\n")
	if len(body) == 0 || body[0] != '{' && jsontext.Value(body).IsValid() {
		return store.Invalid("body", "must be a JSON object")
	}
	err := json.Unmarshal(body, into, options...)
	if err == nil {
		return nil
	}
	if refused, ok := errors.AsType[*store.Error](err); ok { // by a type that reads itself
		return refused
	}
	if wrong, ok := errors.AsType[*json.SemanticError](err); ok && body[0] == '{' {
		field := strings.Join(slices.Collect(wrong.JSONPointer.Tokens()), ".")
		if errors.Is(wrong, json.ErrUnknownName) {
			return store.Invalid(field, "is not a field that this request can change")
		}
		must := "must be a string"
		if wrong.GoType != nil {
			must = cmp.Or(wantedTypes[wrong.GoType.Kind()], must)
		}
		return store.Invalid(field, "%s", must)
	}
	return store.Invalid("body", "must be valid JSON in UTF-8, without repeated names")
}

// wantedTypes says what a field of a request must be. All others are strings.
var wantedTypes = map[reflect.Kind]string{
	reflect.Bool: "must be true or false", reflect.Slice: "must be a list", reflect.Map: "must be an object",
}

// withTimes writes times as all of the API does. The zero time becomes null.
var withTimes = json.WithMarshalers(json.MarshalFunc(func(t time.Time) ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return append(store.AppendTime([]byte{'"'}, t), '"'), nil
}))

// Reply answers with v as JSON.
func Reply(r *fasthttp.RequestCtx, status int, v any) error {
	body, err := json.Marshal(v, json.Deterministic(true), withTimes)
	if err != nil {
		return err
	}
	send(r, status, body)
	return nil
}

// each returns what show makes of each item.
func each[Item, Shown any](items []Item, show func(Item) Shown) []Shown {
	all := make([]Shown, len(items))
	for i, item := range items {
		all[i] = show(item)
	}
	return all
}

// send answers with a JSON body. The body must not change afterwards.
func send(r *fasthttp.RequestCtx, status int, body []byte) {
	r.SetStatusCode(status)
	r.SetContentType("application/json")
	r.Response.SetBodyRaw(body)
}
