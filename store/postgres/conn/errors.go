package conn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/store"
)

// IsConnectionFailure reports whether the server cannot be reached, has ended the connection, or accepts no writes: the same
// call may succeed with another connection. After a serialization failure, it may succeed with the same one.
func IsConnectionFailure(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch class := pgErr.Code[:2]; {
		case pgErr.SeverityUnlocalized == "FATAL" || pgErr.SeverityUnlocalized == "PANIC":
			return true // the server has ended the connection
		case class == "08", class == "57" && pgErr.Code != queryCanceled, pgErr.Code == "25006", pgErr.Code == tooManyConnections,
			pgErr.Code == serializationFailure:
			return true // connection failure, shutdown, read-only (a standby), too many connections, serialization failure
		}
		return false
	}
	_, isNet := errors.AsType[net.Error](err)
	_, isConnect := errors.AsType[*pgconn.ConnectError](err)
	return isNet || isConnect || pgconn.SafeToRetry(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNotReplicated)
}

// Unavailable adds KindUnavailable to an error of a call that has changed nothing, if a repeated call may succeed.
func Unavailable(err error) error {
	if store.KindOf(err) != store.KindInternal {
		return err
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == tooManyConnections {
		return fmt.Errorf("%w: %w", store.Unavailable("the database has no connection to spare"), err)
	} else if ok && pgErr.Code[:2] == insufficientResources {
		return fmt.Errorf("%w: %w", store.Unavailable("the database has no room"), err)
	}
	if IsConnectionFailure(err) {
		return fmt.Errorf("%w: %w", store.Unavailable("the database cannot be reached"), err)
	}
	return err
}

// insufficientResources is the class of the SQLSTATEs of a server whose disk is full, or that has too little memory, and of
// tooManyConnections.
const insufficientResources = "53"

var ErrNoAnswer = store.Unavailable("the database does not answer")

// EndedOr returns the context's error if it has ended, otherwise err.
func EndedOr(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	return err
}

const (
	queryCanceled        = "57014" // the SQLSTATE of a statement that was canceled
	tooManyConnections   = "53300"
	serializationFailure = "40001" // the server aborted the transaction, for example during a promotion
)
