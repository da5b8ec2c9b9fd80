package partnerapi

import (
	"errors"
	"strconv"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// answers is the table from kinds of error to what the customer is told (spec, Errors: standard
// error codes). The code follows from the status.
var answers = [...]struct {
	status  int
	message string
}{
	store.KindInternal:    {fasthttp.StatusInternalServerError, "Unable to process request"},
	store.KindInvalid:     {fasthttp.StatusBadRequest, "Invalid request parameters"},
	store.KindNotFound:    {fasthttp.StatusNotFound, "Resource not found"},
	store.KindForbidden:   {fasthttp.StatusForbidden, "Access denied"},
	store.KindConflict:    {fasthttp.StatusConflict, "Domain already registered"},
	store.KindUnavailable: {fasthttp.StatusServiceUnavailable, "Unable to process request"},
	store.KindBusy:        {fasthttp.StatusTooManyRequests, "Too many requests at once. Please try again"},
}

// code is the word that clients branch on. A status without a row in the spec's table belongs to
// the client's side or to ours.
func code(status int) string {
	switch {
	case status == fasthttp.StatusUnauthorized:
		return "AUTHENTICATION_ERROR"
	case status == fasthttp.StatusForbidden:
		return "FORBIDDEN"
	case status == fasthttp.StatusNotFound:
		return "NOT_FOUND"
	case status < fasthttp.StatusInternalServerError:
		return "VALIDATION_ERROR"
	default:
		return "SERVICE_ERROR"
	}
}

// errAnotherPartners is the error of a merchant or tag that exists and is not the partner's.
var errAnotherPartners = &store.Error{Kind: store.KindForbidden, Message: "belongs to another partner"}

// fail answers with an error. The customer learns what is wrong with the request, the log alone
// what is wrong with the service.
func (a *api) fail(r *fasthttp.RequestCtx, err error) {
	answer := answers[store.KindOf(err)]
	message := answer.message
	if e, ok := errors.AsType[*store.Error](err); ok && e.Kind == store.KindInvalid {
		message += ": " + e.Error()
	}
	if answer.status >= fasthttp.StatusInternalServerError {
		a.Log.Error("partner API request failed",
			"method", string(r.Method()), "path", string(r.Path()), "status", answer.status, "error", err)
	}
	WriteError(r, answer.status, message)
}

// WriteError answers with the standard error body (spec, Errors: formats, 1). It is also for what
// the server finds before the API is reached, such as a request that cannot be parsed. Headers that
// are set already stay.
func WriteError(r *fasthttp.RequestCtx, status int, message string) {
	switch status {
	case fasthttp.StatusUnauthorized:
		r.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, "Bearer")
	case fasthttp.StatusTooManyRequests, fasthttp.StatusServiceUnavailable:
		r.Response.Header.Set(fasthttp.HeaderRetryAfter, "1")
	}
	body := appendString([]byte(`{"message":`), message)
	body = append(body, `,"code":"`+code(status)+`","statusCode":`...)
	body = strconv.AppendInt(body, int64(status), 10)
	send(r, status, append(body, '}'))
}
