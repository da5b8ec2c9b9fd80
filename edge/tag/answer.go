package tag

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/store"
)

// answer is a fixed answer, rendered once in both of its forms. Its texts are plain ASCII without quotes.
type answer struct {
	status  int
	message string
	body    []byte // of a response
	result  []byte // of an event in the answer to a batch
}

// refusal is an answer of the form {"success":false,"message":…} (spec, Errors, format 5).
func refusal(status int, message string) *answer { return detailedRefusal(status, message, "") }

// invalid is the refusal of a wrong request, with a message that is formatted.
func invalid(format string, args ...any) *answer {
	return refusal(fasthttp.StatusBadRequest, fmt.Sprintf(format, args...))
}

// detailedRefusal is a refusal with the additional field detail, for what the spec's message leaves out, if any.
func detailedRefusal(status int, message, detail string) *answer {
	texts := `"success":false,"message":"` + message + `"`
	if detail != "" {
		texts += `,"detail":"` + detail + `"`
	}
	return &answer{
		status:  status,
		message: message,
		body:    []byte("{" + texts + "}"),
		result:  []byte(`{"status":` + strconv.Itoa(status) + "," + texts + "}"),
	}
}

// eventTooLargeMessage names the limit in KiB; BodyTooLargeMessage adds that of a batch, in MiB.
var (
	eventTooLargeMessage = fmt.Sprintf("one event must be at most %d KiB", store.MaxEventBytes>>10)

	// BodyTooLargeMessage is the front door's, for a body that was not read: it may be an event or a batch.
	BodyTooLargeMessage = eventTooLargeMessage + fmt.Sprintf(", and a batch at most %d MiB", store.MaxBatchBytes>>20)
)

// The answers of a tag host. Messages that the spec gives are the spec's, word for word. That of noIdentifier leaves out
// phone, so a detail names it.
var (
	accepted = &answer{
		status:  fasthttp.StatusCreated,
		message: "Event accepted",
		body:    []byte(`{"message":"Event accepted"}`),
		result:  []byte(`{"status":201,"message":"Event accepted"}`),
	}
	healthy   = &answer{status: fasthttp.StatusOK, body: []byte(`{"status":"ok"}`)}
	unhealthy = &answer{status: fasthttp.StatusServiceUnavailable, body: []byte(`{"status":"unavailable"}`)}

	notFound         = refusal(fasthttp.StatusNotFound, "Not found")
	methodNotAllowed = refusal(fasthttp.StatusMethodNotAllowed, "Method not allowed")
	tagNotFound      = refusal(fasthttp.StatusNotFound, "Tag not found")
	tagNotActive     = refusal(fasthttp.StatusForbidden, "Tag is not active")
	tagSuspended     = refusal(fasthttp.StatusForbidden, "Tag is suspended")

	secretWrong    = refusal(fasthttp.StatusUnauthorized, "Authorization must be Bearer with a secret of this merchant, or be left out")
	secretRequired = refusal(fasthttp.StatusForbidden,
		"This merchant resolves identifiers only with its secret: send a muid, or the header Authorization: Bearer with the secret")

	eventTooLarge  = refusal(fasthttp.StatusRequestEntityTooLarge, eventTooLargeMessage)
	bodyNotUTF8    = invalid("body must be valid UTF-8")
	bodyCompressed = invalid("compressed bodies are not supported")
	bodyNotObject  = invalid("body must be a JSON object")
	eventTooDeep   = invalid("event is nested too deeply: at most %d levels", store.MaxEventDepth)
	numberTooLarge = invalid("body has a number that is too large for a 64-bit float")
	batchEmpty     = invalid("batch must have at least one event")
	batchTooLong   = invalid("batch must have at most %d events", store.MaxBatchEvents)
	noIdentifier   = detailedRefusal(fasthttp.StatusBadRequest, "muid, email, or deviceId is required.",
		"send one of muid, email, phone, deviceId as a string that is not empty; a phone must have digits")
	muidTooLong      = invalid("muid must have at most %d bytes", store.MaxMUIDLength)
	eventMissing     = invalid("event is required and must be a PascalCase name such as AddToCart")
	eventMalformed   = invalid("event must be a PascalCase name such as AddToCart, at most %d letters and digits", store.MaxEventNameLength)
	eventIDNoString  = invalid("event_id must be a string")
	eventIDTooLong   = invalid("event_id must have at most %d characters", store.MaxDedupeIDLength)
	personSuppressed = refusal(fasthttp.StatusForbidden, "Events of this person are not accepted")
	noMUIDFound      = refusal(fasthttp.StatusNotFound, "No muid found for the supplied identifiers")

	tooManyFromAddress = refusal(fasthttp.StatusTooManyRequests, limit.TooManyFromAddress)
	tooManyForMerchant = refusal(fasthttp.StatusTooManyRequests, "Too many events for this merchant, please retry")

	tooManyBytes            = refusal(fasthttp.StatusTooManyRequests, "This merchant has stored as much as it may in a day, please retry later")
	tooManyBytesFromAddress = refusal(fasthttp.StatusTooManyRequests, "This address has stored as much as it may in a day, please retry later")
	tooManyBytesOfPartner   = refusal(fasthttp.StatusTooManyRequests, "The partner of this merchant has stored as much as it may in a day, please retry later")

	unavailable = refusal(fasthttp.StatusServiceUnavailable, "Events cannot be accepted at the moment, please retry")
	uncertain   = refusal(fasthttp.StatusServiceUnavailable, "It is not known whether the event is recorded, please retry with the same event_id")
	failed      = refusal(fasthttp.StatusInternalServerError, "Unable to process request")
)

// bodyNotJSON returns the answer to a body with a syntax error. The offset counts bytes from its first brace or bracket.
func bodyNotJSON(offset int64) *answer {
	return invalid("body is not valid JSON (error at byte %d)", offset)
}

// refusalOf returns the answer to a request that is refused because of its body. A compressed body is refused first for not
// being UTF-8; the answer then names the compression instead.
func refusalOf(ctx *fasthttp.RequestCtx, refused *answer) *answer {
	if refused == bodyNotUTF8 && isCompressed(ctx) {
		return bodyCompressed
	}
	return refused
}

// isCompressed reports whether a request says that its body is compressed, or the body begins with the magic number of
// gzip. It is not asked about bodies in UTF-8: the second byte of the number begins no character.
func isCompressed(ctx *fasthttp.RequestCtx) bool {
	encoding := ctx.Request.Header.ContentEncoding()
	return len(encoding) > 0 && !bytes.EqualFold(encoding, []byte("identity")) ||
		bytes.HasPrefix(ctx.PostBody(), []byte{0x1f, 0x8b})
}

// WriteError answers with an error in the form of a tag host. The front door calls it for requests that it does not
// pass on. The message must be plain ASCII without quotes. Headers that are already set stay.
func WriteError(ctx *fasthttp.RequestCtx, status int, message string) {
	refusal(status, message).send(ctx)
}

// send answers a request. 503 gets a Retry-After of a second, and so does 429 if it has none; 401 gets the scheme to use.
func (a *answer) send(ctx *fasthttp.RequestCtx) {
	switch a.status {
	case fasthttp.StatusServiceUnavailable:
		ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, "1")
	case fasthttp.StatusTooManyRequests:
		if len(ctx.Response.Header.Peek(fasthttp.HeaderRetryAfter)) == 0 {
			ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, "1")
		}
	case fasthttp.StatusUnauthorized:
		ctx.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, "Bearer")
	}
	sendJSON(ctx, a.status, a.body)
}

// sendAfter answers a request with 429 and the time after which the client may retry.
func (a *answer) sendAfter(ctx *fasthttp.RequestCtx, wait time.Duration) {
	ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, limit.RetryAfter(wait))
	a.send(ctx)
}

// sendJSON answers a request. The body must not change until the response is written.
func sendJSON(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.Response.SetStatusCode(status)
	ctx.Response.Header.SetContentType("application/json")
	ctx.Response.SetBodyRaw(body)
}
