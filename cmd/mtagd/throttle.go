package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"mtagd/store"
)

// A client that makes every request fail must not fill the disk with log lines. So the log has at most linesPerMessage lines
// of one message in a minute, and then one line that says how many were dropped.
//
// The refusals of all causes have the same message. Each cause logs up to two lines in a minute, and none of these may be
// dropped. So linesPerMessage must be more than twice the number of causes.
const (
	linesPerMessage  = 50
	throttleInterval = time.Minute
)

// maxMessages bounds the memory: a few messages are not constants of the program. Those beyond it count as one.
const (
	maxMessages  = 1000
	otherMessage = "other messages"
)

// throttled is a slog.Handler that drops lines whose message was logged too often.
type throttled struct {
	slog.Handler
	*messageCounts // shared by the handlers that are derived with attributes
}

// messageCounts counts the lines of each message in the current minute.
type messageCounts struct {
	mu    sync.Mutex
	lines map[string]int
}

// throttle returns a throttled in front of a handler. It does not drop debug lines: whoever turns them on wants all.
// Nor does it drop copies of audit entries: there are only as many as changes.
func throttle(h slog.Handler) slog.Handler {
	return throttled{h, &messageCounts{lines: map[string]int{}}}
}

func (h throttled) Handle(ctx context.Context, line slog.Record) error {
	if line.Level < slog.LevelInfo || line.Message == store.AuditMessage || h.allow(h.Handler, line) {
		return h.Handler.Handle(ctx, line)
	}
	return nil
}

func (h throttled) WithAttrs(attrs []slog.Attr) slog.Handler {
	return throttled{h.Handler.WithAttrs(attrs), h.messageCounts}
}

func (h throttled) WithGroup(name string) slog.Handler {
	return throttled{h.Handler.WithGroup(name), h.messageCounts}
}

// allow counts a line, and reports whether it may be logged. The first line of a message starts its minute.
func (c *messageCounts) allow(h slog.Handler, line slog.Record) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	message := line.Message
	n, counted := c.lines[message]
	if !counted && len(c.lines) >= maxMessages {
		message = otherMessage
		n, counted = c.lines[message]
	}
	c.lines[message] = n + 1
	if !counted {
		time.AfterFunc(throttleInterval, func() { c.endMinute(h, line.Level, message) })
	}
	return n < linesPerMessage
}

// endMinute forgets a message, and logs how many lines of it were dropped.
func (c *messageCounts) endMinute(h slog.Handler, level slog.Level, message string) {
	c.mu.Lock()
	dropped := c.lines[message] - linesPerMessage
	delete(c.lines, message)
	c.mu.Unlock()
	if dropped <= 0 {
		return
	}
	line := slog.NewRecord(time.Now(), level, "more lines like this were dropped", 0)
	line.AddAttrs(slog.String("message", message), slog.Int("dropped", dropped))
	// A log that cannot be written cannot report it either.
	_ = h.Handle(context.Background(), line)
}
