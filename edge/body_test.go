package edge

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"mtagd/edge/tag/tagtest"
	"mtagd/store"
)

// Clients that announce large bodies and do not send them can neither exhaust the memory nor block small events.
func TestSlowUploadsShareABudget(t *testing.T) {
	w := newWorld(t)
	const uploads = bodyBudget / store.MaxBatchBytes
	batch := "[" + event + strings.Repeat(" ", store.MaxBatchBytes-len(event)-2) + "]"
	path := "/mark/" + string(w.Client.ID)
	var slow [uploads]net.Conn
	for i := range slow {
		slow[i] = w.dial()
		defer slow[i].Close()
		length := fmt.Sprintf("Content-Length: %d\r\n\r\n[", len(batch))
		if i%2 > 0 {
			length = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n[", len(batch))
		}
		if _, err := io.WriteString(slow[i], "POST "+path+" HTTP/1.1\r\nHost: "+clientHost+"\r\n"+length); err != nil {
			t.Fatal(err)
		}
	}
	w.waitForBodies(bodyBudget)

	refused := w.do("POST", clientHost, path, batch, "Origin", "https://shop.com")
	refused.Want(t, 503, `{"success":false,"message":"Too many large requests`)
	if refused.Header.Get("Retry-After") == "" || refused.Header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("no Retry-After that a page can read: %v", refused.Header)
	}
	w.do("POST", baseHost, "/v1/partners/merchant", batch).Want(t, 503, `"statusCode":503`)
	head := "POST " + path + " HTTP/1.1\r\nHost: " + clientHost + "\r\n"
	for _, large := range []string{
		head + "Expect: 100-continue\r\nContent-Length: 500000\r\n\r\n",
		head + "Transfer-Encoding: chunked\r\n\r\n8000\r\n[",
	} {
		if got := w.raw(large, false); !strings.HasPrefix(got, "HTTP/1.1 503 ") {
			t.Errorf("got %q, want 503", got)
		}
	}
	w.mark(event).Want(t, 201, "accepted")
	if got := w.raw(head+"Connection: close\r\n"+chunks(event), false); !strings.HasPrefix(got, "HTTP/1.1 201 ") {
		t.Errorf("a small chunked event got %q, want 201", got)
	}

	if _, err := io.WriteString(slow[0], batch[1:]); err != nil {
		t.Fatal(err)
	}
	if got := readReply(t, bufio.NewReader(slow[0])).StatusCode; got != 200 {
		t.Errorf("an upload within the budget got %d, want 200", got)
	}
	w.waitForBodies(bodyBudget - store.MaxBatchBytes)
	w.mark(batch).Want(t, 200, `"accepted":1`)
	for _, c := range slow {
		c.Close()
	}
	w.waitForBodies(0)
}

// However a request ends, the reservation of its body is released.
func TestEveryBodyIsReleased(t *testing.T) {
	w := newWorld(t)
	path := "/mark/" + string(w.Client.ID)
	for _, c := range []struct{ name, host, path, rest string }{
		{"a body that breaks off", clientHost, path, "Content-Length: 500000\r\n\r\n["},
		{"a chunked body that never begins", clientHost, path, "Transfer-Encoding: chunked\r\n\r\n"},
		{"a chunk that breaks off", clientHost, path, "Transfer-Encoding: chunked\r\n\r\n8000\r\n["},
		{"a chunk without a size", clientHost, path, "Transfer-Encoding: chunked\r\n\r\nx\r\n"},
		{"a client that leaves after Expect: 100-continue", clientHost, path, "Expect: 100-continue\r\nContent-Length: 500000\r\n\r\n"},
		{"a body for an unknown host", "nobody.test", path, "Content-Length: 20000\r\n\r\n" + strings.Repeat(" ", 20000)},
		{"a panic", baseHost, "/v1/panic", "Content-Length: 20000\r\n\r\n" + strings.Repeat(" ", 20000)},
		{"a chunked event", clientHost, path, chunks(event)},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := w.dial()
			defer client.Close()
			if _, err := io.WriteString(client, "POST "+c.path+" HTTP/1.1\r\nHost: "+c.host+"\r\n"+c.rest); err != nil {
				t.Fatal(err)
			}
			if err := client.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(client); err != nil {
				t.Fatal(err)
			}
			w.waitForBodies(0)
		})
	}
}

// While the event of a small chunked body is recorded, the body has nothing reserved.
func TestSmallChunkedBodiesReserveNothing(t *testing.T) {
	var w *world
	reserved := int64(-1)
	w = newWorld(t, replaceEngine(&tagtest.Faulty{OnRecord: func(marks []store.Mark) error {
		reserved = w.server.open.reserved.Load()
		marks[0].Outcome = store.Recorded
		return nil
	}}))
	w.raw("POST /mark/"+string(w.Client.ID)+" HTTP/1.1\r\nHost: "+clientHost+"\r\nConnection: close\r\n"+chunks(event), false)
	if reserved != 0 {
		t.Errorf("%d bytes are reserved while a small event is recorded, want none", reserved)
	}
}

// Over TLS fasthttp uses another RequestCtx for each request of a connection. The budget counts its bodies too.
func TestBodiesOverTLSAreCounted(t *testing.T) {
	w := newWorld(t, withTLS(t))
	conn, err := w.dialTLS(w.listen(w.server.ServeTLS), clientHost)
	if err != nil {
		t.Fatal(err)
	}
	path := "/mark/" + string(w.Client.ID)
	if got := ask(t, conn, "POST", clientHost, path, event).StatusCode; got != 201 {
		t.Fatalf("got %d, want 201", got)
	}
	if _, err := io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: "+clientHost+"\r\nContent-Length: 500000\r\n\r\n["); err != nil {
		t.Fatal(err)
	}
	w.waitForBodies(500000)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	w.waitForBodies(0)
}

// chunks returns a body in one chunk, with the header that announces it.
func chunks(body string) string {
	return fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
}

// waitForBodies waits until all bodies together have that many bytes reserved.
func (w *world) waitForBodies(bytes int64) {
	w.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		reserved := w.server.open.reserved.Load()
		if reserved == bytes {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("%d bytes are reserved, want %d", reserved, bytes)
		}
	}
}
