package edge

import (
	"fmt"
	"strings"
	"testing"
)

// Each ambiguous request is followed by a smuggled one. The server must refuse the first and never answer the second.
func TestAnAmbiguousRequestIsRefusedAndClosesTheConnection(t *testing.T) {
	w := newWorld(t)
	const smuggled = "GET /health HTTP/1.1\r\nHost: " + clientHost + "\r\n\r\n"
	post := "POST /mark/" + string(w.Client.ID) + " HTTP/1.1\r\nHost: " + clientHost + "\r\n"
	for _, tt := range []struct{ name, request string }{
		{"Content-Length beside chunked", post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"chunked beside Content-Length", post + "Transfer-Encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n"},
		{"two lengths", post + "Content-Length: 0\r\nContent-Length: 5\r\n\r\n"},
		{"two equal lengths", post + "Content-Length: 0\r\nContent-Length: 0\r\n\r\n"},
		{"a list of lengths", post + "Content-Length: 0, 0\r\n\r\n"},
		{"a length with a sign", post + "Content-Length: +5\r\n\r\nhello"},
		{"a negative length", post + "Content-Length: -1\r\n\r\n"},
		{"a length in hexadecimal", post + "Content-Length: 0x5\r\n\r\nhello"},
		{"an empty length", post + "Content-Length:\r\n\r\n"},
		{"a length beyond 64 bits", post + "Content-Length: 99999999999999999999\r\n\r\n"},
		{"an unknown transfer coding", post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
		{"two transfer codings", post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
		{"the identity coding", post + "Transfer-Encoding: identity\r\n\r\n"},
		{"the identity coding with a length", post + "Transfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n"},
		{"an empty transfer coding", post + "Transfer-Encoding:\r\n\r\n"},
		{"chunked twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"chunked behind a vertical tab", post + "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"},
		{"a folded line", post + "X: a\r\n Content-Length: 0\r\n\r\n"},
		{"a folded transfer coding", post + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"},
		{"a line without carriage return", post + "X: a\nContent-Length: 0\r\n\r\n"},
		{"a space before the colon", post + "Content-Length : 0\r\n\r\n"},
		{"a space in a name", post + "Content Length: 0\r\n\r\n"},
		{"a line without colon", post + "Content-Length\r\n\r\n"},
		{"a zero byte in a value", post + "X: a\x00b\r\n\r\n"},
		{"a carriage return in a value", post + "X: a\rb\r\n\r\n"},
		{"two hosts", post + "Host: " + baseHost + "\r\n\r\n"},
		{"no host", "GET /health HTTP/1.1\r\nX: a\r\n\r\n"},
		{"an empty host", "GET /health HTTP/1.1\r\nHost:\r\n\r\n"},
		{"no host in HTTP/1.0", "GET /health HTTP/1.0\r\n\r\n"},
		{"a target of another host", "GET http://evil.test/health HTTP/1.1\r\nHost: " + clientHost + "\r\n\r\n"},
		{"an unknown version", "GET /health HTTP/3.7\r\nHost: " + clientHost + "\r\n\r\n"},
		{"a request of HTTP/0.9", "GET /health\r\n\r\n"},
		{"chunked in HTTP/1.0", strings.Replace(post, "1.1", "1.0", 1) + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"a chunk size with a prefix", post + "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n"},
		{"a chunk size with a sign", post + "Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n"},
		{"a chunk size beyond 64 bits", post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n\r\n"},
		{"a chunk size with a bare line feed", post + "Transfer-Encoding: chunked\r\n\r\n0\n\r\n"},
		{"a chunk longer than its size", post + "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n"},
		{"a line feed in a chunk extension", post + "Transfer-Encoding: chunked\r\n\r\n0;x\ny\r\n\r\n"},
		{"a length among the trailers", post + "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := w.raw(tt.request+smuggled, true)
			if !strings.HasPrefix(got, "HTTP/1.1 400 ") || strings.Count(got, "HTTP/1.1 ") != 1 ||
				!strings.Contains(got, "\r\nConnection: close\r\n") || !strings.Contains(got, `{"success":false,"message":`) {
				t.Errorf("got %q, want one 400 that closes the connection", got)
			}
		})
	}
}

func TestUnusualButClearFramingIsAccepted(t *testing.T) {
	w := newWorld(t)
	post := "POST /mark/" + string(w.Client.ID) + " HTTP/1.1\r\nHost: " + clientHost + "\r\nConnection: close\r\n"
	for _, tt := range []struct{ name, request string }{
		{"chunked", post + "Transfer-Encoding: chunked\r\n\r\n5\r\n" + event[:5] + "\r\n" + fmt.Sprintf("%X\r\n", len(event)-5) + event[5:] + "\r\n0\r\n\r\n"},
		{"chunked in capitals", post + "TRANSFER-ENCODING: Chunked\r\n\r\n" + fmt.Sprintf("%x\r\n", len(event)) + event + "\r\n0\r\n\r\n"},
		{"chunk extensions", post + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x;a=b\r\n", len(event)) + event + "\r\n0;c\r\n\r\n"},
		{"trailers", post + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n", len(event)) + event + "\r\n0\r\nX-Y: z\r\n\r\n"},
		{"a target with its own host", strings.Replace(post, " /", " http://"+clientHost+":80/", 1) + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(event), event)},
		{"HTTP/1.0", strings.Replace(post, "1.1", "1.0", 1) + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(event), event)},
		{"empty lines before the request", "\r\n\r\n" + post + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(event), event)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := w.raw(tt.request, false); !strings.HasPrefix(got, "HTTP/1.1 201 ") {
				t.Errorf("got %q, want 201", got)
			}
		})
	}
}

func TestErrorsHaveTheFormOfTheHost(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		name, request, status, part string
	}{
		{"a large header on the tag server", "GET /health HTTP/1.1\r\nHost: " + clientHost + "\r\nX: " + strings.Repeat("a", 20<<10) + "\r\n\r\n", "431", `"success":false`},
		{"a large header on a partner path", "GET /v1/partners/merchant HTTP/1.1\r\nHost: " + baseHost + "\r\nX: " + strings.Repeat("a", 20<<10) + "\r\n\r\n", "431", `"statusCode":431`},
		{"a large body on the partner API", "POST /v1/partners/merchant HTTP/1.1\r\nHost: " + baseHost + "\r\nContent-Length: 2000000\r\n\r\n", "413", `"statusCode":413`},
		{"two lengths on the partner API", "POST /v1/x HTTP/1.1\r\nHost: " + baseHost + "\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", "400", `"statusCode":400`},
		{"no host on a partner path", "GET /v1/partners/merchant HTTP/1.1\r\n\r\n", "400", `"statusCode":400`},
		{"noise", "\x16\x03\x01\x02\x00\x01\r\n\r\n", "400", `"success":false`},
		{"a body that ends early", "POST /mark/x HTTP/1.1\r\nHost: " + clientHost + "\r\nContent-Length: 10\r\n\r\nabc", "400", `"success":false`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := w.raw(tt.request, true); !strings.HasPrefix(got, "HTTP/1.1 "+tt.status+" ") || !strings.Contains(got, tt.part) {
				t.Errorf("got %q, want %s with %s", got, tt.status, tt.part)
			}
		})
	}
}
