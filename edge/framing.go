package edge

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// framingFault says what in the head of a request is ambiguous, "" when nothing is. A proxy in front of this server might
// read the head in another way than the server does: then one client's body becomes another client's request (request
// smuggling).
//
// fasthttp itself refuses a repeated Host or Content-Length, a length that is not digits, an unknown or repeated
// Transfer-Encoding, a space before the colon, and control characters. framingFault refuses what fasthttp accepts:
// Content-Length beside Transfer-Encoding, the identity coding, folded lines, lines without a carriage return, names
// with a space, and unknown HTTP versions.
func framingFault(ctx *fasthttp.RequestCtx) string {
	h := &ctx.Request.Header
	if c := connOf(ctx.Conn()); c != nil && c.bareLine {
		return bareLineFault
	}
	if p := h.Protocol(); string(p) != "HTTP/1.1" && string(p) != "HTTP/1.0" {
		return "HTTP version is not supported"
	}
	hasLength, hasEncoding, isChunked := false, false, false
	for raw := h.RawHeaders(); len(raw) > 0; {
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return bareLineFault
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
			if bytes.EqualFold(name, []byte("Transfer-Encoding")) {
				hasEncoding = true
				isChunked = bytes.EqualFold(bytes.TrimSpace(line[len(name)+1:]), []byte("chunked"))
			}
		}
	}
	if hasEncoding && (hasLength || !isChunked) {
		return "body length is ambiguous"
	}
	return ""
}

// bareLineFault is what framingFault says about lines that end with a line feed alone.
const bareLineFault = "header lines must end with CRLF"

// chunked is the ContentLength that fasthttp returns for a chunked body.
const chunked = -1
