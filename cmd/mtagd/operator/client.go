package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"mtagd/store"
)

// Client runs commands on the service of one data directory.
type Client struct {
	Data string // the data directory, which contains the socket of a running server
	// Open opens the control data when no server runs. It returns store.ErrInUse when another process has the data open.
	// If there is no data, it creates some if create is set, and else returns an error.
	Open func(ctx context.Context, create bool) (Control, error)
}

// Control is opened control data.
type Control interface {
	store.Control
	io.Closer
}

const (
	busyTimeout   = 10 * time.Second // how long to retry while the data is in use
	busyRetry     = 50 * time.Millisecond
	answerTimeout = 30 * time.Second // how long to wait for a running server's answer
	rotateTimeout = time.Hour
)

// Run runs a command and returns its result as JSON. It tries the socket first. If no server listens there, it opens the
// data itself. If the data is in use, Run tries both again.
func (c Client) Run(ctx context.Context, command Command) (result []byte, err error) {
	err = WhileInUse(ctx, func() error {
		if result, err = c.send(ctx, command); IsNoServer(err) {
			result, err = c.runHere(ctx, command)
		}
		return err
	})
	return result, err
}

// WhileInUse repeats try for up to ten seconds while the data is in use, as by a server that starts or stops.
func WhileInUse(ctx context.Context, try func() error) error {
	deadline, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	for {
		if err := try(); !errors.Is(err, store.ErrInUse) || store.Sleep(deadline, busyRetry) != nil {
			return err
		}
	}
}

func (c Client) send(ctx context.Context, command Command) ([]byte, error) {
	timeout := answerTimeout
	if _, long := command.(secretRotate); long { // it writes each destination
		timeout = rotateTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := Request(ctx, c.Data, http.MethodPost, pathOf(reflect.TypeOf(command)), command)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// UnknownCommandError is the error of a command that the running server does not have.
type UnknownCommandError struct {
	Version string // of the server; empty: it is older than this error
}

func (e *UnknownCommandError) Error() string { return "the running server does not know this command" }

// Request sends a request to the operator socket of a data directory, with a message in JSON, on a connection of its
// own. The caller closes the answer's body. IsNoServer is true for the error of a data directory without a running
// server. While a server hangs up before it has read the message, it is asked again; at last that is store.ErrInUse.
func Request(ctx context.Context, data, method, path string, message any) (*http.Response, error) {
	text, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	var response *http.Response
	if err = WhileInUse(ctx, func() (err error) {
		response, err = send(ctx, data, method, path, text)
		return err
	}); err != nil {
		return nil, fmt.Errorf("operator socket: %w", err)
	}
	if response.StatusCode == statusDone {
		return response, nil
	}
	defer response.Body.Close()
	why, _ := io.ReadAll(io.LimitReader(response.Body, maxMessage)) // without it, the status says enough
	switch response.StatusCode {
	case statusFailed:
		var failure store.Error
		if err := json.Unmarshal(why, &failure); err != nil {
			return nil, err
		}
		return nil, &failure
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return nil, &UnknownCommandError{response.Header.Get("Server")}
	}
	return nil, fmt.Errorf("the running server answered %s %s", response.Status, bytes.TrimSpace(why))
}

// send sends a request to the running server. The server first says that it reads the message. Until then it has not started
// to do anything, and when it hangs up, that is store.ErrInUse. When it hangs up later, that is ErrStopped.
func send(ctx context.Context, data, method, path string, message []byte) (*http.Response, error) {
	var connected, reads atomic.Bool
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:        func(httptrace.GotConnInfo) { connected.Store(true) },
		Got100Continue: func() { reads.Store(true) },
	}), method, "http://mtagd"+path, bytes.NewReader(message))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Expect", "100-continue")
	const forever = 1 << 62
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: forever,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, data) }}}
	response, err := client.Do(request)
	switch {
	case err == nil || !connected.Load() || ctx.Err() != nil:
	case !reads.Load(): // the server stops, or the machine was too busy to send the header in time
		err = fmt.Errorf("%w: %w", store.ErrInUse, err)
	case slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE}, func(e error) bool { return errors.Is(err, e) }):
		err = fmt.Errorf("%w: %w", ErrStopped, err)
	}
	return response, err
}

// Dial connects to the operator socket of the server that runs on a data directory. IsNoServer says whether none does.
func Dial(ctx context.Context, data string) (net.Conn, error) {
	path, release, err := socketPath(data)
	if err != nil {
		return nil, err
	}
	defer release()
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

// IsNoServer reports whether there is no socket, or one that a killed server left behind. Other errors come from a server.
func IsNoServer(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ECONNREFUSED)
}

// runHere runs a command in this process, on the opened data.
func (c Client) runHere(ctx context.Context, command Command) (_ []byte, err error) {
	// All other commands need existing data, so that a mistyped directory is an error and not a new, empty service.
	_, creates := command.(partnerAdd)
	control, err := c.Open(ctx, creates)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, control.Close()) }()
	result, err := command.apply(byOperator(ctx, ownName()), control)
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}
