package operator

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"

	"mtagd/store"
)

// Listen opens the operator socket in a data directory. The caller must have the data open, which excludes other
// servers. So a socket file that already exists was left by a server that was killed, and is removed.
func Listen(data string) (net.Listener, error) {
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
	return listener{l, release}, nil
}

// listener removes its socket file on Close. It releases the file's path only after that.
type listener struct {
	net.Listener
	release func()
}

// Accept returns a connection whose remote address is the name of the system user at its other end.
func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	name, err := peer(conn)
	if err != nil {
		name = "unknown"
	}
	return userConn{conn, userAddr(name)}, nil
}

type userConn struct {
	net.Conn
	user userAddr
}

func (c userConn) RemoteAddr() net.Addr { return c.user }

// userAddr is the name of a user as the address of a connection.
type userAddr string

func (userAddr) Network() string  { return "unix" }
func (a userAddr) String() string { return string(a) }

func (l listener) Close() error {
	defer l.release()
	return l.Listener.Close()
}

// Handler runs the commands that arrive on a listener of Listen.
func Handler(control store.Control, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	handle[partnerAdd](mux, control, log)
	handle[partnerList](mux, control, log)
	handle[partnerPreverify](mux, control, log)
	handle[partnerSuspend](mux, control, log)
	handle[partnerResume](mux, control, log)
	handle[partnerRename](mux, control, log)
	handle[partnerDelete](mux, control, log)
	handle[partnerLimit](mux, control, log)
	handle[keyIssue](mux, control, log)
	handle[keyList](mux, control, log)
	handle[keyRevoke](mux, control, log)
	handle[consoleLink](mux, control, log)
	handle[consoleEnd](mux, control, log)
	handle[merchantList](mux, control, log)
	handle[merchantShow](mux, control, log)
	handle[merchantSuspend](mux, control, log)
	handle[merchantResume](mux, control, log)
	handle[merchantRename](mux, control, log)
	handle[merchantRetain](mux, control, log)
	handle[merchantDelete](mux, control, log)
	handle[merchantRemovals](mux, control, log)
	handle[merchantLimit](mux, control, log)
	handle[tagShow](mux, control, log)
	handle[tagSuspend](mux, control, log)
	handle[tagResume](mux, control, log)
	handle[AuditCommand](mux, control, log)
	handle[domainList](mux, control, log)
	handle[domainRelease](mux, control, log)
	return mux
}

// maxMessage bounds a message, in bytes.
const maxMessage = 64 << 10

// handle adds one command to the mux.
func handle[C Command](mux *http.ServeMux, control store.Control, log *slog.Logger) {
	var zero C
	mux.HandleFunc("POST "+zero.path(), func(w http.ResponseWriter, r *http.Request) {
		var command C
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage)).Decode(&command); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		status := statusDone
		result, err := command.apply(byOperator(r.Context(), r.RemoteAddr), control, log)
		if err != nil {
			status, result = statusFailed, wireError(err)
		}
		w.WriteHeader(status)
		// This fails if the client has disconnected. Then no one reads the result.
		_ = json.NewEncoder(w).Encode(result)
	})
}

// wireError makes the error that is sent over the socket. It has the kind and the text of err, even internal details:
// only operators read it.
func wireError(err error) *store.Error {
	if e, ok := errors.AsType[*store.Error](err); ok {
		return e
	}
	return &store.Error{Kind: store.KindInternal, Message: err.Error()}
}
