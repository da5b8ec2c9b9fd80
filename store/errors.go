package store

import (
	"errors"
	"fmt"
)

// Kind is what programs need to know of an error. Each protocol has one table from kinds to its own codes.
type Kind uint8

// The kinds of error. An error without a kind is internal.
const (
	KindInternal    Kind = iota
	KindInvalid          // the input is wrong; Field says which part
	KindNotFound         // the resource does not exist
	KindForbidden        // the resource belongs to another partner
	KindConflict         // the domain belongs to another merchant
	KindUnavailable      // the engine cannot do it now; nothing was done; retry later
	KindBusy             // the caller has too many requests under way; nothing was done; retry later
)

// Error is an error with a kind. Customers may see its message, so it must not mention internals.
type Error struct {
	Kind    Kind
	Field   string // the field of the request that is wrong; may be empty
	Message string
}

func (e *Error) Error() string {
	if e.Field != "" {
		return e.Field + " " + e.Message
	}
	return e.Message
}

// Invalid is the error of a wrong field. The message continues a sentence that starts with the field's name.
func Invalid(field, format string, args ...any) error {
	return &Error{Kind: KindInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Conflict is the error of a field whose value is already taken. The message is as for Invalid.
func Conflict(field, message string) error {
	return &Error{Kind: KindConflict, Field: field, Message: message}
}

// NotFound is the error of a resource that does not exist; what is the resource, such as "merchant".
func NotFound(what string) error {
	return &Error{Kind: KindNotFound, Message: what + " not found"}
}

// Unavailable is the error of an engine that cannot write now.
func Unavailable(why string) error {
	return &Error{Kind: KindUnavailable, Message: why}
}

// Busy is the error of a caller that has too many requests under way.
func Busy(why string) error {
	return &Error{Kind: KindBusy, Message: why}
}

// ErrInUse is the error of opening an engine that only one process can have open, and another process has.
var ErrInUse = errors.New("data directory is in use by another process")

// KindOf returns the kind of an error; KindInternal when it has none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindInternal
}
