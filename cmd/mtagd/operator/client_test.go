package operator

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"mtagd/store"
	"mtagd/store/local"
)

// Without a server, the client opens the control data with Open, and retries while the data is in use. Only "partner
// add" may create it.
func TestClientOpensTheControlData(t *testing.T) {
	data := t.TempDir()
	var creates []bool
	client := Client{Data: data, Open: func(_ context.Context, create bool) (Control, error) {
		if creates = append(creates, create); len(creates) < 3 {
			return nil, store.ErrInUse
		}
		return local.OpenControl(data, local.Options{})
	}}
	run := func(c Command, result any) {
		t.Helper()
		answer, err := client.Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(answer, result); err != nil {
			t.Fatal(err)
		}
	}
	var added partnerView
	run(partnerAdd{Name: "Agency"}, &struct{ PartnerID *store.PartnerID }{&added.ID})
	for _, create := range creates {
		if !create || len(creates) != 3 {
			t.Fatalf("opened with %v", creates)
		}
	}
	var list, keys []json.RawMessage
	run(partnerList{}, &list)
	run(keyIssue{Partner: added.ID}, &struct{}{})
	run(keyList{Partner: added.ID}, &keys)
	if len(list) != 1 || len(keys) != 1 {
		t.Errorf("%d partners, %d keys", len(list), len(keys))
	}
	for _, create := range creates[3:] {
		if create {
			t.Errorf("opened with %v", creates)
		}
	}
}

// An error of Open is returned as it is. An error of the engine keeps its kind on the way from the server.
func TestClientReturnsErrors(t *testing.T) {
	client := Client{Data: t.TempDir(), Open: func(context.Context, bool) (Control, error) {
		return nil, errors.New("no database")
	}}
	if _, err := client.Run(t.Context(), partnerList{}); err == nil || err.Error() != "no database" {
		t.Errorf("without a server: %v", err)
	}

	control, err := local.OpenControl(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	socket, err := Listen(client.Data)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: Handler(control), ConnContext: ConnContext}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(socket) }()
	if _, err := client.Run(t.Context(), keyList{Partner: "nobody"}); store.KindOf(err) != store.KindNotFound {
		t.Errorf("from a server: %v", err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// A command that the server does not have is an error that names the server's version.
func TestCommandThatTheServerDoesNotKnow(t *testing.T) {
	data := t.TempDir()
	socket, err := Listen(data)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "1.0.0")
		http.NotFound(w, r)
	})}
	go func() { _ = server.Serve(socket) }() // until Close
	defer server.Close()
	_, sent := Client{Data: data}.Run(t.Context(), partnerList{})
	for _, err := range []error{sent, Ask(t.Context(), data, "/new", nil, nil, nil)} {
		if unknown, is := errors.AsType[*UnknownCommandError](err); !is || unknown.Version != "1.0.0" {
			t.Errorf("%v", err)
		}
	}
}

// A server on a busy machine may hang up before it has seen the request, because the header comes too late.
func TestAServerThatHangsUpIsAskedAgain(t *testing.T) {
	data := t.TempDir()
	socket, err := Listen(data)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })}
	go func() {
		if c, err := socket.Accept(); err == nil {
			c.Close()
		}
		_ = server.Serve(socket) // until Close
	}()
	defer server.Close()
	answer, err := Request(t.Context(), data, http.MethodPost, "/", "hello")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); string(text) != `"hello"` || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// A server that is killed before its answer begins has stopped before the command was complete.
func TestAServerThatEndsBeforeItAnswers(t *testing.T) {
	data := t.TempDir()
	socket, err := Listen(data)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	})}
	go func() { _ = server.Serve(socket) }() // until Close
	defer server.Close()
	if err := Ask(t.Context(), data, "/migrate", nil, nil, nil); !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
}

// A server that stops before it has read a command has not run it. So the command runs without a server.
func TestAServerThatStopsBeforeItReadsACommand(t *testing.T) {
	data := t.TempDir()
	socket, err := Listen(data)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range 3 {
			if conn, err := socket.Accept(); err == nil {
				_, _ = conn.Read(make([]byte, 10))
				conn.Close()
			}
		}
		socket.Close()
	}()
	client := Client{Data: data, Open: func(context.Context, bool) (Control, error) { return local.OpenControl(data, local.Options{}) }}
	if _, err := client.Run(t.Context(), partnerAdd{Name: "Agency"}); err != nil {
		t.Error(err)
	}
}

// Only the owner may open the operator socket.
func TestSocketMode(t *testing.T) {
	data := t.TempDir()
	l, err := Listen(data)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(data, socketName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, mode %v", err, info.Mode())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(data, socketName)); !os.IsNotExist(err) {
		t.Errorf("Close has not removed the socket: %v", err)
	}
}
