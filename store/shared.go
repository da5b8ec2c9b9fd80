package store

import (
	"context"
	"errors"
	"time"
)

// Shared is what several nodes on one store share besides the service's data. An engine implements it if it may be open on
// several nodes at once. Calls survive a fail-over of the store: they are repeated for a while. An error has KindUnavailable
// when the store cannot be reached.
type Shared interface {
	// Files returns the file with a path, and all files below the path as in a directory, in the order of their paths;
	// with an empty path all. Paths have the form a/b/c. Without content, Content is nil.
	Files(ctx context.Context, path string, content bool) ([]File, error)
	// PutFile writes a file. It is durable when PutFile returns nil.
	PutFile(ctx context.Context, path string, content []byte) error
	// RemoveFiles removes what Files returns. There may be none.
	RemoveFiles(ctx context.Context, path string) error
	// RemoveFile removes a file only if it has this content.
	RemoveFile(ctx context.Context, path string, content []byte) error

	// Exchange sends a message, which may be empty, to the other nodes. It returns what they have sent since the last call,
	// and how many nodes have sent something in the last minute. A message may get lost; it lives for seconds. The call is
	// not repeated. Callers take turns.
	Exchange(ctx context.Context, mine []byte) (messages [][]byte, others int, err error)

	// ShortKeys returns the keys of hours since 1970 from an hour on, and deletes older ones. It adds a key of an hour,
	// unless that is nil or the hour has one. They are in no backup of the store, and may get lost when it fails over. The
	// call is not repeated.
	ShortKeys(ctx context.Context, from, hour int64, key []byte) (map[int64][]byte, error)

	// Lease returns a lease on a name, or nil while another has it. It lasts until Release: it is renewed in the
	// background. If its node dies, it ends within half a minute.
	Lease(ctx context.Context, name string) (Lease, error)
}

// File is a small file that all nodes share, such as a certificate.
type File struct {
	Path     string
	Modified time.Time     // by the store's clock
	Age      time.Duration // since then, by the store's clock too
	Content  []byte
}

// Lease lets one node at a time do something.
type Lease interface {
	// Held ends when the lease is released, or was not renewed for so long that another may have it.
	Held() context.Context
	// Renew makes sure that the lease is still held. ErrLeaseLost: another has got it.
	Renew(ctx context.Context) error
	// Release ends the lease. ErrLeaseLost: another has got it before. After another error it runs out.
	Release(ctx context.Context) error
}

// ErrLeaseLost is for a lease that another has got, because it was not renewed in time.
var ErrLeaseLost = errors.New("the lease was lost")
