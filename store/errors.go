package store

import (
	"errors"
	"fmt"
)

// Kind classifies an error for programs. Each protocol has one table that maps kinds to its own codes.
type Kind uint8

// The kinds of error. An error without a kind is internal.
const (
	KindInternal    Kind = iota
	KindInvalid          // the input is wrong; Field says which part
	KindNotFound         // the resource does not exist
	KindForbidden        // the resource belongs to another partner
	KindConflict         // another merchant or partner has the domain
	KindUnavailable      // the engine cannot accept the request now; nothing was done; retry later
	KindBusy             // the caller has too many requests in flight; nothing was done; retry later
	KindMismatch         // another request had the same idempotency key
	KindUncertain        // the engine cannot find out now whether it was done; a request that may be repeated should be
	KindLimited          // a partner or merchant has as much of something as it may have; waiting does not help
)

// Error is an error with a kind. Customers may see its message, so it must not mention internals.
type Error struct {
	Kind    Kind
	Field   string // the field of the request that is wrong, or what is limited; may be empty
	Message string
}

func (e *Error) Error() string {
	if e.Field != "" {
		return e.Field + " " + e.Message
	}
	return e.Message
}

// Invalid returns the error for a wrong field. The message continues a sentence that starts with the field's name.
func Invalid(field, format string, args ...any) error {
	return &Error{Kind: KindInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Conflict returns the error for a field whose value is already taken. The message is as for Invalid.
func Conflict(field, message string) error {
	return &Error{Kind: KindConflict, Field: field, Message: message}
}

// NotFound returns the error for a resource that does not exist. what names the resource, such as "merchant".
func NotFound(what string) error {
	return &Error{Kind: KindNotFound, Message: what + " not found"}
}

// Unavailable returns the error for a request that the engine cannot accept now.
func Unavailable(why string) error {
	return &Error{Kind: KindUnavailable, Message: why}
}

// Uncertain returns the error for a request that was done or not: the engine cannot tell.
func Uncertain(why string) error {
	return &Error{Kind: KindUncertain, Message: why}
}

// Busy returns the error for a caller that has too many requests in flight.
func Busy(why string) error {
	return &Error{Kind: KindBusy, Message: why}
}

// Limited returns the error for a limit that a partner or merchant has reached. field is the field of the request that
// needs one more, or what cannot be created, such as "merchant". The message continues the sentence as for Invalid. It
// says how many there are, and what to do.
func Limited(field, format string, args ...any) error {
	return &Error{Kind: KindLimited, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Mismatch returns the error for an idempotency key that another request had, or whose answer cannot be given again. The
// message continues a sentence that starts with the key's header.
func Mismatch(message string) error {
	return &Error{Kind: KindMismatch, Field: "Idempotency-Key", Message: message}
}

// ErrInUse is returned when an engine is opened that another process has open, and only one process can.
var ErrInUse = errors.New("data directory is in use by another process")

// ErrNeedsRestart is in the error of Engine.Ready when the engine accepts nothing until its process is restarted, and a
// restart is safe. After a failed write of events it is not in the error: the disk must be checked before a restart.
var ErrNeedsRestart = errors.New("a restart is needed")

// KindOf returns the kind of an error; KindInternal when it has none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindInternal
}
