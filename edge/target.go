package edge

import (
	"bytes"
	"unsafe"

	"mtagd/store"
)

// target is where a request goes. Its parts alias the request.
type target struct {
	host        string // lower case, without a port; empty when the request has none
	path, query []byte // as they were sent, not decoded
}

// newTarget reads the target from the Host header and the request target. The second result says what is wrong, "" when
// nothing is. newTarget then still returns the parts that it could read: the form of the error depends on them.
func newTarget(host, uri []byte) (target, string) {
	t := target{host: store.HostName(view(host))}
	fault := ""
	if t.host == "" {
		fault = "Host header is required"
	}
	if _, rest, absolute := bytes.Cut(uri, []byte("://")); absolute && !bytes.HasPrefix(uri, []byte("/")) {
		end := bytes.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		if fault == "" && store.HostName(view(rest[:end])) != t.host {
			fault = "request target and Host header name different hosts"
		}
		if uri = rest[end:]; len(uri) == 0 || uri[0] == '?' {
			uri = append([]byte("/"), uri...)
		}
	}
	t.path, t.query, _ = bytes.Cut(uri, []byte("?"))
	return t, fault
}

// view returns a string that shares its bytes with b. It is valid until b changes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
