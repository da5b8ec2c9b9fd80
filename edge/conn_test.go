package edge

import (
	"io"
	"net"
	"testing"
	"time"
)

// called is a listener with a client's connection that is not accepted yet.
func called(t *testing.T) (net.Listener, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return ln, client
}

// Whatever deadline an answered request had, the client may send the rest of it and then reads its answer.
func TestCloseWaitsForTheClient(t *testing.T) {
	for name, end := range map[string]func(c *conn) error{
		"after the deadline": func(c *conn) error { return c.SetReadDeadline(time.Now()) },
		"in a stop":          func(c *conn) error { c.open.hurry(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			ln, client := called(t)
			accepted, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c := new(connections).add(accepted.(*net.TCPConn))
			if err := end(c); err != nil {
				t.Fatal(err)
			}
			c.drain.Store(true)
			if _, err := io.WriteString(c, "answer"); err != nil {
				t.Fatal(err)
			}
			closed := make(chan error, 1)
			go func() { closed <- c.Close() }()

			if _, err := io.CopyN(client, zeros{}, 4<<20); err != nil {
				t.Errorf("the rest could not be sent: %v", err)
			}
			if got, err := io.ReadAll(client); err != nil || string(got) != "answer" {
				t.Errorf("read %q, %v", got, err)
			}
			client.Close()
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	}
}
