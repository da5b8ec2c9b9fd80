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
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// sessions listens on a socket in front of a server. A client that connects to it gets a session of the server that another
// client has left, if there is one: a new session costs the server a process, whose caches are empty. Clients do not notice:
// they get the process id and the parameters of their session. But what ALTER DATABASE or ALTER ROLE has set since a session
// began does not reach it.
type sessions struct {
	dir    string // has the socket
	server string // the path of the server's socket

	mu   sync.Mutex
	left []*session // the one that was left last is at the end
}

// maxLeft is far below the server's max_connections. When more sessions are left, the oldest ends.
const maxLeft = 60

// session is a session of the server.
type session struct {
	net.Conn
	startup string        // the message that it began with
	in      *bufio.Reader // of Conn
	welcome []byte        // what the server has answered to startup

	asked, ready int  // messages of the client that ReadyForQuery answers; its answers
	incomplete   bool // the client has sent messages since the last one that asked
}

// The messages that are looked at, by their type.
const (
	query         = 'Q'
	functionCall  = 'F'
	syncMessage   = 'S'
	terminate     = 'X'
	readyForQuery = 'Z'
	errorResponse = 'E'
)

// reset removes what a client has set, prepared, locked or created. It is the last statement of a session that waits for a
// client, and isLeft finds those in pg_stat_activity. They include those with a client that has not sent anything yet.
const (
	reset  = "DISCARD ALL -- for the next client"
	isLeft = "(state = 'idle' AND query = '" + reset + "')"
)

// flush adds what a session has done to the server's statistics, where it could else come while another test looks at them.
// Servers before PostgreSQL 15 lack the function.
const flush = `DO $$ BEGIN PERFORM pg_stat_force_next_flush(); EXCEPTION WHEN undefined_function THEN END $$`

const socketName = ".s.PGSQL.5432"

// newSessions listens in a new directory of the server.
func newSessions(s *Server) (*sessions, error) {
	k := &sessions{dir: filepath.Join(s.dir, "sessions"), server: filepath.Join(s.dir, socketName)}
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
	message, err := first.Encode(nil)
	if err != nil {
		return err
	}
	switch first.(type) {
	case *pgproto3.StartupMessage:
	case *pgproto3.CancelRequest:
		return k.cancel(message)
	default:
		return fmt.Errorf("a client begins with %T", first)
	}
	s, err := k.session(fmt.Sprint(first), message) // Encode writes parameters in any order
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
	if err := forward(s, bufio.NewReader(client), s.asks); err != nil { // without Terminate: the client or the session has ended
		return errors.Join(err, s.Conn.(*net.UnixConn).CloseWrite(), <-ended, s.Close())
	}
	if err := s.SetReadDeadline(time.Unix(0, 1)); err != nil {
		return errors.Join(err, s.Close(), <-ended)
	}
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) || s.incomplete || s.ready != s.asked {
		return errors.Join(err, s.Close())
	}
	if err := s.run(flush, reset); err != nil { // as in a transaction
		return errors.Join(err, s.Close())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left = append(k.left, s); len(k.left) > maxLeft {
		oldest := k.left[0]
		k.left = k.left[1:]
		return oldest.Close()
	}
	return nil
}

// cancel passes on a request to cancel a query, and waits until the server has sent the signal.
func (k *sessions) cancel(request []byte) error {
	server, err := net.Dial("unix", k.server)
	if err != nil {
		return err
	}
	_, err = server.Write(request)
	_, ended := io.Copy(io.Discard, server)
	return errors.Join(err, ended, server.Close())
}

// session returns a session that was left, or a new one.
func (k *sessions) session(startup string, message []byte) (*session, error) {
	for s := k.take(startup); s != nil; s = k.take(startup) {
		if s.run(reset) == nil {
			return s, nil
		}
		_ = s.Close() // the server has ended it
	}
	conn, err := net.Dial("unix", k.server)
	if err != nil {
		return nil, err
	}
	s := &session{Conn: conn, startup: startup, in: bufio.NewReader(conn)}
	if _, err := conn.Write(message); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	err = s.read(func(message []byte) { s.welcome = append(s.welcome, message...) })
	if err != nil && len(s.welcome) == 0 {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil // if the server has refused it, the client is told why, and then sees its end
}

// take takes a session from those that were left; nil: there is none.
func (k *sessions) take(startup string) *session {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, s := range slices.Backward(k.left) {
		if s.startup == startup {
			k.left = slices.Delete(k.left, i, i+1)
			return s
		}
	}
	return nil
}

// run runs statements for which no client waits.
func (s *session) run(statements ...string) error {
	if err := s.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	s.asked, s.ready = 0, 0
	for _, sql := range statements {
		message, err := (&pgproto3.Query{String: sql}).Encode(nil)
		if err != nil {
			return err
		}
		if _, err := s.Write(message); err != nil {
			return err
		}
		if err := s.read(func([]byte) {}); err != nil {
			return err
		}
	}
	return nil
}

// read passes messages of the server to each, up to ReadyForQuery or an error.
func (s *session) read(each func(message []byte)) error {
	var message []byte
	for {
		var err error
		if message, err = readMessage(message, s.in); err != nil {
			return err
		}
		each(message)
		switch message[0] {
		case readyForQuery:
			return nil
		case errorResponse:
			return errors.New("the server answers with an error")
		}
	}
}

// answers notes a message of the server.
func (s *session) answers(message []byte) (more bool) {
	if message[0] == readyForQuery {
		s.ready++
	}
	return true
}

// asks notes a message of the client. more is false for Terminate.
func (s *session) asks(message []byte) (more bool) {
	switch message[0] {
	case terminate:
		return false
	case query, functionCall, syncMessage:
		s.asked++
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

// readMessage reads a message into the memory of into. After ErrDeadlineExceeded, none of it was read.
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
