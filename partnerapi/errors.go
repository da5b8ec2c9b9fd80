package partnerapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/edge/requestid"
	"mtagd/partnerapi/export"
	"mtagd/store"
)

// answers has the status and the message of each kind of error (spec, Errors: standard error codes). The code follows
// from the status.
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
	store.KindUncertain:   {fasthttp.StatusServiceUnavailable, "Unable to process request"},
	store.KindBusy:        {fasthttp.StatusTooManyRequests, "Too many requests at once. Please try again"},
	store.KindMismatch:    {fasthttp.StatusUnprocessableEntity, "Invalid request parameters"},
	store.KindLimited:     {fasthttp.StatusForbidden, "Access denied"}, // not 429: trying again does not help
}

// statusClientGone is the status of a request whose client closed the connection; nginx uses the same number. Nobody
// reads the answer. It is logged at debug level, because it is no failure of the service.
const statusClientGone = 499

// code returns the word that clients branch on. A status that is not in the spec's table is an error of the client
// below 500, and of the service from 500 on. 429 is the exception: clients try SERVICE_ERROR again with backoff (spec,
// Errors), which is what they must do. VALIDATION_ERROR would tell them to give up.
func code(status int) string {
	switch {
	case status == fasthttp.StatusUnauthorized:
		return "AUTHENTICATION_ERROR"
	case status == fasthttp.StatusForbidden:
		return "FORBIDDEN"
	case status == fasthttp.StatusNotFound:
		return "NOT_FOUND"
	case status < fasthttp.StatusInternalServerError && status != fasthttp.StatusTooManyRequests:
		return "VALIDATION_ERROR"
	default:
		return "SERVICE_ERROR"
	}
}

// fail answers with an error, and counts it if it is a refusal. The answer says what is wrong with the request; faults of
// the service are only logged. ctx is the request's context.
func (a *api) fail(ctx context.Context, r *fasthttp.RequestCtx, err error) {
	if gone := ctx.Err(); gone != nil && errors.Is(err, gone) {
		a.logFailure(r, slog.LevelDebug, statusClientGone, err)
		WriteError(r, statusClientGone, "The client closed the connection")
		return
	}
	if errors.Is(err, errKeyEnded) {
		WriteError(r, fasthttp.StatusUnauthorized, notAuthenticated)
		return
	}
	answer := answers[store.KindOf(err)]
	message := answer.message
	e, _ := errors.AsType[*store.Error](err)
	if e != nil && mayTell(e) {
		message += ": " + e.Error()
	}
	if e == errLastKey { // which has nothing to do with domains
		message = e.Message
	}
	if ctx.Err() == nil { // a client that has gone was not refused
		a.countRefusal(r, err)
	}
	switch {
	case answer.status == fasthttp.StatusServiceUnavailable:
		a.logFailure(r, slog.LevelDebug, answer.status, err)
	case answer.status >= fasthttp.StatusInternalServerError:
		a.logFailure(r, slog.LevelError, answer.status, err)
	}
	WriteError(r, answer.status, message)
}

// countRefusal counts an error that is a refusal, once.
func (a *api) countRefusal(r *fasthttp.RequestCtx, err error) {
	e, _ := errors.AsType[*store.Error](err)
	switch {
	case isSuspension(e):
		a.Refusals.Count(limit.Suspended, tenantOf(r))
	case errors.Is(err, store.ErrAuditFull):
		a.Refusals.Count(limit.PartnerWrites, tenantOf(r))
	case errors.Is(err, errVerifications):
		a.Refusals.Count(limit.Verifications, tenantOf(r))
	case errors.Is(err, errReaders), errors.Is(err, errExports):
		a.Refusals.Count(limit.FeedReaders, tenantOf(r))
	case errors.Is(err, errAnswersOfPartner), errors.Is(err, errAnswers):
		a.Refusals.Count(limit.AnswerMemory, tenantOf(r))
	case store.KindOf(err) == store.KindUnavailable:
		a.Refusals.CountReason(limit.Unavailable, tenantOf(r), err.Error())
	}
}

// mayTell reports whether the answer has the error's own message besides that of its kind. A 403 or 404 about a resource
// that may be another partner's has the spec's message alone.
func mayTell(e *store.Error) bool {
	return e.Kind == store.KindUnavailable && e.Field != "" || e.Kind == store.KindInvalid || e.Kind == store.KindUncertain || e.Kind == store.KindMismatch || e.Kind == store.KindLimited ||
		error(e) == store.ErrAuditFull || e == errNoTagYet || e == errReadOnlyKey || e == errImpersonalKey || isSuspension(e)
}

func isSuspension(e *store.Error) bool {
	return e != nil && (e == errPartnerSuspended || e == errMerchantSuspended || e == errTagSuspended)
}

// logFailure logs a request that ended with an error. The path is logged without the query.
func (a *api) logFailure(r *fasthttp.RequestCtx, level slog.Level, status int, err error) {
	a.Log.Log(context.Background(), level, "partner API request failed",
		"method", string(r.Method()), "path", string(r.Path()), "status", status,
		"request_id", requestid.Of(r),
		"partner", PartnerOf(r), "error", err)
}

// WriteError answers with the standard error body (spec, Errors: formats, 1). Headers that are already set stay; 429 and
// 503 get a Retry-After of a second if they have none. The front door calls it too, for requests that do not reach the
// API, such as malformed ones.
func WriteError(r *fasthttp.RequestCtx, status int, message string) {
	switch status {
	case fasthttp.StatusUnauthorized:
		r.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, "Bearer")
	case fasthttp.StatusTooManyRequests, fasthttp.StatusServiceUnavailable:
		if len(r.Response.Header.Peek(fasthttp.HeaderRetryAfter)) == 0 {
			r.Response.Header.Set(fasthttp.HeaderRetryAfter, "1")
		}
	}
	body := export.AppendString([]byte(`{"message":`), message)
	send(r, status, fmt.Appendf(body, `,"code":"%s","statusCode":%d}`, code(status), status))
}
