package operator

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

// socketName is the operator socket's file in the data directory. The file's mode is the only access control: anyone who
// can write to it can run operator commands.
const socketName = "mtagd.sock"

// The statuses of an answer. Any other status means that the server did not understand the message.
const (
	statusDone   = http.StatusOK                  // the body is the result
	statusFailed = http.StatusUnprocessableEntity // the body is a store.Error
)

// socketPath returns a path of the operator socket that is short enough for the system. A socket's path is limited to
// 108 bytes, a data directory's is not. If the path is too long, the directory's entry under /proc replaces the
// directory; that path is valid until release is called.
func socketPath(data string) (path string, release func(), err error) {
	const maxLength = 100
	path = filepath.Join(data, socketName)
	if len(path) <= maxLength {
		return path, func() {}, nil
	}
	dir, err := os.Open(data)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName), func() { dir.Close() }, nil
}
