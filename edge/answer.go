package edge

import (
	"strconv"

	"github.com/valyala/fasthttp"
)

// answer is an answer of the tag server that is always the same, rendered once: alone in a
// response, and as one of a batch's results. Its message is plain ASCII without quotes.
type answer struct {
	status int
	body   []byte
	result []byte
}

// refusal is an answer of the form {"success":false,"message":…} (spec, Errors, format 5).
func refusal(status int, message string) *answer {
	text := `"success":false,"message":"` + message + `"}`
	return &answer{
		status: status,
		body:   []byte("{" + text),
		result: []byte(`{"status":` + strconv.Itoa(status) + "," + text),
	}
}

// The answers of the tag server. Messages the spec gives are the spec's, word for word.
var (
	accepted = &answer{
		status: fasthttp.StatusCreated,
		body:   []byte(`{"message":"Event accepted"}`),
		result: []byte(`{"status":201,"message":"Event accepted"}`),
	}
	healthy   = &answer{status: fasthttp.StatusOK, body: []byte(`{"status":"ok"}`)}
	unhealthy = &answer{status: fasthttp.StatusServiceUnavailable, body: []byte(`{"status":"unavailable"}`)}

	notFound         = refusal(fasthttp.StatusNotFound, "Not found")
	methodNotAllowed = refusal(fasthttp.StatusMethodNotAllowed, "Method not allowed")
	tagNotFound      = refusal(fasthttp.StatusNotFound, "Tag not found")
	tagNotActive     = refusal(fasthttp.StatusForbidden, "Tag is not active")

	bodyTooLarge    = refusal(fasthttp.StatusRequestEntityTooLarge, "body must be at most 64 KiB")
	bodyNotUTF8     = refusal(fasthttp.StatusBadRequest, "body must be valid UTF-8")
	bodyNotObject   = refusal(fasthttp.StatusBadRequest, "body must be a JSON object")
	bodyNotBatch    = refusal(fasthttp.StatusBadRequest, "body must be a JSON array of event objects")
	batchEmpty      = refusal(fasthttp.StatusBadRequest, "batch must have at least one event")
	batchTooLong    = refusal(fasthttp.StatusBadRequest, "batch must have at most 1000 events")
	noIdentifier    = refusal(fasthttp.StatusBadRequest, "muid, email, or deviceId is required.")
	muidTooLong     = refusal(fasthttp.StatusBadRequest, "muid must have at most 256 bytes")
	eventMissing    = refusal(fasthttp.StatusBadRequest, "event is required and must be a PascalCase name such as AddToCart")
	eventMalformed  = refusal(fasthttp.StatusBadRequest, "event must be a PascalCase name such as AddToCart, at most 64 letters and digits")
	eventIDNoString = refusal(fasthttp.StatusBadRequest, "event_id must be a string")
	eventIDTooLong  = refusal(fasthttp.StatusBadRequest, "event_id must have at most 128 bytes")
	noMUIDFound     = refusal(fasthttp.StatusNotFound, "No muid found for the supplied identifiers")

	unavailable = refusal(fasthttp.StatusServiceUnavailable, "Events cannot be accepted at the moment, please retry")
	failed      = refusal(fasthttp.StatusInternalServerError, "Unable to process request")
)

// send writes the answer.
func (a *answer) send(ctx *fasthttp.RequestCtx) {
	if a.status == fasthttp.StatusServiceUnavailable {
		ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, "1")
	}
	sendJSON(ctx, a.status, a.body)
}

// sendJSON writes a response; body must not change before it is on the wire.
func sendJSON(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.Response.SetStatusCode(status)
	ctx.Response.Header.SetContentType("application/json")
	ctx.Response.SetBodyRaw(body)
}
