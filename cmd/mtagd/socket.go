package main

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
	"os"
	"path/filepath"
	"syscall"
	"time"

	"mtagd/store"
	"mtagd/store/local"
)

// socketName is the operator socket's file in the data directory. Who may write there may do what an
// operator may: the file's mode is the only lock.
const socketName = "mtagd.sock"

// How long an operator command waits for a server that is starting or stopping, and for the answer of one
// that runs.
const (
	operatorPatience = 10 * time.Second
	operatorRetry    = 50 * time.Millisecond
	operatorTimeout  = 30 * time.Second
)

// operate carries out a command, in the running server or else in the data directory itself, and prints
// its result.
func (p *process) operate(c operatorCommand) error {
	result, err := p.perform(c)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, result, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintln(p.stdout, string(bytes.TrimSpace(text.Bytes())))
	return err
}

// perform tries the socket first. Without a server behind it, the data directory is free to be opened;
// when it is not, a server is just starting or stopping, and both are tried again.
func (p *process) perform(c operatorCommand) ([]byte, error) {
	ctx, cancel := context.WithTimeout(p.ctx, operatorPatience)
	defer cancel()
	for {
		result, err := p.performOnline(c)
		if !isNoServer(err) {
			return result, err
		}
		result, err = p.performOffline(c)
		if !errors.Is(err, store.ErrInUse) {
			return result, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(operatorRetry):
		}
	}
}

func (p *process) performOffline(c operatorCommand) (_ []byte, err error) {
	control, err := local.OpenControl(p.data, local.Options{})
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", p.data, err)
	}
	defer func() { err = errors.Join(err, control.Close()) }()
	result, err := c.apply(p.ctx, control)
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}

func (p *process) performOnline(c operatorCommand) ([]byte, error) {
	message, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: operatorTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			path, release, err := socketPath(p.data)
			if err != nil {
				return nil, err
			}
			defer release()
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	request, err := http.NewRequestWithContext(p.ctx, http.MethodPost, "http://mtagd"+c.path(), bytes.NewReader(message))
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("operator socket: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	switch response.StatusCode {
	case http.StatusOK:
		return answer, nil
	case http.StatusUnprocessableEntity:
		var refused store.Error
		if err := json.Unmarshal(answer, &refused); err != nil {
			return nil, err
		}
		return nil, &refused
	default:
		return nil, fmt.Errorf("the running server does not know this command: is it of another version? %s", response.Status)
	}
}

// isNoServer tells an absent or abandoned socket from a server that did not answer.
func isNoServer(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ECONNREFUSED)
}

// listenOperators opens the operator socket. The caller has the data directory open, so a socket that
// is there was left behind.
func listenOperators(data string) (net.Listener, error) {
	path, release, err := socketPath(data)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		release()
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		release()
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		release()
		return nil, err
	}
	return operatorListener{l, release}, nil
}

// operatorListener removes its socket when it is closed, by a path that needs to stay valid until then.
type operatorListener struct {
	net.Listener
	release func()
}

func (l operatorListener) Close() error {
	defer l.release()
	return l.Listener.Close()
}

// socketPath is a path to the operator socket that the system accepts: a socket's own path may have 108
// bytes at most, a data directory's many more. A long one is replaced by its directory's entry
// under /proc, which is valid until release is called.
func socketPath(data string) (path string, release func(), err error) {
	const maxLength = 100
	path = filepath.Join(data, socketName)
	if len(path) <= maxLength {
		return path, func() {}, nil
	}
	dir, err := os.Open(data)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName), func() { dir.Close() }, nil
}
