package edge

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// framingFault says what in a request's head is ambiguous, "" when nothing is. A proxy in front of this server might
// read the head in another way than the server does: then one client's body becomes another client's request (request
// smuggling).
//
// fasthttp itself refuses a repeated Host or Content-Length, a length that is not digits, an unknown or repeated
// Transfer-Encoding, a space before the colon, and control characters. framingFault refuses what fasthttp accepts:
// Content-Length beside Transfer-Encoding, the identity coding, folded lines, lines without a carriage return, names
// with a space, and unknown HTTP versions.
func framingFault(h *fasthttp.RequestHeader) string {
	if p := h.Protocol(); string(p) != "HTTP/1.1" && string(p) != "HTTP/1.0" {
		return "HTTP version is not supported"
	}
	hasLength, hasEncoding := false, false
	for raw := h.RawHeaders(); len(raw) > 0; {
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return "header lines must end with CRLF"
		}
		line := raw[:end-1]
		raw = raw[end+1:]
		if len(line) == 0 {
			break
		}
		name := line[:max(0, bytes.IndexByte(line, ':'))]
		if bytes.IndexByte(name, ' ') >= 0 || line[0] == ' ' || line[0] == '\t' {
			return "header lines must not be folded and names must not have spaces"
		}
		switch len(name) {
		case len("Content-Length"):
			hasLength = hasLength || bytes.EqualFold(name, []byte("Content-Length"))
		case len("Transfer-Encoding"):
			hasEncoding = hasEncoding || bytes.EqualFold(name, []byte("Transfer-Encoding"))
		}
	}
	if hasEncoding && (hasLength || h.ContentLength() != chunked) {
		return "body length is ambiguous"
	}
	return ""
}

// chunked is the ContentLength that fasthttp returns for a chunked body.
const chunked = -1
