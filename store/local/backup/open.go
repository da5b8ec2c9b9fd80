package backup

import (
	"errors"
	"fmt"
	"strings"
)

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
