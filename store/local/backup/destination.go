package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Destination is where backups are. Names are paths with slashes.
type Destination interface {
	// Put stores an object. It is there as a whole when Put returns nil, even after a power cut, and else not at all.
	Put(ctx context.Context, name string, content []byte) error
	// Get returns an object, but not more than its first limit bytes. The error is fs.ErrNotExist when there is none.
	Get(ctx context.Context, name string, limit int64) ([]byte, error)
	// List returns all objects whose names begin with prefix, which is empty or ends with a slash, sorted by name.
	List(ctx context.Context, prefix string) ([]Stored, error)
	// Delete removes an object. It is no error when there is none.
	Delete(ctx context.Context, name string) error
	// Lock keeps other backups of a data directory away until unlock is called. It waits for them for a while, and
	// fails with ErrLocked after that. In a destination that has no locks, it does nothing.
	Lock(ctx context.Context, data string) (unlock func() error, err error)
	// String names the destination, without secrets.
	String() string
}

// Stored is an object in a destination.
type Stored struct {
	Name string
	Size int64
}

// Open returns the destination with a name: s3://ENDPOINT/BUCKET/PREFIX, s3+http:// for one without TLS, or else the path of
// a directory. It does not reach out for it. With create, Put creates the directory when it is missing, but not the
// directory above it: a disk that is not mounted must be noticed.
func Open(name string, create bool) (Destination, error) {
	scheme, rest, found := strings.Cut(name, "://")
	switch {
	case name == "":
		return nil, errors.New("must not be empty")
	case !found:
		return directory{path: name, create: create}, nil
	case scheme == "s3" || scheme == "s3+http":
		return openBucket(rest, scheme == "s3")
	}
	return nil, fmt.Errorf("must be a directory or s3://ENDPOINT/BUCKET/PREFIX, not %q", name)
}

// ErrLocked is the error when another backup of the same data directory writes to the destination.
var ErrLocked = errors.New("another backup of this data directory is writing there")

// lockWait is how long Lock waits for another backup.
const lockWait = 30 * time.Second
