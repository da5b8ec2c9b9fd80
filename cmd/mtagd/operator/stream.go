package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"mtagd/store"
)

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
