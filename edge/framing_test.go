package edge

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
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
		{"a request line without carriage return", "POST /mark/" + string(w.Client.ID) + " HTTP/1.1\nHost: " + clientHost + "\r\n\r\n"},
		{"no carriage return at all", "GET /health HTTP/1.1\nHost: " + clientHost + "\n\n"},
		{"empty lines before a request line without carriage return", strings.Repeat("\r\n", 9) + "GET / HTTP/1.1\nHost: " + clientHost + "\r\n\r\n"},
		{"a head that ends without carriage return", "GET /health HTTP/1.1\r\nHost: " + clientHost + "\r\n\n"},
		{"a space before the colon", post + "Content-Length : 0\r\n\r\n"},
		{"a space in a name", post + "Content Length: 0\r\n\r\n"},
		{"a line without colon", post + "Content-Length\r\n\r\n"},
		{"a zero byte in a value", post + "X: a\x00b\r\n\r\n"},
		{"a carriage return in a value", post + "X: a\rb\r\n\r\n"},
		{"two hosts", post + "Host: " + baseHost + "\r\n\r\n"},
		{"no host", "GET /health HTTP/1.1\r\nX: a\r\n\r\n"},
		{"an empty host", "GET /health HTTP/1.1\r\nHost:\r\n\r\n"},
		{"no host in HTTP/1.0", "GET /health HTTP/1.0\r\n\r\n"},
		{"a host with a user", "GET /health HTTP/1.1\r\nHost: x@" + clientHost + "\r\n\r\n"},
		{"a host with a port that is none", "GET /health HTTP/1.1\r\nHost: " + clientHost + ":80@evil.test\r\n\r\n"},
		{"a host with two ports", "GET /health HTTP/1.1\r\nHost: " + clientHost + ":80:80\r\n\r\n"},
		{"a host in brackets", "GET /health HTTP/1.1\r\nHost: [" + clientHost + "]:80\r\n\r\n"},
		{"a target with a user", "GET http://x@" + clientHost + "/health HTTP/1.1\r\nHost: " + clientHost + "\r\n\r\n"},
		{"a target with a user and a password", "GET http://x:y@" + clientHost + ":80/health HTTP/1.1\r\nHost: " + clientHost + "\r\n\r\n"},
		{"a target whose port is none", "GET http://" + clientHost + ":80@evil.test/health HTTP/1.1\r\nHost: " + clientHost + "\r\n\r\n"},
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

// A head that ends without a carriage return is refused when it has arrived: the client sends nothing more.
func TestAHeadThatEndsWithoutCarriageReturnIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withTLS(t), func(cfg *Config) {
		cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
	})
	plain, secure := w.addr, w.listen(w.server.ServeTLS)
	const good = "GET /health HTTP/1.1\r\nHost: " + clientHost + "\r\n\r\n"
	post := "POST /mark/" + string(w.Client.ID) + " HTTP/1.1\r\nHost: " + clientHost + "\r\n"
	spaced := strings.Replace(event, "{", "{ \n\n \n\r\n", 1)
	for _, door := range []struct {
		name string
		dial func() net.Conn
	}{
		{"plain", func() net.Conn { w.addr = plain; return w.dial() }},
		{"TLS", func() net.Conn { w.addr = secure; return w.secure(w.dial(), clientHost) }},
		{"behind a proxy", func() net.Conn {
			w.addr = plain
			c := w.dialFrom("127.0.0.2")
			fmt.Fprint(c, "PROXY TCP4 192.0.2.1 192.0.2.2 4000 80\r\n")
			return c
		}},
	} {
		for _, tt := range []struct{ name, request, want string }{
			{"no carriage return at all", "GET /health HTTP/1.1\nHost: " + clientHost + "\n\n", "400"},
			{"only the last one is missing", strings.TrimSuffix(good, "\r\n") + "\n", "400"},
			{"only the empty line has one", "GET /health HTTP/1.1\nHost: " + clientHost + "\n\r\n", "400"},
			{"with a body", post + "Content-Length: 2\r\n\n{}", "400"},
			{"behind another request", good + good + strings.TrimSuffix(good, "\r\n") + "\n", "200 200 400"},
			{"empty lines before a good request", "\n\n\r\n" + good, "200"},
			{"empty lines in a body", post + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(spaced)) + spaced + good, "201 200"},
		} {
			t.Run(door.name+", "+tt.name, func(t *testing.T) {
				for _, pieces := range []int{1, len(tt.request)} { // all at once, or each byte alone
					c := door.dial()
					defer c.Close()
					for i := range pieces {
						size := len(tt.request) / pieces
						if _, err := io.WriteString(c, tt.request[i*size:(i+1)*size]); err != nil {
							t.Fatal(err)
						}
						if pieces > 1 {
							time.Sleep(20 * time.Microsecond) // so that few pieces arrive together
						}
					}
					replies := bufio.NewReader(c)
					var got []string
					for range strings.Fields(tt.want) {
						got = append(got, strconv.Itoa(readReply(t, replies).StatusCode))
					}
					if s := strings.Join(got, " "); s != tt.want {
						t.Errorf("in %d pieces got %s, want %s", pieces, s, tt.want)
					}
				}
			})
		}
	}
}

// The line of a request that waits in the buffer behind another one is checked too, and so is one that arrives in pieces.
func TestARequestLineWithoutCarriageReturnIsFoundAnywhere(t *testing.T) {
	const good = "GET /health HTTP/1.1\r\nHost: " + clientHost + "\r\n\r\n"
	bare := strings.Replace(good, "\r", "", 1)
	post := func(path string) string {
		return "POST " + path + " HTTP/1.1\r\nHost: " + clientHost + fmt.Sprintf("\r\nContent-Length: %d\r\n\r\n", len(batch)) + batch
	}
	for _, secure := range []bool{false, true} {
		w := newWorld(t, withTLS(t))
		if secure {
			w.addr = w.listen(w.server.ServeTLS)
		}
		for _, tt := range []struct {
			name   string
			pieces []string // each is sent when the answers to those before have arrived
			want   string   // the statuses
		}{
			{"behind another request", []string{good + bare + good}, "200 400"},
			{"behind the same request twice", []string{good + good + bare}, "200 400"}, // the second is taken for the third
			{"behind a large body", []string{post("/mark/"+string(w.Client.ID)) + bare}, "200 400"},
			{"on a connection that was used before", []string{good, good, bare}, "200 200 400"},
			{"good requests", []string{good, good + good, "\r\n" + good, post("/mark/"+string(w.Client.ID)) + good}, "200 200 200 200 200 200"},
		} {
			t.Run(fmt.Sprintf("%s, TLS %v", tt.name, secure), func(t *testing.T) {
				var c net.Conn = w.dial()
				defer c.Close()
				if secure {
					c = w.secure(c, clientHost)
				}
				replies := bufio.NewReader(c)
				var got []string
				want := strings.Fields(tt.want)
				for _, piece := range tt.pieces {
					go func() { _, _ = io.WriteString(c, piece) }() // the reader below sees when it fails
					for range strings.Count(piece, " HTTP/1.1") {
						if len(got) < len(want) {
							got = append(got, strconv.Itoa(readReply(t, replies).StatusCode))
						}
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			})
		}
		t.Run(fmt.Sprintf("in pieces, TLS %v", secure), func(t *testing.T) {
			for i := 1; i < len(bare); i++ {
				var c net.Conn = w.dial()
				if secure {
					c = w.secure(c, clientHost)
				}
				if _, err := io.WriteString(c, bare[:i]); err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(c, bare[i:]); err != nil {
					t.Fatal(err)
				}
				if got := readReply(t, bufio.NewReader(c)).StatusCode; got != 400 {
					t.Errorf("split at %d: got %d, want 400", i, got)
				}
				c.Close()
			}
		})
	}
}

// fasthttp does not show how the lines after the last chunk end. A proxy may see the end of such a request elsewhere, so
// the connection closes after it, and what follows is not read.
func TestNothingIsReadAfterTrailers(t *testing.T) {
	w := newWorld(t)
	const smuggled = "GET /health HTTP/1.1\r\nHost: " + clientHost + "\r\n\r\n"
	head := "POST /mark/" + string(w.Client.ID) + " HTTP/1.1\r\nHost: " + clientHost + "\r\nTransfer-Encoding: chunked\r\n\r\n"
	head += fmt.Sprintf("%x\r\n%s\r\n", len(event), event)
	for _, end := range []string{"0\r\nX: y\n\r\n", "0\r\nX: y\r\n\n", "0\r\n\n", "0\r\nX: y\r\n\r\n", "0\r\n\r\n"} {
		if got := w.raw(head+end+smuggled, true); strings.Count(got, "HTTP/1.1 ") != 1 || !strings.Contains(got, "\r\nConnection: close\r\n") {
			t.Errorf("%q: got %q, want one answer that closes the connection", end, got)
		}
	}
	c := w.dial()
	defer c.Close()
	replies := bufio.NewReader(c)
	for i, pieces := range [][]string{{head + "0\r\n\r\n"}, {head, "0\r\n\r\n"}, {head + "0\r\n\r\n"}} {
		for _, piece := range pieces {
			if _, err := io.WriteString(c, piece); err != nil {
				t.Fatal(err)
			}
		}
		if resp := readReply(t, replies); resp.StatusCode != 201 || resp.Close {
			t.Errorf("chunked request %d: got %s, closes %v; want 201 on a connection that stays open", i, resp.Status, resp.Close)
		}
	}
}

// An empty chunked body is a body: it is refused for what it lacks, as any other.
func TestAnEmptyChunkedBodyIsABody(t *testing.T) {
	w := newWorld(t)
	post := "POST /mark/" + string(w.Client.ID) + " HTTP/1.1\r\nHost: " + clientHost + "\r\n"
	chunked := w.raw(post+"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true)
	plain := w.mark("")
	if !strings.HasPrefix(chunked, "HTTP/1.1 400 ") || !strings.HasSuffix(chunked, "\r\n\r\n"+plain.Body) || plain.Status != 400 {
		t.Errorf("got %q, and %d %q without chunks", chunked, plain.Status, plain.Body)
	}
	if n := w.server.bodies.budget.Reserved(); n != 0 {
		t.Errorf("%d bytes are reserved", n)
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
