package sdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
)

// bidi is a connection of WebDriver BiDi (W3C), the protocol that drives Firefox.
type bidi struct {
	conn *websocket.Conn

	mu       sync.Mutex
	last     int                        // the id of the last command
	answers  map[int]chan<- bidiMessage // by the id of the command
	consoles map[string]func(logEntry)  // by browsing context
	failed   error                      // why the connection has ended
}

// bidiMessage is a message of the browser: the answer to a command, or an event.
type bidiMessage struct {
	Type    string // success, error or event
	ID      int
	Result  json.RawMessage
	Error   string // the kind of the error
	Message string
	Method  string
	Params  json.RawMessage
}

// logEntry is the event log.entryAdded.
type logEntry struct {
	Type   string // console for a call of its functions, javascript for lines of the browser itself
	Level  string
	Text   string
	Source struct{ Context string }
}

// dialBiDi opens a session with a browser that listens at a WebSocket URL.
func dialBiDi(url string) (*bidi, error) {
	ctx, stop := context.WithTimeout(context.Background(), waitLimit)
	defer stop()
	conn, _, err := websocket.Dial(ctx, url+"/session", nil)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1)
	b := &bidi{conn: conn, answers: map[int]chan<- bidiMessage{}, consoles: map[string]func(logEntry){}}
	go b.read()
	capabilities := map[string]any{"alwaysMatch": map[string]any{"acceptInsecureCerts": true}}
	if err := b.call("session.new", params{"capabilities": capabilities}, nil); err != nil {
		return nil, err
	}
	return b, b.call("session.subscribe", params{"events": []string{"log.entryAdded"}}, nil)
}

// read passes messages on until the connection ends.
func (b *bidi) read() {
	for {
		var m bidiMessage
		err := wsjson.Read(context.Background(), b.conn, &m)
		b.mu.Lock()
		if err != nil {
			b.failed = fmt.Errorf("the connection to Firefox has ended: %w", err)
			for _, answer := range b.answers {
				close(answer)
			}
			b.mu.Unlock()
			return
		}
		switch m.Method {
		case "":
			if answer := b.answers[m.ID]; answer != nil {
				answer <- m
				delete(b.answers, m.ID)
			}
		case "log.entryAdded":
			var entry logEntry
			if json.Unmarshal(m.Params, &entry) == nil {
				if console := b.consoles[entry.Source.Context]; console != nil {
					console(entry)
				}
			}
		}
		b.mu.Unlock()
	}
}

// params are the parameters of a command.
type params = map[string]any

// call runs a command and decodes its result, unless that is nil. It fails after waitLimit.
func (b *bidi) call(method string, p params, result any) error {
	ctx, stop := context.WithTimeout(context.Background(), waitLimit)
	defer stop()
	answer := make(chan bidiMessage, 1)
	b.mu.Lock()
	if b.failed != nil {
		b.mu.Unlock()
		return b.failed
	}
	b.last++
	id := b.last
	b.answers[id] = answer
	b.mu.Unlock()
	if err := wsjson.Write(ctx, b.conn, params{"id": id, "method": method, "params": p}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case m, ok := <-answer:
		switch {
		case !ok:
			return b.failed
		case m.Error == "unknown command", m.Error == "invalid argument":
			return fmt.Errorf("%s: %w: %s", method, errTooOld, m.Message)
		case m.Type == "error":
			return fmt.Errorf("%s: %s: %s", method, m.Error, m.Message)
		case result == nil:
			return nil
		}
		return json.Unmarshal(m.Result, result)
	}
}

// listen passes the console of a browsing context to a function.
func (b *bidi) listen(context string, console func(logEntry)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.consoles[context] = console
}

var errTooOld = errors.New("the browser does not know the command, or its parameters")

var errScript = errors.New("the script has thrown an exception")

// evaluate evaluates a script in a browsing context, and returns its value as JSON.
func (b *bidi) evaluate(context, script string, awaitPromise bool) (json.RawMessage, error) {
	var evaluated struct {
		Type             string
		Result           struct{ Value json.RawMessage }
		ExceptionDetails struct{ Text string }
	}
	err := b.call("script.evaluate", params{
		"expression": script, "target": params{"context": context}, "awaitPromise": awaitPromise,
		"serializationOptions": params{"maxObjectDepth": 0},
	}, &evaluated)
	if err == nil && evaluated.Type == "exception" {
		err = fmt.Errorf("%w: %s", errScript, evaluated.ExceptionDetails.Text)
	}
	return evaluated.Result.Value, err
}
