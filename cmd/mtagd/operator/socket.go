package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
)

// socketName is the operator socket's file in the data directory. The file's mode is the only access control: anyone who
// can write to it can run operator commands.
const socketName = "mtagd.sock"

// The statuses of an answer. Any other status means that the server did not understand the message.
const (
	statusDone   = http.StatusOK                  // the body is the result
	statusFailed = http.StatusUnprocessableEntity // the body is a store.Error
)

// socketPath returns a path of the operator socket that is short enough for the system: at most 108 bytes. If the path is
// too long, the directory's entry under /proc replaces the directory; that path is valid until release is called.
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

// Message is a part of the answer to a long command: its progress, a finding, or at the end its result or failure.
type Message struct {
	Step        string          `json:"step,omitempty"`
	Done, Total uint64          `json:",omitempty"` // of the step
	Finding     *store.Finding  `json:"finding,omitempty"`
	Result      json.RawMessage `json:"result,omitempty"`
	Failure     *store.Error    `json:"failure,omitempty"`
}

const (
	// progressInterval is how often a running server sends its progress.
	progressInterval = 200 * time.Millisecond
	// StreamTimeout is how long the server waits for a client that does not read.
	StreamTimeout = 5 * time.Minute
)

// Answer sends the messages of run, and then its result or error. The context of run ends when the client disconnects.
func Answer(w http.ResponseWriter, r *http.Request, run func(ctx context.Context, say func(Message)) (result any, err error)) {
	w.Header().Set("Content-Type", "application/json")
	control := http.NewResponseController(w)
	var sent time.Time
	step := ""
	// Writes fail when the client has disconnected: then the request's context ends the run.
	say := func(m Message) {
		if m.Step != "" && m.Step == step && time.Since(sent) < progressInterval {
			return
		}
		sent, step = time.Now(), m.Step
		_ = control.SetWriteDeadline(sent.Add(StreamTimeout))
		_ = json.NewEncoder(w).Encode(m)
		_ = control.Flush()
	}
	result, err := run(r.Context(), say)
	if err == nil {
		var text []byte
		if text, err = json.Marshal(result); err == nil {
			say(Message{Result: text})
		}
	}
	if err != nil {
		say(Message{Failure: wireError(err)})
	}
}

// ErrStopped is the error of a command whose server stopped before its end.
var ErrStopped = errors.New("the server stopped before the command was complete")

// Ask sends a request to the running server of a data directory, which answers with Answer. Ask passes the messages to hear,
// and decodes the result. IsNoServer is true for the error of a data directory without a running server.
func Ask(ctx context.Context, data, path string, request any, hear func(Message), result any) error {
	answer, err := Request(ctx, data, http.MethodPost, path, request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	for messages := json.NewDecoder(answer.Body); ; {
		var m Message
		if err := messages.Decode(&m); err != nil {
			return fmt.Errorf("%w: %w", ErrStopped, err)
		}
		switch {
		case m.Failure != nil:
			return m.Failure
		case m.Result != nil:
			return json.Unmarshal(m.Result, result)
		default:
			hear(m)
		}
	}
}

// byOperator returns the context of a command that a system user runs.
func byOperator(ctx context.Context, user string) context.Context {
	return store.WithActor(ctx, store.Actor{Kind: store.ByOperator, Name: user})
}

// peer returns the name of the system user at the other end of a unix socket, as the kernel knows it.
func peer(socket *net.UnixConn) (string, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return "", err
	}
	var credentials *unix.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) {
		credentials, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, failure); err != nil {
		return "", err
	}
	return userName(int(credentials.Uid), int(credentials.Pid)), nil
}

// ownName returns the name of the user that this process runs as.
func ownName() string { return userName(os.Geteuid(), os.Getpid()) }

// userName returns the name of a process's user. If somebody logged in as another user and then changed to this one, as
// with sudo, it is "ann (as mtagd)". The kernel keeps the login's user where a login sets it.
func userName(uid, pid int) string {
	name := nameOf(uid)
	login, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", pid))
	if err != nil {
		return name
	}
	const unset = 1<<32 - 1
	id, err := strconv.ParseUint(strings.TrimSpace(string(login)), 10, 32)
	if err != nil || id == unset || int(id) == uid {
		return name
	}
	return nameOf(int(id)) + " (as " + name + ")"
}

func nameOf(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return "uid " + strconv.Itoa(uid)
}
