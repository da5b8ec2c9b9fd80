package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"mtagd/store"
)

const verifyPath = "/verify"

// WithVerify adds the verification of a running server's data to the handler of a listener. The answer is a stream of
// verifyMessage, each one JSON object. It ends when the command that asked for it ends.
func WithVerify(h http.Handler, verify store.Verify) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("POST "+verifyPath, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		s := messageStream{w: w, flush: http.NewResponseController(w)}
		counts, err := verify(r.Context(), store.Verification{
			Found: func(f store.Finding) { s.send(verifyMessage{Finding: &f}) },
			Read: func(p store.Part, done, total uint64) {
				if time.Since(s.sent) >= progressInterval {
					s.send(verifyMessage{Progress: &verifyProgress{p, done, total}})
				}
			},
		})
		if err != nil {
			s.send(verifyMessage{Failure: wireError(err)})
			return
		}
		s.send(verifyMessage{Verified: &counts})
	})
	return mux
}

// verifyMessage has one of its fields. The last message has Verified or Failure.
type verifyMessage struct {
	Finding  *store.Finding  `json:"finding,omitempty"`
	Progress *verifyProgress `json:"progress,omitempty"`
	Verified *store.Verified `json:"verified,omitempty"`
	Failure  *store.Error    `json:"failure,omitempty"`
}

type verifyProgress struct {
	Part        store.Part
	Done, Total uint64
}

// progressInterval is how often a running server sends how far it is.
const progressInterval = 200 * time.Millisecond

type messageStream struct {
	w     io.Writer
	flush *http.ResponseController
	sent  time.Time // the last message
}

// send sends a message. It fails when the command has ended: then the request's context ends the verification.
func (s *messageStream) send(m verifyMessage) {
	_ = json.NewEncoder(s.w).Encode(m)
	_ = s.flush.Flush()
	s.sent = time.Now()
}

// ErrNoServer is returned when no server runs on the data directory.
var ErrNoServer = errors.New("no server runs on this data directory")

// Verify verifies the data of a running server. It fails with ErrNoServer when there is none.
func (c Client) Verify(ctx context.Context, v store.Verification) (store.Verified, error) {
	body, err := Request(ctx, c.Data, http.MethodPost, verifyPath, nil)
	if IsNoServer(err) {
		return store.Verified{}, ErrNoServer
	}
	if err != nil {
		return store.Verified{}, err
	}
	defer body.Close()
	for messages := json.NewDecoder(body); ; {
		var m verifyMessage
		if err := messages.Decode(&m); err != nil {
			return store.Verified{}, fmt.Errorf("the server has stopped before the end: %w", err)
		}
		switch {
		case m.Finding != nil:
			v.Found(*m.Finding)
		case m.Progress != nil:
			v.Read(m.Progress.Part, m.Progress.Done, m.Progress.Total)
		case m.Verified != nil:
			return *m.Verified, nil
		case m.Failure != nil:
			return store.Verified{}, m.Failure
		}
	}
}
