package edge

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// framingFault names what in a request's head could be read in two ways, "" where nothing can. A
// proxy in front of the server that reads it the other way would let one client's bytes
// become another client's request.
//
// fasthttp itself refuses a repeated Host or Content-Length, a length that is not digits, an unknown or
// repeated Transfer-Encoding, a space before the colon and control characters. It lets through
// what is refused here: Content-Length beside Transfer-Encoding, the identity coding, folded lines,
// lines without a carriage return, names with a space, and versions that nobody speaks.
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

// chunked is what fasthttp gives as the Content-Length of a chunked body.
const chunked = -1
