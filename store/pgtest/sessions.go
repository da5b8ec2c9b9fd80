package pgtest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// sessions are a socket in front of a server. A client that connects to it gets a session of the server that another client
// has left, if there is one: a new session costs the server a process, whose caches are empty. Clients do not notice: they
// get the process id and the parameters of their session.
type sessions struct {
	dir    string // has the socket
	server string // the path of the server's socket

	mu   sync.Mutex
	left map[string][]*session // by the parameters that they began with
}

// session is a session of the server.
type session struct {
	net.Conn
	in      *bufio.Reader // of Conn
	welcome []byte        // what the server has answered to the startup message

	asked      atomic.Int64 // messages that the server answers with ReadyForQuery
	ready      int64        // ReadyForQuery messages
	outside    bool         // the last of them was outside a transaction
	incomplete bool         // the client has sent messages since the last one that asked
}

// The messages that are looked at, by their type.
const (
	query         = 'Q'
	functionCall  = 'F'
	syncMessage   = 'S'
	terminate     = 'X'
	readyForQuery = 'Z'
)

// reset is what a session that was left runs, and is then idle. isLeft is the condition for it.
const (
	reset  = "DISCARD ALL"
	isLeft = "(state = 'idle' AND query = '" + reset + "')"
)

const socketName = ".s.PGSQL.5432"

// newSessions listens in a new directory of the server.
func newSessions(s *Server) (*sessions, error) {
	k := &sessions{dir: filepath.Join(s.dir, "sessions"), server: filepath.Join(s.dir, socketName), left: map[string][]*session{}}
	if err := os.Mkdir(k.dir, 0o700); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", filepath.Join(k.dir, socketName))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				_ = k.serve(client) // the client sees that its connection ends
			}()
		}
	}()
	return k, nil
}

// serve serves a client until it leaves, or until its session ends.
func (k *sessions) serve(client net.Conn) error {
	first, err := pgproto3.NewBackend(client, client).ReceiveStartupMessage()
	if err != nil {
		return err
	}
	startup, err := first.Encode(nil)
	if err != nil {
		return err
	}
	message, ok := first.(*pgproto3.StartupMessage)
	if !ok { // it wants another client's query to be cancelled
		return k.cancel(startup)
	}
	parameters := fmt.Sprint(message.Parameters)
	s, err := k.session(parameters, startup)
	if err != nil {
		return err
	}
	if _, err := client.Write(s.welcome); err != nil {
		return errors.Join(err, s.Close())
	}
	ended := make(chan error)
	go func() {
		err := forward(client, s.in, s.answers)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			_ = client.Close() // the session has ended
		}
		ended <- err
	}()
	_ = forward(s, bufio.NewReader(client), s.asks) // the client leaves
	if err := s.SetReadDeadline(time.Unix(0, 1)); err != nil {
		return errors.Join(err, s.Close(), <-ended)
	}
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) || s.incomplete || !s.outside || s.ready != s.asked.Load() {
		return errors.Join(err, s.Close())
	}
	if err := s.reset(); err != nil {
		return errors.Join(err, s.Close())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left[parameters] = append(k.left[parameters], s)
	return nil
}

// cancel passes on a request to cancel a query, and waits until the server has seen to it.
func (k *sessions) cancel(request []byte) error {
	server, err := net.Dial("unix", k.server)
	if err != nil {
		return err
	}
	_, err = server.Write(request)
	_, ended := io.Copy(io.Discard, server)
	return errors.Join(err, ended, server.Close())
}

// session returns a session that was left, or a new one. The server may have ended what was left.
func (k *sessions) session(parameters string, startup []byte) (*session, error) {
	for {
		k.mu.Lock()
		left := k.left[parameters]
		if len(left) == 0 {
			k.mu.Unlock()
			break
		}
		s := left[len(left)-1]
		k.left[parameters] = left[:len(left)-1]
		k.mu.Unlock()
		err := s.SetReadDeadline(time.Now().Add(time.Millisecond))
		if err == nil {
			_, err = s.in.Peek(1)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return s, s.SetReadDeadline(time.Time{})
		}
		_ = s.Close()
	}
	conn, err := net.Dial("unix", k.server)
	if err != nil {
		return nil, err
	}
	s := &session{Conn: conn, in: bufio.NewReader(conn)}
	if _, err := conn.Write(startup); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	err = s.read(func(message []byte) { s.welcome = append(s.welcome, message...) })
	if err != nil && len(s.welcome) == 0 {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil // if the server has refused it, the client is told why, and then sees its end
}

// reset makes a session as good as new.
func (s *session) reset() error {
	message, err := (&pgproto3.Query{String: reset}).Encode(nil)
	if err != nil {
		return err
	}
	if err := s.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if _, err := s.Write(message); err != nil {
		return err
	}
	s.asked.Store(0)
	s.ready = 0
	return s.read(func([]byte) {})
}

// read passes messages of the server to each, up to ReadyForQuery.
func (s *session) read(each func(message []byte)) error {
	var message []byte
	for {
		var err error
		if message, err = readMessage(message, s.in); err != nil {
			return err
		}
		each(message)
		if message[0] == readyForQuery {
			s.outside = true
			return nil
		}
	}
}

// answers notes a message of the server.
func (s *session) answers(message []byte) (more bool) {
	if message[0] == readyForQuery {
		s.ready++
		s.outside = message[5] == 'I'
	}
	return true
}

// asks notes a message of the client, and reports whether it does not leave.
func (s *session) asks(message []byte) (more bool) {
	switch message[0] {
	case terminate:
		return false
	case query, functionCall, syncMessage:
		s.asked.Add(1)
		s.incomplete = false
	default:
		s.incomplete = true
	}
	return true
}

// forward passes on messages until it cannot, or until one of them says that there are no more.
func forward(to io.Writer, from *bufio.Reader, each func(message []byte) (more bool)) (err error) {
	out := bufio.NewWriter(to)
	for message := []byte(nil); ; {
		if message, err = readMessage(message, from); err != nil || !each(message) {
			return errors.Join(err, out.Flush())
		}
		_, err = out.Write(message)
		if err == nil && from.Buffered() == 0 {
			err = out.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// readMessage reads a message into the bytes of another. After ErrDeadlineExceeded, none of it was read.
func readMessage(into []byte, from *bufio.Reader) ([]byte, error) {
	const header = 5 // the type, and the length of the rest with itself
	head, err := from.Peek(header)
	if err != nil {
		return nil, err
	}
	size := 1 + int(binary.BigEndian.Uint32(head[1:]))
	into = append(into[:0], make([]byte, size)...)
	if _, err := io.ReadFull(from, into); err != nil {
		return nil, errors.New("a message is incomplete")
	}
	return into, nil
}
