package delivery

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// Bounds of one request.
const (
	dialTimeout    = 5 * time.Second
	requestTimeout = 15 * time.Second // all of it
	keptAnswer     = 1 << 10          // what a merchant is shown
	keptReason     = 500              // of what a kind finds in it
)

var errAddress = errors.New("the address is not public, and the operator has not allowed it")

// guard decides which addresses a request may reach: public ones, and those in these networks.
type guard store.Networks

// control is called with the address that a connection is about to be made to, after DNS, each time.
func (allow guard) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !store.IsPublicAddress(at.Addr()) && !store.Networks(allow).Contain(at.Addr().Unmap().WithZone("")) {
		return errAddress
	}
	return nil
}

// client sends requests.
type client struct {
	dial kind.Dial
	http *http.Client
}

func newClient(allow store.Networks, roots *tls.Config) *client {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second, Control: guard(allow).control}
	return &client{
		dial: dialer.DialContext,
		http: &http.Client{
			Transport: &http.Transport{
				Proxy:       nil, // a proxy would look up the name, and reach any address
				DialContext: dialer.DialContext, TLSClientConfig: roots, TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true,
				MaxIdleConns: 256, MaxIdleConnsPerHost: 128, IdleConnTimeout: 30 * time.Second, ResponseHeaderTimeout: requestTimeout,
				MaxResponseHeaderBytes: 32 << 10, ReadBufferSize: 2 << 10, WriteBufferSize: 2 << 10, DisableCompression: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// sent is what became of a request.
type sent struct {
	answer kind.Answer
	took   time.Duration
	err    error // no answer
}

// retryAfter is what the answer asks for; 0: nothing.
func (s sent) retryAfter(now time.Time) time.Duration {
	text := s.answer.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
		return min(time.Duration(seconds)*time.Second, maxBackoff)
	}
	if at, err := http.ParseTime(text); err == nil && at.After(now) {
		return min(at.Sub(now), maxBackoff)
	}
	return 0
}

func (c *client) send(ctx context.Context, r kind.Request, timeout time.Duration) (s sent) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	defer func() { s.took = time.Since(began) }()
	if r.Do != nil {
		answer, err := r.Do(ctx, c.dial)
		return sent{answer: answer, err: plain(err)}
	}
	request, err := http.NewRequestWithContext(ctx, cmp.Or(r.Method, http.MethodPost), r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return sent{err: errors.New("the address cannot be used")}
	}
	request.Header = r.Header.Clone()
	request.Header.Set("User-Agent", "mtagd")
	response, err := c.http.Do(request)
	if err != nil {
		return sent{err: plain(err)}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, r.MaxAnswer()))
	if response.StatusCode/100 == 2 {
		err = nil // it was taken; the rest of the answer does not count
	}
	return sent{answer: kind.Answer{Status: response.StatusCode, Header: response.Header, Body: body}, err: plain(err)}
}

// plain returns an error without the address, whose query may have a secret.
func plain(err error) error {
	var timeout net.Error
	dns, isDNS := errors.AsType[*net.DNSError](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errAddress):
		return errAddress
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case isDNS:
		return fmt.Errorf("DNS: %s %s", dns.Name, dns.Err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return errors.New("no answer in time")
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}
