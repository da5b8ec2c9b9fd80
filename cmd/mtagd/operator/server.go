package operator

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"reflect"

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

func (l listener) Close() error {
	defer l.release()
	return l.Listener.Close()
}

// ConnContext is the http.Server.ConnContext for a listener of Listen. Commands count as those of the user at the other end.
func ConnContext(ctx context.Context, conn net.Conn) context.Context {
	socket, is := conn.(*net.UnixConn)
	if !is {
		return ctx
	}
	name, err := peer(socket)
	if err != nil {
		name = "unknown"
	}
	return byOperator(ctx, name)
}

// Running is the control data of a running server, with what only the server knows.
type Running struct {
	store.Control
	BaseURL   string          // of the console
	Claimable store.Claimable // rules for domains. Only a server knows the service's own hosts; serve warns of bad domains when it starts

	Order     func(host string)                      // orders a certificate, in the background; nil without TLS
	RotateKey func(ctx context.Context) (int, error) // of the credentials of destinations, whose number it returns; nil without delivery
}

// EnablePreverified implements store.Control. The tracking domain must be claimable. Its certificate is ordered immediately.
func (r Running) EnablePreverified(ctx context.Context, id store.PartnerID, domain string) (store.Partner, error) {
	host, err := store.CheckHostName("domain", domain)
	if err == nil {
		err = r.Claimable.Check("domain", host)
	}
	if err != nil {
		return store.Partner{}, err
	}
	p, err := r.Control.EnablePreverified(ctx, id, host)
	if err == nil && r.Order != nil {
		r.Order(p.TrackingDomain)
	}
	return p, err
}

// Handler runs the commands that arrive on a listener of Listen, in a server with ConnContext.
func Handler(control store.Control) *http.ServeMux {
	mux := http.NewServeMux()
	handleAll(mux, reflect.TypeFor[Commands](), control)
	return mux
}

// handleAll adds a command to the mux, or all commands of a group.
func handleAll(mux *http.ServeMux, t reflect.Type, control store.Control) {
	if !t.Implements(reflect.TypeFor[Command]()) {
		for i := range t.NumField() {
			handleAll(mux, t.Field(i).Type, control)
		}
		return
	}
	mux.HandleFunc("POST "+pathOf(t), func(w http.ResponseWriter, r *http.Request) {
		command := reflect.New(t)
		if !Decode(w, r, command.Interface()) {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		status := statusDone
		result, err := command.Elem().Interface().(Command).apply(r.Context(), control)
		if err != nil {
			status, result = statusFailed, wireError(err)
		}
		w.WriteHeader(status)
		// This fails if the client has disconnected. Then no one reads the result.
		_ = json.NewEncoder(w).Encode(result)
	})
}

// maxMessage bounds a message, in bytes.
const maxMessage = 64 << 10

// Decode reads the message of a request. When that fails, Decode answers with the error and returns false.
func Decode(w http.ResponseWriter, r *http.Request, message any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage)).Decode(message)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return err == nil
}

// wireError makes the error that is sent over the socket. It has the whole text of err: only operators read it.
func wireError(err error) *store.Error {
	if e, ok := errors.AsType[*store.Error](err); ok {
		return e
	}
	return &store.Error{Kind: store.KindInternal, Message: err.Error()}
}
