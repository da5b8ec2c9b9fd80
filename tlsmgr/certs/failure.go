package certs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"mtagd/store"
)

var (
	errUnknownHost  = errors.New("certs: not a host of this service")
	errDNSElsewhere = errors.New("certs: the host's DNS leads elsewhere")
	errNotYet       = errors.New("certs: there is no certificate yet")
)

// errCounted is an attempt that failed and that the CA may have counted.
type errCounted struct{ error }

func (e errCounted) Unwrap() error { return e.error }

// errTooSoon is an attempt that was not made, because the CA would refuse it before a certain time.
type errTooSoon struct{ until time.Time }

func (e errTooSoon) Error() string {
	return "certs: not tried, because the CA would refuse it before " + store.FormatTime(e.until)
}

// backOff is how long to wait before the next attempt. failures is the number of failures before this one. The
// wait is up to a fifth shorter or longer, at random, so that a thousand hosts do not retry at the same moment.
func (p pace) backOff(err error, failures int) time.Duration {
	first := p.caFailed
	if problem, ok := errors.AsType[acme.Problem](err); ok {
		switch {
		case isRateLimited(problem):
			first = p.caLimited
		case problem.Status < http.StatusInternalServerError:
			first = p.hostRefused
		}
	}
	wait := min(first<<min(failures, 20), p.maxWait)
	return time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
}

// afterFailures is how long all nodes wait after a failure of a host that the CA may have counted, the first or a later one.
func (p pace) afterFailures(failures int) time.Duration {
	return min(p.hostRefused<<min(max(failures-1, 0), 20), p.maxWait)
}

func isRateLimited(problem acme.Problem) bool {
	return problem.Type == acme.ProblemTypeRateLimited || problem.Status == http.StatusTooManyRequests
}

// problemOf is what the merchant sees of an error: the CA's own words, and nothing about this machine; empty without one.
func problemOf(err error) string {
	if err == nil {
		return ""
	}
	if problem, ok := errors.AsType[acme.Problem](err); ok {
		detail := problem.Detail
		for _, sub := range problem.Subproblems {
			detail += "; " + sub.Detail
		}
		return fmt.Sprintf("the certificate authority refused: %s", detail)
	}
	if _, ok := errors.AsType[errTooSoon](err); ok {
		return "the certificate authority allows no further try yet"
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return "the certificate authority cannot be reached"
	}
	return "the certificate could not be ordered"
}

// isRefusedOrder reports whether the CA refused the order for a renewal, before any challenge. Such an order names the
// certificate that it replaces. A CA refuses it when it does not know that certificate, or when another account ordered
// it (a changed --acme-email makes another account). Certmagic would repeat the same order.
func isRefusedOrder(err error) bool {
	problem, ok := errors.AsType[acme.Problem](err)
	return ok && problem.Type != acme.ProblemTypeRateLimited && strings.Contains(err.Error(), "creating new order")
}

// isUnusable reports whether an error says that the files of a certificate can be read, but do not match or are broken:
// certmagic writes the key first, and a kill can come in between. Files that cannot be read now may be intact.
func isUnusable(err error) bool {
	_, unreadable := errors.AsType[*fs.PathError](err)
	return err != nil && !unreadable && !errors.Is(err, fs.ErrNotExist)
}

// maxRetryAfter is the longest Retry-After that is obeyed. The longest of Let's Encrypt's limits is for a week.
const maxRetryAfter = 7 * 24 * time.Hour

// refusal is what the CA's last refusal in an attempt says about when to come back. acmez does not show the header to
// its callers. It repeats a request twice, within a second, after a status of 500 or more: also after a 503.
type refusal struct {
	status int
	until  time.Time // zero when it says nothing
}

// noteRetryAfter is a transport that notes, for an attempt, the Retry-After of answers with status 429 or 503.
type noteRetryAfter struct{ http.RoundTripper }

func (n noteRetryAfter) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := n.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if a, ok := request.Context().Value(attemptKey{}).(*attempt); ok &&
		(answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusServiceUnavailable) {
		a.refused = refusal{answer.StatusCode, retryAfter(answer.Header.Get("Retry-After"), time.Now())}
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
	if at.Sub(now) > maxRetryAfter {
		return now.Add(maxRetryAfter)
	}
	return at
}
