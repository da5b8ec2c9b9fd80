package tag

import (
	"strconv"

	"github.com/valyala/fasthttp"
)

// answer is a fixed answer, rendered once in both of its forms. Its texts are plain ASCII without quotes.
type answer struct {
	status int
	body   []byte // of a response
	result []byte // of an event in the answer to a batch
}

// refusal is an answer of the form {"success":false,"message":…} (spec, Errors, format 5).
func refusal(status int, message string) *answer {
	return newRefusal(status, `"message":"`+message+`"`)
}

// detailedRefusal is a refusal with one more field, detail, for what the spec's message leaves out.
func detailedRefusal(status int, message, detail string) *answer {
	return newRefusal(status, `"message":"`+message+`","detail":"`+detail+`"`)
}

func newRefusal(status int, texts string) *answer {
	return &answer{
		status: status,
		body:   []byte(`{"success":false,` + texts + "}"),
		result: []byte(`{"status":` + strconv.Itoa(status) + `,"success":false,` + texts + "}"),
	}
}

// noIdentifierMessage is the spec's. It leaves out phone, which is an identifier too.
const noIdentifierMessage = "muid, email, or deviceId is required."

// The answers of a tag host. Messages that the spec gives are the spec's, word for word.
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

	eventTooLarge  = refusal(fasthttp.StatusRequestEntityTooLarge, "one event must be at most 64 KiB")
	bodyNotUTF8    = refusal(fasthttp.StatusBadRequest, "body must be valid UTF-8")
	bodyCompressed = refusal(fasthttp.StatusBadRequest, "compressed bodies are not supported")
	bodyNotObject  = refusal(fasthttp.StatusBadRequest, "body must be a JSON object")
	bodyTooDeep    = refusal(fasthttp.StatusBadRequest, "body is nested too deeply")
	batchEmpty     = refusal(fasthttp.StatusBadRequest, "batch must have at least one event")
	batchTooLong   = refusal(fasthttp.StatusBadRequest, "batch must have at most 1000 events")
	noIdentifier   = refusal(fasthttp.StatusBadRequest, noIdentifierMessage)
	badIdentifier  = detailedRefusal(fasthttp.StatusBadRequest, noIdentifierMessage,
		"each of muid, email, phone and deviceId must be a string that is not empty, and a phone must have digits")
	muidTooLong    = refusal(fasthttp.StatusBadRequest, "muid must have at most 256 bytes")
	eventMissing   = refusal(fasthttp.StatusBadRequest, "event is required and must be a PascalCase name such as AddToCart")
	eventMalformed = refusal(fasthttp.StatusBadRequest,
		"event must be a PascalCase name such as AddToCart, at most 64 letters and digits")
	eventIDNoString = refusal(fasthttp.StatusBadRequest, "event_id must be a string")
	eventIDTooLong  = refusal(fasthttp.StatusBadRequest, "event_id must have at most 128 bytes")
	noMUIDFound     = refusal(fasthttp.StatusNotFound, "No muid found for the supplied identifiers")

	unavailable = refusal(fasthttp.StatusServiceUnavailable, "Events cannot be accepted at the moment, please retry")
	failed      = refusal(fasthttp.StatusInternalServerError, "Unable to process request")
)

// bodyNotJSON returns the answer to a body with a syntax error. The offset of the error is in bytes from the first
// brace of the event or the first bracket of the batch.
func bodyNotJSON(offset int64) *answer {
	return refusal(fasthttp.StatusBadRequest, "body is not valid JSON (error at byte "+strconv.FormatInt(offset, 10)+")")
}

// refuseBody refuses a body. A compressed body is found out because it is not UTF-8: when its header has a
// Content-Encoding, the answer names that instead.
func refuseBody(ctx *fasthttp.RequestCtx, refused *answer) {
	if refused == bodyNotUTF8 && len(ctx.Request.Header.ContentEncoding()) > 0 {
		refused = bodyCompressed
	}
	refused.send(ctx)
}

// WriteError answers with an error in the form of a tag host. The front door calls it for requests that it does not
// pass on. The message must be plain ASCII without quotes. Headers that are already set stay.
func WriteError(ctx *fasthttp.RequestCtx, status int, message string) {
	refusal(status, message).send(ctx)
}

// send answers a request. 503 gets a Retry-After.
func (a *answer) send(ctx *fasthttp.RequestCtx) {
	if a.status == fasthttp.StatusServiceUnavailable {
		ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, "1")
	}
	sendJSON(ctx, a.status, a.body)
}

// sendJSON answers a request. The body must not change until the response is written.
func sendJSON(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.Response.SetStatusCode(status)
	ctx.Response.Header.SetContentType("application/json")
	ctx.Response.SetBodyRaw(body)
}
