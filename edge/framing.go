package edge

import (
	"bytes"
	"errors"
	"unsafe"

	"github.com/valyala/fasthttp"
)

// framingFault says what in the head of a request is ambiguous, "" when nothing is. A proxy in front of this server might
// read the head in another way: then one client's body becomes another client's request (request smuggling).
//
// fasthttp itself refuses a repeated Host or Content-Length, a length that is not digits, an unknown or repeated
// Transfer-Encoding, a space before the colon, and control characters. framingFault refuses what fasthttp accepts:
// Content-Length beside Transfer-Encoding, the identity coding, folded lines, lines without a carriage return, names
// with a space, and unknown HTTP versions.
func framingFault(ctx *fasthttp.RequestCtx) string {
	h := &ctx.Request.Header
	if connOf(ctx).bareLine {
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

// maxHeaderBytes is the size of the buffer into which fasthttp reads, and so the largest head of a request.
const maxHeaderBytes = 16 << 10

// readerBuffer is what fasthttp's buffered reader holds of a connection: the head of the current request, as it was
// sent. fasthttp shows the header lines of a request (RawHeaders), but not how the request line ends, and accepts a
// line feed alone. The buffer shows it.
type readerBuffer struct {
	data  []byte // the reader's buffer, from its start to the end of the last read
	fresh bool   // data was read since the last request was answered, so the current request begins at its start

	// ended is whether data ends with the last chunk of a body. Then a request with a chunked body, which fasthttp has just
	// read, has no trailers, in which fasthttp accepts line feeds alone, and no other request follows yet. It is noted with
	// each read: once the request was read, data may be another connection's.
	ended bool
}

// note takes a read of n bytes into b. It must be called with each read that fasthttp makes.
//
// The reader (bufio.Reader) fills its buffer up to the end: the free part of the buffer is b, from len(data) to
// maxHeaderBytes. Before each read it moves what is left to the start. fasthttp also reads the first byte of a request
// alone, and passes it to the reader, and the reader passes on large reads of a body. Neither fills the buffer.
func (r *readerBuffer) note(b []byte, n int) {
	if len(b) == 1 || len(b) != cap(b) || len(b) > maxHeaderBytes {
		return
	}
	free := unsafe.Pointer(unsafe.SliceData(b))
	start := maxHeaderBytes - len(b)
	r.data = unsafe.Slice((*byte)(unsafe.Add(free, -start)), start+n)
	r.fresh = true
	r.ended = string(r.data) == "0\r\n\r\n" || bytes.HasSuffix(r.data, []byte("\r\n0\r\n\r\n"))
}

// hasBareRequestLine reports whether the line of a request, whose head fasthttp has just read, ends with a line feed alone.
func (r *readerBuffer) hasBareRequestLine(h *fasthttp.RequestHeader) bool {
	method, uri, protocol := h.Method(), h.RequestURI(), h.Protocol()
	end := len(method) + len(uri) + len(protocol) + 2
	if r.fresh && len(r.data) > end && r.data[0] == method[0] && r.data[end] == '\r' {
		return false
	}
	// Rare: the request is behind another one in the buffer, or empty lines are before it.
	line := make([]byte, 0, end+1)
	line = append(append(append(line, method...), ' '), uri...)
	line = append(append(append(line, ' '), protocol...), '\n')
	return bytes.Contains(r.data, line)
}

// checkHead returns errBareHead when fasthttp is about to read more of a head, into b, although the buffer has all of it:
// fasthttp accepts an empty line that ends with a line feed alone, but then waits for one that ends with CRLF. Call it
// only until fasthttp has read the head. Then an empty line cannot be one of the body.
func (r *readerBuffer) checkHead(b []byte) error {
	n := maxHeaderBytes - len(b) // bytes of the head so far: the reader has moved them to the start of its buffer
	if n <= 0 || n > len(r.data) {
		return nil
	}
	start := unsafe.SliceData(r.data)
	if unsafe.Add(unsafe.Pointer(start), n) != unsafe.Pointer(unsafe.SliceData(b)) {
		return nil // b is not a part of the buffer
	}
	head := bytes.TrimLeft(r.data[:n], "\r\n") // empty lines may be before the request line
	if bytes.Contains(head, []byte("\n\n")) || bytes.Contains(head, []byte("\n\r\n")) {
		return errBareHead
	}
	return nil
}

var errBareHead = errors.New("the head of a request ends with a line feed alone")
