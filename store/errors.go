package store

import (
	"errors"
	"fmt"
)

// Kind tells programs what kind of error an operation ended with; each protocol has one table from kinds to its own codes.
type Kind uint8

// The kinds of error. An error of no kind counts as internal.
const (
	KindInternal    Kind = iota
	KindInvalid          // the input is wrong; Field names what
	KindNotFound         // the resource does not exist
	KindForbidden        // the resource exists, and is another partner's
	KindConflict         // the domain belongs to another merchant
	KindUnavailable      // the engine cannot take it now; nothing was done; try again
	KindBusy             // the caller has too much under way; nothing was done; try again
)

// Error is an error with a kind. Message is for the caller, who may be a customer: no internals.
type Error struct {
	Kind    Kind
	Field   string // the field of the request that is wrong, where there is one
	Message string
}

func (e *Error) Error() string {
	if e.Field != "" {
		return e.Field + " " + e.Message
	}
	return e.Message
}

// Invalid is the error of a field that is wrong; the message completes a sentence that starts with the field's name.
func Invalid(field, format string, args ...any) error {
	return &Error{Kind: KindInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Conflict is the error of a field whose value is taken; the message as for Invalid.
func Conflict(field, message string) error {
	return &Error{Kind: KindConflict, Field: field, Message: message}
}

// NotFound is the error of a resource that does not exist.
func NotFound(what string) error {
	return &Error{Kind: KindNotFound, Message: what + " not found"}
}

// Unavailable is the error of an engine that cannot take a write now.
func Unavailable(why string) error {
	return &Error{Kind: KindUnavailable, Message: why}
}

// Busy is the error of a caller that has too much under way.
func Busy(why string) error {
	return &Error{Kind: KindBusy, Message: why}
}

// ErrInUse is returned when an engine is opened that another process has open, where only one can.
var ErrInUse = errors.New("data directory is in use by another process")

// KindOf is the kind of an error, KindInternal where it has none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindInternal
}
