package certs

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// maxRetryAfter is the longest Retry-After that is obeyed. The longest of Let's Encrypt's limits is for a week.
const maxRetryAfter = 7 * 24 * time.Hour

// refusal is what the CA's last refusal in an attempt says about when to come back. acmez does not show the header to
// its callers. It repeats a request twice, within a second, after a status of 500 or more: also after a 503.
type refusal struct {
	status int
	until  time.Time // zero when it says nothing
}

type refusalKey struct{}

// withRefusal returns a context for an attempt's requests. They note a refusal in r.
func withRefusal(ctx context.Context, r *refusal) context.Context {
	return context.WithValue(ctx, refusalKey{}, r)
}

// noteRetryAfter is a transport that notes the Retry-After of refused requests: those answered with 429 or 503.
type noteRetryAfter struct{ http.RoundTripper }

func (n noteRetryAfter) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := n.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if r, ok := request.Context().Value(refusalKey{}).(*refusal); ok &&
		(answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusServiceUnavailable) {
		*r = refusal{answer.StatusCode, retryAfter(answer.Header.Get("Retry-After"), time.Now())}
	}
	return answer, nil
}

// retryAfter reads a Retry-After header (RFC 9110, 10.2.3: seconds or a date). It returns the zero time when there is none.
func retryAfter(value string, now time.Time) time.Time {
	at, err := http.ParseTime(value)
	if err != nil {
		seconds, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return time.Time{}
		}
		at = now.Add(time.Duration(seconds) * time.Second)
	}
	if latest := now.Add(maxRetryAfter); at.After(latest) {
		return latest
	}
	return at
}
