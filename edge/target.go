package edge

import (
	"bytes"
	"net/netip"
	"strconv"
	"unsafe"

	"mtagd/store"
)

// target is where a request goes. Its parts alias the request.
type target struct {
	host        string // lower case, without a port; empty when the request has none
	path, query []byte // as they were sent, not decoded
}

// newTarget reads the target from the Host header and the request target. The second result says what is wrong with them, or
// is "". When something is wrong, the target has what could be read: the form of the error depends on it.
func newTarget(host, uri []byte) (target, string) {
	t := target{host: store.HostName(view(host))}
	fault := ""
	switch {
	case t.host == "":
		fault = "Host header is required"
	case !isAuthority(host):
		fault = "Host header must be a host and an optional port"
	}
	if _, rest, absolute := bytes.Cut(uri, []byte("://")); absolute && !bytes.HasPrefix(uri, []byte("/")) {
		end := bytes.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		switch {
		case fault != "":
		case !isAuthority(rest[:end]):
			fault = "request target must name a host and an optional port, and no user"
		case store.HostName(view(rest[:end])) != t.host:
			fault = "request target and Host header name different hosts"
		}
		if uri = rest[end:]; len(uri) == 0 || uri[0] == '?' {
			uri = append([]byte("/"), uri...)
		}
	}
	t.path, t.query, _ = bytes.Cut(uri, []byte("?"))
	return t, fault
}

// isAuthority reports whether b is a host with an optional port, and nothing else. It refuses what store.HostName reads
// as another host than a proxy in front may read, such as a:80@b.
func isAuthority(b []byte) bool {
	name, port, _ := bytes.Cut(b, []byte(":"))
	if len(b) > 0 && b[0] == '[' {
		end := max(0, bytes.IndexByte(b, ']'))
		if ip, err := netip.ParseAddr(string(b[1:max(1, end)])); err != nil || !ip.Is6() {
			return false
		}
		rest, hasPort := bytes.CutPrefix(b[end+1:], []byte(":"))
		if len(rest) > 0 && !hasPort {
			return false
		}
		name, port = nil, rest
	}
	if len(port) > 0 { // RFC 9110 allows an empty one
		if _, err := strconv.ParseUint(view(port), 10, 16); err != nil {
			return false
		}
	}
	return bytes.IndexByte(name, '@') < 0 && bytes.IndexByte(name, ']') < 0
}

// view returns a string that shares its bytes with b. It is valid until b changes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
