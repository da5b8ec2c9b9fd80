package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"mtagd/store"
)

// Message is a part of the answer to a command that takes long: how far it is, something that it has found, or at the end its result or
// its failure.
type Message struct {
	Step        string          `json:"step,omitempty"`
	Done, Total uint64          `json:",omitempty"` // of the step
	Finding     *store.Finding  `json:"finding,omitempty"`
	Result      json.RawMessage `json:"result,omitempty"`
	Failure     *store.Error    `json:"failure,omitempty"`
}

const (
	// progressInterval is how often a running server sends how far it is.
	progressInterval = 200 * time.Millisecond
	// StreamTimeout is how long the server waits for a command that does not read.
	StreamTimeout = 5 * time.Minute
)

// Answer sends the messages of run, and then its result or its error. The context of run ends when the command ends that asked for it.
func Answer(w http.ResponseWriter, r *http.Request, run func(ctx context.Context, say func(Message)) (result any, err error)) {
	w.Header().Set("Content-Type", "application/json")
	control := http.NewResponseController(w)
	var sent time.Time
	step := ""
	// It fails when the command has ended: then the request's context ends the run.
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

// Ask sends a request to the running server of a data directory, which answers by Answer, and passes its messages to hear. It decodes the
// result. IsNoServer reports whether the error is that there is no server.
func Ask(ctx context.Context, data, path string, request any, hear func(Message), result any) error {
	answer, err := Request(ctx, data, http.MethodPost, path, request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	for messages := json.NewDecoder(answer.Body); ; {
		var m Message
		if err := messages.Decode(&m); err != nil {
			return fmt.Errorf("the server has stopped before the end: %w", err)
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
