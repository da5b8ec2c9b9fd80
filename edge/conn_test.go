package edge

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// dialed returns a listener, and a client that has connected to it but is not accepted yet.
func dialed(t *testing.T) (net.Listener, net.Conn) {
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

// accept returns both ends of a connection.
func accept(t *testing.T) (c *conn, client net.Conn) {
	t.Helper()
	ln, client := dialed(t)
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return newConnections().add(accepted.(*net.TCPConn)), client
}

// When an answer comes before its request was read, Close reads the rest, whatever deadline there was: the client can
// send all of its request and then read the answer.
func TestCloseWaitsForTheClient(t *testing.T) {
	for name, end := range map[string]func(c *conn) error{
		"after the deadline": func(c *conn) error { return c.SetReadDeadline(time.Now()) },
		"in a stop":          func(c *conn) error { c.stopReading(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			c, client := accept(t)
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
				t.Errorf("the rest of the request could not be sent: %v", err)
			}
			if got, err := io.ReadAll(client); err != nil || string(got) != "answer" {
				t.Errorf("the client read %q, %v; want the answer", got, err)
			}
			client.Close()
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	}
}

// stopReading ends a read even when the server arms a later deadline at the same time.
func TestStopReadingEndsAReadWhateverIsArmedMeanwhile(t *testing.T) {
	t.Parallel()
	hour := time.Now().Add(time.Hour)
	for name, arm := range map[string]func(c *conn) error{
		"before": func(c *conn) error {
			c.stopReading()
			return c.SetReadDeadline(hour)
		},
		"between the decision to arm and arming": func(c *conn) error {
			return c.read.set(hour, func(t time.Time) error {
				c.stopReading()
				return c.armRead(t)
			})
		},
		"between the passing of the armed deadline and arming the wanted one": func(c *conn) error {
			c.read = deadline{wanted: hour, armed: time.Now()}
			if c.read.passed(os.ErrDeadlineExceeded, func(t time.Time) error {
				c.stopReading()
				return c.armRead(t)
			}, c.clientSends, rateInterval) {
				return errors.New("the wanted deadline was not armed")
			}
			return nil
		},
		"after": func(c *conn) error {
			defer c.stopReading()
			return c.SetReadDeadline(hour)
		},
		"in another goroutine": func(c *conn) error {
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.stopReading()
			}()
			var err error
			for running := true; running; {
				select {
				case <-done:
					running = false
				default:
				}
				// A deadline earlier than the last one is armed at once.
				hour = hour.Add(-time.Microsecond)
				err = errors.Join(err, c.SetReadDeadline(hour))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 100 {
				c, client := accept(t)
				if err := arm(c); err != nil {
					t.Fatal(err)
				}
				// This ends the read if the deadline of stopReading was lost.
				watchdog := time.AfterFunc(10*time.Second, func() { client.Close() })
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("Read: %v, want %v", err, os.ErrDeadlineExceeded)
				}
				watchdog.Stop()
				client.Close()
				c.Close()
			}
		})
	}
}
