// Package client is a client of the partner API and of the tag hosts, with the standard library alone. client.gen.go is
// generated from the OpenAPI document of the service; the reference page under /v1/docs explains every request.
//
// A request is repeated after a network error, 429 and 5xx, with jittered back-off and not before Retry-After. A request
// that creates something has an Idempotency-Key, and an event has an event_id, so nothing is created twice. The few requests
// for which the service has neither, such as CreateSecret, are repeated only after 429. When its context ends, a request
// returns, even between two attempts.
package client

//go:generate go run -C ../../.. ./partnerapi/client/generate go partnerapi/client/go/client.gen.go

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	rand2 "math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client is a client of one server. It may be used by many goroutines. Change its fields before its first request.
type Client struct {
	HTTP     *http.Client  // http.DefaultClient by default
	Attempts int           // how often a request is sent at most; 5 by default
	Backoff  time.Duration // about how long to wait after the first failure, and twice as long after each further one; 200 ms by default
	Timeout  time.Duration // of one attempt, except for streams; a minute by default

	url, key string
}

// New returns a client of the server at a URL such as https://api.example.net. key is your API key for the base host, and a
// secret of the merchant, or empty, for a tag host.
func New(url, key string) *Client {
	return &Client{HTTP: http.DefaultClient, Attempts: 5, Backoff: 200 * time.Millisecond, Timeout: time.Minute, url: strings.TrimSuffix(url, "/"), key: key}
}

// Error is an answer of 400 and more. Use errors.As.
type Error struct {
	Status     int           // such as 404
	Code       string        // of the partner API, for programs, such as NOT_FOUND
	Message    string        // for people
	Detail     string        // of tag hosts: a sentence that says more
	Field      string        // the field or parameter that is wrong; empty if the message names none
	RequestID  string        // the service's log has it too
	RetryAfter time.Duration // 0 without the header
	Attempts   int           // how often it was sent. After more than one, 404 to a DELETE can mean that an earlier one has deleted it.
	Body       []byte        // as it was received. Something other than the service may have sent it.
}

func (e *Error) Error() string {
	return fmt.Sprintf("%d %s", e.Status, cmp.Or(e.Message, http.StatusText(e.Status)))
}

// Nullable is a field of a change: the zero value leaves the field as it is, Null empties it, and Value sets it.
type Nullable[T any] struct {
	value T
	state byte // 0: absent, 1: null, 2: value
}

// Null returns the null of a field.
func Null[T any]() Nullable[T] { return Nullable[T]{state: 1} }

// Value returns a value of a field.
func Value[T any](v T) Nullable[T] { return Nullable[T]{v, 2} }

// Get returns the value. ok is false for null and for an absent field.
func (n Nullable[T]) Get() (v T, ok bool) { return n.value, n.state == 2 }

// IsNull reports whether the field is there and null.
func (n Nullable[T]) IsNull() bool { return n.state == 1 }

// MarshalJSON implements json.Marshaler.
func (n Nullable[T]) MarshalJSON() ([]byte, error) {
	if n.state != 2 {
		return []byte("null"), nil
	}
	return json.Marshal(n.value)
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Nullable[T]) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*n = Null[T]()
		return nil
	}
	n.state = 2
	return json.Unmarshal(text, &n.value)
}

type idempotencyKey struct{}

// WithIdempotencyKey gives the next request with this context a key of your own instead of a random one. With a key that you
// have stored, you can repeat the request even after a restart of your program, within 24 hours.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, key)
}

// SendEvent sends an event to the tag host. When it returns nil, the event is on disk. An event without an EventID gets a
// random one.
func (c *Client) SendEvent(ctx context.Context, tagID string, event NewEvent) error {
	event.EventID = cmp.Or(event.EventID, rand.Text())
	_, err := call[Accepted](ctx, c, sendEvents(tagID, event))
	return err
}

// SendEvents sends a batch of up to 1,000 events. The result has one status for each of them, in order.
func (c *Client) SendEvents(ctx context.Context, tagID string, events []NewEvent) (*BatchResults, error) {
	events = append([]NewEvent(nil), events...)
	for i := range events {
		events[i].EventID = cmp.Or(events[i].EventID, rand.Text())
	}
	return call[BatchResults](ctx, c, sendEvents(tagID, events))
}

func sendEvents(tagID string, body any) request {
	return request{method: "POST", path: "/mark/" + url.PathEscape(tagID), body: body, repeat: safe}
}

// Feed follows your events in the order of receipt, from query.After on. Store the Cursor of each page together with what
// you made of its events; a later Feed that begins there goes on exactly after them. It waits for new events for ever, and
// survives outages: it ends with the error of the context, or with an error that does not go away by waiting, such as 401.
func (c *Client) Feed(ctx context.Context, query ReadFeedQuery) iter.Seq2[*FeedPage, error] {
	if query.Wait == nil {
		wait := int64(30)
		query.Wait = &wait
	}
	return func(yield func(*FeedPage, error) bool) {
		for failures := 0; ; {
			page, err := c.ReadFeed(ctx, query)
			var failed *Error
			if err != nil && ctx.Err() == nil && (!errors.As(err, &failed) || mayPass(failed.Status)) {
				failures++
				err = c.wait(ctx, c.Attempts+failures, 0)
				if err == nil {
					continue
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
			failures = 0
			query.After = page.Cursor
			if len(page.Events) > 0 && !yield(page, nil) {
				return
			}
		}
	}
}

// all lists the items of all pages.
func all[T any](read func(page int64) (items []T, more bool, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for page, more := int64(1), true; more; page++ {
			items, hasMore, err := read(page)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			more = hasMore
		}
	}
}

// repeat says after what a request may be sent again.
type repeat byte

const (
	once  repeat = iota // after 429 alone: it would do the same twice
	keyed               // with the same Idempotency-Key
	safe                // it does nothing, or the same as once
)

type request struct {
	method, path string
	query        any // a struct, or nil
	body         any // nil: none
	repeat       repeat
	stream       bool // the answer is read by the caller
}

// call sends a request and reads its answer.
func call[T any](ctx context.Context, c *Client, r request) (*T, error) {
	answer := new(T)
	_, err := c.do(ctx, r, func(body []byte) error { return json.Unmarshal(body, answer) })
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// do sends a request until it succeeds or may not be sent again.
func (c *Client) do(ctx context.Context, r request, read func(body []byte) error) (io.ReadCloser, error) {
	address := c.url + r.path
	if r.query != nil {
		query, err := encodeQuery(r.query)
		if err != nil {
			return nil, err
		}
		address += query
	}
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return nil, err
		}
	}
	key := ""
	if r.repeat == keyed {
		key, _ = ctx.Value(idempotencyKey{}).(string)
		key = cmp.Or(key, rand.Text())
	}
	for attempt := 1; ; attempt++ {
		stream, err := c.attempt(ctx, r, address, body, key, read)
		if err == nil {
			return stream, nil
		}
		again := r.repeat != once
		after := time.Duration(0)
		if failed := (*Error)(nil); errors.As(err, &failed) {
			failed.Attempts = attempt
			again = failed.Status == http.StatusTooManyRequests || again && mayPass(failed.Status)
			after = failed.RetryAfter
		}
		if !again || attempt >= c.Attempts || ctx.Err() != nil {
			return nil, err
		}
		if err := c.wait(ctx, attempt, after); err != nil {
			return nil, err
		}
	}
}

// mayPass reports whether the same request may succeed later.
func mayPass(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}

// maxWait limits back-off; a longer Retry-After is kept.
const maxWait = 30 * time.Second

func (c *Client) wait(ctx context.Context, attempt int, after time.Duration) error {
	longest := min(c.Backoff<<min(attempt-1, 20), maxWait)
	timer := time.NewTimer(max(after, longest/2+rand2.N(longest/2+1)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (c *Client) attempt(ctx context.Context, r request, address string, body []byte, key string, read func([]byte) error) (io.ReadCloser, error) {
	cancel := context.CancelFunc(func() {})
	if !r.stream {
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
	}
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, r.method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if c.key != "" {
		request.Header.Set("Authorization", "Bearer "+c.key)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	if r.stream && response.StatusCode < 300 {
		return response.Body, nil
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		return nil, readError(response, answer)
	}
	if err := read(answer); err != nil {
		return nil, fmt.Errorf("%d with a body that is not the service's: %w", response.StatusCode, err)
	}
	return nil, nil
}

func readError(response *http.Response, body []byte) *Error {
	e := &Error{Status: response.StatusCode, RequestID: response.Header.Get("X-Request-Id"), Body: body}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	var text struct {
		Code, Message, Detail string
		Error                 struct{ Code, Message string } // of verify
	}
	if json.Unmarshal(body, &text) == nil {
		e.Code, e.Message, e.Detail = cmp.Or(text.Code, text.Error.Code), cmp.Or(text.Message, text.Error.Message), text.Detail
	}
	if of, ok := strings.CutPrefix(e.Message, "Invalid request parameters: "); ok {
		e.Field, _, _ = strings.Cut(of, " ")
	}
	return e
}

// encodeQuery returns the query string of a struct, with its "?".
func encodeQuery(query any) (string, error) {
	text, err := json.Marshal(query)
	if err != nil {
		return "", err
	}
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil || len(fields) == 0 {
		return "", err
	}
	values := url.Values{}
	for name, v := range fields {
		values.Set(name, fmt.Sprint(v))
	}
	return "?" + values.Encode(), nil
}

// withFields returns the JSON of an object with further fields. The known ones take precedence.
func withFields(known any, further map[string]any) ([]byte, error) {
	text, err := json.Marshal(known)
	if err != nil || len(further) == 0 {
		return text, err
	}
	object := maps.Clone(further)
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, err
	}
	return json.Marshal(object)
}
