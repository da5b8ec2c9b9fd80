package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"mtagd/edge"
	"mtagd/edge/tag"
	"mtagd/store"
)

const tagHost = "tags.mtagd.test"

// instant is an engine whose Record does nothing, so that only the tag server's own work is measured.
type instant struct {
	store.Engine
	directory *store.Directory
}

func (e *instant) Directory() *store.Directory { return e.directory }

func (e *instant) Record(_ context.Context, marks []store.Mark) error {
	for i := range marks {
		marks[i].Outcome = store.Recorded
	}
	return nil
}

// BenchmarkMark measures POST /mark over TCP on loopback, from the request's bytes to the answer's:
//
//	bare     fasthttp with a constant answer
//	decode   the tag server with an engine whose Record does nothing
//	durable  the tag server with the real engine; the answer follows the synced commit
func BenchmarkMark(b *testing.B) {
	fake := &instant{directory: store.NewDirectory()}
	tag := store.NewTag(store.Merchant{ID: store.NewMerchantID()}, store.ClientSide, "", "", time.Now())
	fake.directory.SetTag(tag)

	b.Run("step=bare", func(b *testing.B) {
		server := NewBareServer()
		exchange(b, 1, server.Serve, server.ShutdownWithContext, &tag)
	})
	b.Run("step=decode", func(b *testing.B) {
		server := newServer(b, fake)
		exchange(b, 1, server.Serve, server.Shutdown, &tag)
	})
	for _, n := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("step=durable/callers=%d", n), func(b *testing.B) {
			engine := openEngine(b)
			tag := addTag(b, engine)
			server := newServer(b, engine)
			exchange(b, n, server.Serve, server.Shutdown, tag)
		})
	}
}

func newServer(b *testing.B, e store.Engine) *edge.Server {
	b.Helper()
	server, err := edge.New(edge.Config{
		Config:   tag.Config{Engine: e, ClientTagHost: tagHost, Log: slog.New(slog.DiscardHandler), Now: time.Now},
		BaseHost: "api.mtagd.test",
	})
	if err != nil {
		b.Fatal(err)
	}
	return server
}

// exchange sends events to a server on n connections. Each connection sends its next event after the last answer.
func exchange(b *testing.B, n int, serve func(net.Listener) error, shutdown func(context.Context) error, tag *store.Tag) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serve(listener) }()
	body := event(1)
	request := fmt.Appendf(nil, "POST /mark/%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", tag.ID, tagHost, len(body), body)

	conns, answers := make([]net.Conn, n), make([][]byte, n)
	for i := range n {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		conns[i], answers[i] = c, firstAnswer(b, c, request)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	callers(b, n, func(i int) error {
		if _, err := conns[i].Write(request); err != nil {
			return err
		}
		// Every answer has the length of the first.
		if _, err := io.ReadFull(conns[i], answers[i]); err != nil {
			return err
		}
		if !bytes.HasPrefix(answers[i], []byte("HTTP/1.1 201 ")) {
			return fmt.Errorf("got %s", answers[i])
		}
		return nil
	})
	for _, c := range conns {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := errors.Join(shutdown(ctx), <-served); err != nil {
		b.Error(err)
	}
}

// firstAnswer sends a request and returns a buffer with the answer. All further answers have the same length.
func firstAnswer(b *testing.B, c net.Conn, request []byte) []byte {
	b.Helper()
	if _, err := c.Write(request); err != nil {
		b.Fatal(err)
	}
	buffer := make([]byte, 4096)
	n, err := c.Read(buffer) // the server writes an answer in one piece
	if err != nil || !bytes.HasPrefix(buffer[:n], fmt.Appendf(nil, "HTTP/1.1 %d ", http.StatusCreated)) {
		b.Fatalf("got %q, %v", buffer[:n], err)
	}
	return buffer[:n]
}

// BenchmarkDirectory measures the lookups for a request: of its host and its tag.
func BenchmarkDirectory(b *testing.B) {
	for _, size := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("tags=%d", size), func(b *testing.B) {
			d := store.NewDirectory()
			tags := make([]store.Tag, size)
			for i := range tags {
				tags[i] = store.NewTag(store.Merchant{ID: store.NewMerchantID()}, store.ServerSide, fmt.Sprintf("mtag-%d", i), "shop.com", time.Now())
				d.SetTag(tags[i])
			}
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					t := &tags[i*7919%size]
					if _, ok := d.Tag(t.ID); !ok || !d.KnowsHost(t.Host) {
						b.Error("a tag is not known")
						return
					}
				}
			})
		})
	}
}
