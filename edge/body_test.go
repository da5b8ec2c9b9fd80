package edge

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/tag/tagtest"
	"mtagd/store"
	"mtagd/store/testenv"
)

// announce begins a request with a large body, of which it sends only the first byte.
func (w *world) announce(client, path, length string) *net.TCPConn {
	w.Helper()
	c := w.dialFrom(client)
	w.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: "+clientHost+"\r\n"+length+"["); err != nil {
		w.Fatal(err)
	}
	return c
}

// patient makes a server wait a minute for each request, because the test may be slow.
func patient(s *Server) { s.http.ReadTimeout = time.Minute }

// largest is the announcement of the largest body, and batch is that body.
var (
	largest = fmt.Sprintf("Content-Length: %d\r\n\r\n", store.MaxBatchBytes)
	batch   = "[" + event + strings.Repeat(" ", store.MaxBatchBytes-len(event)-2) + "]"
)

// send sends a request with a batch and returns the answer.
func (w *world) sendFrom(client, host, path, body string) *http.Response {
	w.Helper()
	c := w.dialFrom(client)
	defer c.Close()
	return ask(w.T, c, "POST", host, path, body)
}

// A client that announces large bodies and does not send them uses up its own share of the memory, and not that of
// others.
func TestAClientHasAShareOfTheMemoryForBodies(t *testing.T) {
	testenv.NotShort(t, "time")
	w := newTunedWorld(t, patient)
	path := "/mark/" + string(w.Client.ID)
	const uploads = clientShare / store.MaxBatchBytes
	var slow [uploads]net.Conn
	for i := range slow {
		length := largest
		if i%2 > 0 {
			length = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", len(batch))
		}
		slow[i] = w.announce("127.0.0.1", path, length)
	}
	w.waitForBodies(clientShare)

	if got := w.sendFrom("127.0.0.2", clientHost, path, batch).StatusCode; got != 200 {
		t.Errorf("the batch of another client got %d, want 200", got)
	}
	w.mark(event).Want(t, 201, "accepted")
	head := "POST " + path + " HTTP/1.1\r\nHost: " + clientHost + "\r\n"
	refused := w.do("POST", clientHost, path, batch, "Origin", "https://shop.com")
	refused.Want(t, 429, `{"success":false,"message":"Too many large requests`)
	if after := refused.Header.Get("Retry-After"); after != "1" {
		t.Errorf("Retry-After %q, want 1", after)
	}
	if refused.Header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("a page cannot read %v", refused.Header)
	}
	var waiting sync.WaitGroup // each of these waits for room first
	waiting.Go(func() {
		w.do("POST", baseHost, "/v1/partners/merchant", batch[:60<<10]).Want(t, 429, `"statusCode":429`)
	})
	for _, large := range []string{
		head + "Expect: 100-continue\r\nContent-Length: 500000\r\n\r\n",
		head + "Transfer-Encoding: chunked\r\n\r\n8000\r\n[",
	} {
		waiting.Go(func() {
			if got := w.raw(large, false); !strings.HasPrefix(got, "HTTP/1.1 429 ") {
				t.Errorf("got %q, want 429", got)
			}
		})
	}
	waiting.Wait()

	if _, err := io.WriteString(slow[0], batch[1:]); err != nil {
		t.Fatal(err)
	}
	if got := readReply(t, bufio.NewReader(slow[0])).StatusCode; got != 200 {
		t.Errorf("an upload within the share got %d, want 200", got)
	}
	w.waitForBodies(clientShare - store.MaxBatchBytes)
	w.mark(batch).Want(t, 200, `"accepted":1`)
	for _, c := range slow {
		c.Close()
	}
	w.waitForBodies(0)
}

// When many clients together have reserved everything, the bodies that have been arriving for the longest time give way
// to others.
func TestSlowBodiesGiveWayToOthers(t *testing.T) {
	w := newTunedWorld(t, patient)
	path := "/mark/" + string(w.Client.ID)
	const uploads = bodyBudget / store.MaxBatchBytes
	var slow [uploads]net.Conn
	for i := range slow {
		slow[i] = w.announce(fmt.Sprintf("127.0.1.%d", i+1), path, largest)
		w.waitForBodies(int64(i+1) * store.MaxBatchBytes)
	}
	b := w.server.bodies
	b.mu.Lock()
	for e := b.arriving.Front(); e != nil; e = e.Next() {
		e.Value.(*reservation).since = time.Now().Add(time.Hour) // none counts as slow, however busy the machine is
	}
	b.mu.Unlock()
	var waiting [uploads]net.Conn // these wait in line, and may not be first in it
	for i := range waiting {
		waiting[i] = w.announce(fmt.Sprintf("127.0.1.%d", i+1), path, largest)
	}
	for range 3 {
		if got := w.sendFrom("127.0.0.2", clientHost, path, batch).StatusCode; got != 200 {
			t.Errorf("the batch of another client got %d, want 200", got)
		}
	}
	oldest := readReply(t, bufio.NewReader(slow[0]))
	if oldest.StatusCode != 503 || oldest.Header.Get("Retry-After") == "" || !oldest.Close {
		t.Errorf("the oldest upload got %s %v, want 503", oldest.Status, oldest.Header)
	}
	if _, err := io.WriteString(slow[uploads-1], batch[1:]); err != nil {
		t.Fatal(err)
	}
	if got := readReply(t, bufio.NewReader(slow[uploads-1])).StatusCode; got != 200 {
		t.Errorf("the newest upload got %d, want 200", got)
	}
	for _, c := range slices.Concat(slow[:], waiting[:]) {
		c.Close()
	}
	w.waitForBodies(0)
}

// A body does not give way to one of a client that then has more reserved than its own client.
func TestASmallerBodyDoesNotGiveWay(t *testing.T) {
	w := newTunedWorld(t, patient)
	path := "/mark/" + string(w.Client.ID)
	phone := w.announce("127.0.0.3", path, "Content-Length: 20000\r\n\r\n")
	w.waitForBodies(20000)
	const uploads = bodyBudget/store.MaxBatchBytes - 1
	for i := range uploads {
		w.announce(fmt.Sprintf("127.0.1.%d", i+1), path, largest)
	}
	w.waitForBodies(20000 + uploads*store.MaxBatchBytes)
	for i := range 3 {
		if got := w.sendFrom(fmt.Sprintf("127.0.2.%d", i+1), clientHost, path, batch).StatusCode; got != 200 {
			t.Errorf("a batch got %d, want 200", got)
		}
	}
	if _, err := io.WriteString(phone, event+"]"+strings.Repeat(" ", 20000-len(event)-2)); err != nil {
		t.Fatal(err)
	}
	if got := readReply(t, bufio.NewReader(phone)).StatusCode; got != 200 {
		t.Errorf("the body of the phone got %d, want 200", got)
	}
}

// Clients that have little each may have reserved everything together. Their bodies give way when they have been
// arriving for a while, but only to a client that has little too.
func TestManySmallBodiesGiveWayWhenTheyAreSlow(t *testing.T) {
	b := newBodies()
	const bytes = 512 << 10
	var slow []*reservation
	for i := range bodyBudget / bytes {
		r, err := b.reserve(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), bytes, func() {})
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, r)
	}
	other := netip.MustParseAddr("198.51.100.1")
	if b.makeRoom(other, 1<<20) {
		t.Error("bodies that have just begun give way")
	}
	for _, r := range slow {
		r.since = r.since.Add(-2 * slowBody)
	}
	if b.makeRoom(other, littleShare+1) {
		t.Error("bodies give way to a client with much")
	}
	if !b.makeRoom(other, 1<<20) {
		t.Error("slow bodies do not give way")
	}
	for i, r := range slow {
		if r.hasGivenWay() != (i < 2) {
			t.Errorf("body %d has given way: %v", i, r.hasGivenWay())
		}
	}
}

// A stranger easily gets an IPv6 /48 with its 65,536 networks of /64.
func TestTheBodiesOfASiteShareTheMemoryOfAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the third body waits for room
		b := newBodies()
		const bytes = clientShare / 2
		for i, want := range []error{nil, nil, errManyOfClient} {
			if _, err := b.reserve(netip.MustParseAddr(fmt.Sprintf("2001:db8:1:%x::", i)), bytes, func() {}); err != want {
				t.Errorf("body %d of the /48 got %v, want %v", i, err, want)
			}
		}
		if _, err := b.reserve(netip.MustParseAddr("2001:db8:2::"), bytes, func() {}); err != nil {
			t.Errorf("a body of another /48 got %v", err)
		}
	})
}

// A body may give way when all of it has just arrived. Then it is answered, and nothing more is read.
func TestAnAnswerSaysThatNothingMoreIsRead(t *testing.T) {
	var w *world
	w = newWorld(t, func(cfg *Config) {
		cfg.PartnerNeedsBody = func(*fasthttp.RequestCtx) bool {
			w.server.open.stopReading(func(*conn) bool { return true })
			return true
		}
	})
	got := w.raw("POST /v1/x HTTP/1.1\r\nHost: "+baseHost+"\r\n"+chunks(event), false)
	if !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.Contains(got, "\r\nConnection: close\r\n") {
		t.Errorf("got %q, want 200 that closes the connection", got)
	}
}

// When the head decides the answer, a large body is not waited for and reserves nothing.
func TestTheHeadIsCheckedBeforeTheBody(t *testing.T) {
	w := newWorld(t, func(cfg *Config) {
		cfg.PartnerNeedsBody = func(ctx *fasthttp.RequestCtx) bool { return len(ctx.Request.Header.Peek("Authorization")) > 0 }
	})
	mark := "/mark/" + string(w.Client.ID)
	for _, tt := range []struct{ name, method, host, path, status string }{
		{"an unknown host", "POST", "nobody.test", mark, "421"},
		{"a partner's path on an unknown host", "POST", "nobody.test", "/v1/x", "421"},
		{"an ambiguous head", "POST", clientHost + "\r\nX Y: z", mark, "400"},
		{"an unknown tag", "POST", clientHost, "/mark/x", "404"},
		{"a tag of another host", "POST", w.ServerSide.Host, mark, "404"},
		{"an unknown path", "POST", clientHost, "/x", "404"},
		{"a method that takes no body", "PUT", clientHost, mark, "405"},
		{"a script", "GET", clientHost, "/script", "200"},
		{"the partner API without a key", "POST", baseHost, "/v1/x", "200"},
	} {
		for _, length := range []string{
			"Content-Length: 500000\r\n\r\n[",
			"Transfer-Encoding: chunked\r\n\r\n",
			"Transfer-Encoding: chunked\r\n\r\n8000\r\n[",
			"Expect: 100-continue\r\nContent-Length: 500000\r\n\r\n",
		} {
			t.Run(tt.name, func(t *testing.T) {
				got := w.raw(tt.method+" "+tt.path+" HTTP/1.1\r\nHost: "+tt.host+"\r\n"+length, false)
				if !strings.HasPrefix(got, "HTTP/1.1 "+tt.status+" ") || !strings.Contains(got, "\r\nConnection: close\r\n") {
					t.Errorf("%q got %q, want %s", length, got, tt.status)
				}
				if n := w.server.bodies.budget.Reserved(); n > 0 {
					t.Errorf("%d bytes are reserved", n)
				}
			})
		}
	}
}

// A request arrives within the read timeout, and each 16 KiB of it after that within another interval.
func TestABodyMustArriveFastEnough(t *testing.T) {
	w := newTunedWorld(t, func(s *Server) { s.http.ReadTimeout, s.open.interval = 100*time.Millisecond, 100*time.Millisecond })
	path := "/mark/" + string(w.Client.ID)
	stalled := w.announce("127.0.0.1", path, largest)
	if _, err := io.WriteString(stalled, strings.Repeat(" ", 64<<10)); err != nil {
		t.Fatal(err)
	}
	if got := readReply(t, bufio.NewReader(stalled)).StatusCode; got != 408 {
		t.Errorf("a body that stalls got %d, want 408", got)
	}
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
		reserved = w.server.bodies.budget.Reserved()
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
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		reserved := w.server.bodies.budget.Reserved()
		if reserved == bytes {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("%d bytes are reserved, want %d", reserved, bytes)
		}
	}
}
