package certs

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"go.uber.org/zap/zapcore"
)

// logCore writes certmagic's warnings and errors to the service's own log. It keeps only fields that are known to be
// harmless: others could hold an email address or a client's IP address.
type logCore struct {
	log    *slog.Logger
	redact func(string) string
	fields []zapcore.Field
}

var harmlessFields = []string{"identifier", "identifiers", "subjects", "server_name", "issuer", "ca", "error",
	"expiration", "remaining", "url", "method", "status_code", "challenge_type", "explanation_url"}

// Enabled drops info and debug messages: this package itself logs each certificate that is issued or renewed.
func (l *logCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (l *logCore) With(fields []zapcore.Field) zapcore.Core {
	return &logCore{l.log, l.redact, slices.Concat(l.fields, fields)}
}

func (l *logCore) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if l.Enabled(entry.Level) {
		return to.AddCore(entry, l)
	}
	return to
}

// Write logs errors as warnings too: each concerns one host, and what failed is retried.
func (l *logCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(l.fields, fields) {
		if slices.Contains(harmlessFields, f.Key) {
			f.AddTo(values)
		}
	}
	attrs := []slog.Attr{slog.String("event", l.redact(entry.Message))}
	for _, key := range harmlessFields {
		if v, ok := values.Fields[key]; ok {
			attrs = append(attrs, slog.String(key, l.redact(fmt.Sprint(v))))
		}
	}
	l.log.LogAttrs(context.Background(), slog.LevelWarn, "certificates", attrs...)
	return nil
}

func (l *logCore) Sync() error { return nil }
