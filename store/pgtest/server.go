// Package pgtest runs PostgreSQL servers for tests: one for a test binary, with a database of its own for each test,
// and others with standbys for tests that stop or promote servers, and for benchmarks. They listen on unix sockets only
// unless they are measured, and end with the program that started them.
package pgtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is one running server.
type Server struct {
	Name    string // application_name of a standby
	dir     string // has data/ and the socket
	options Options
	port    int // of 127.0.0.1; 0: only the socket
	process *os.Process
	ended   chan struct{}
}

// Options are for servers that are measured.
type Options struct {
	Temp     string // directory for the data; empty: the system's
	Settings string // instead of those for speed, Settings
	TCP      bool   // listen on a port of 127.0.0.1, too
	keep     bool   // a copy of the new data, with which other servers of this program start: initdb is expensive
}

// Settings are for speed: what a power cut does to PostgreSQL is not tested here. Commits wait for a standby.
const Settings = `
listen_addresses = ''
fsync = off
full_page_writes = off
synchronous_commit = on
max_connections = 200
shared_buffers = 64MB
max_wal_senders = 8
hot_standby = on
jit = off
log_min_messages = warning
log_min_error_statement = panic
`

// Start runs initdb and starts a server in a new directory.
func Start(options Options) (*Server, error) {
	s, err := New("primary", options)
	if err != nil {
		return nil, err
	}
	if err := s.Init(); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// Init makes the server's data and starts it.
func (s *Server) Init() error {
	var err error
	if server != nil {
		err = s.Run("cp", "-a", server.newData(), s.DataDir())
	} else {
		err = s.Run("initdb", "-D", s.DataDir(), "-U", "mtagd", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	}
	if err == nil && s.options.keep {
		err = s.Run("cp", "-a", s.DataDir(), s.newData())
	}
	if err == nil {
		err = s.Configure(cmp.Or(s.options.Settings, Settings))
	}
	if err == nil {
		err = s.Start()
	}
	return err
}

// New returns a server that does not run, in a new directory. It has no data yet.
func New(name string, options Options) (*Server, error) {
	dir, err := os.MkdirTemp(options.Temp, "pgtest")
	if err != nil {
		return nil, err
	}
	s := &Server{Name: name, dir: dir, options: options}
	if options.TCP {
		if s.port, err = freePort(); err != nil {
			return nil, errors.Join(err, s.remove())
		}
	}
	who, err := s.credential()
	if err == nil && who != nil {
		err = os.Chown(dir, int(who.Uid), int(who.Gid))
	}
	return s, err
}

func (s *Server) remove() error { return os.RemoveAll(s.dir) }

// freePort returns a port of 127.0.0.1 that was free a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// Configure appends settings, which the server reads when it starts, or is told to.
func (s *Server) Configure(text string) error {
	if s.port > 0 {
		text += fmt.Sprintf("\nlisten_addresses = '127.0.0.1'\nport = %d", s.port)
	}
	f, err := os.OpenFile(filepath.Join(s.DataDir(), "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s\nunix_socket_directories = '%s'\n", text, s.dir)
	return errors.Join(err, f.Close())
}

// Start starts the server again after Kill, and waits until it accepts connections.
func (s *Server) Start() error {
	path, err := find("postgres")
	if err != nil {
		return err
	}
	logged, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logged.Close() // the server has its own descriptor
	cmd := exec.Command(path, "-D", s.DataDir())
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, logged, logged
	if cmd.SysProcAttr, err = s.attributes(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.process, s.ended = cmd.Process, ended
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(ended)
	}()
	return s.Await()
}

// Await waits until the server accepts connections.
func (s *Server) Await() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.ended:
			text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("the server has ended: %s", text)
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Kill ends the server at once, as a crash does.
func (s *Server) Kill() error {
	return s.end(syscall.SIGQUIT) // kill -9 would leave children that still hold the shared memory
}

func (s *Server) end(signal syscall.Signal) error {
	if s.process == nil {
		return nil // it was never started
	}
	select {
	case <-s.ended:
		return nil
	default:
	}
	if err := s.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.ended
	return nil
}

// Close ends the server and removes its files.
func (s *Server) Close() error { return errors.Join(s.Kill(), s.remove()) }

// Standby starts a standby. With synchronous set, commits of s wait until it has them on disk.
func (s *Server) Standby(name string, synchronous bool) (*Server, error) {
	standby, err := New(name, s.options)
	if err != nil {
		return nil, err
	}
	conninfo := fmt.Sprintf("host=%s user=mtagd application_name=%s", s.dir, name)
	if s.port > 0 {
		conninfo = fmt.Sprintf("host=127.0.0.1 port=%d user=mtagd application_name=%s", s.port, name)
	}
	err = s.Run("pg_basebackup", "-D", standby.DataDir(), "-d", conninfo, "-R", "-X", "stream", "-c", "fast", "--no-sync")
	if err == nil {
		err = standby.Configure("synchronous_standby_names = ''")
	}
	if err == nil {
		err = standby.Start()
	}
	if err == nil && synchronous {
		err = s.Exec("ALTER SYSTEM SET synchronous_standby_names = '"+name+"'", "SELECT pg_reload_conf()")
	}
	if err != nil {
		return nil, errors.Join(err, standby.remove())
	}
	return standby, nil
}

// Promote makes a standby a primary.
func (s *Server) Promote() error {
	// Not by a statement: a standby cancels those that are in the way of what it replays.
	return s.Run("pg_ctl", "promote", "-w", "-t", "60", "-D", s.DataDir())
}

// URL returns the address of a database of the server.
func (s *Server) URL(database string) string {
	q := url.Values{"host": {s.dir}, "user": {"mtagd"}}
	if s.port > 0 {
		q.Set("host", "127.0.0.1")
		q.Set("port", strconv.Itoa(s.port))
	}
	return "postgres:///" + database + "?" + q.Encode()
}

// PID returns the id of the server's first process.
func (s *Server) PID() int { return s.process.Pid }

// DataDir returns the directory of the server's data.
func (s *Server) DataDir() string { return filepath.Join(s.dir, "data") }

// newData is the directory of what initdb made.
func (s *Server) newData() string { return filepath.Join(s.dir, "new") }

// Dir returns the directory of the server's socket.
func (s *Server) Dir() string { return s.dir }

// Exec runs statements, one by one.
func (s *Server) Exec(statements ...string) error { return run(s.URL("postgres"), statements...) }

// Run runs a program, as the user of the server's processes. PostgreSQL's own need not be in PATH.
func (s *Server) Run(name string, args ...string) (err error) {
	path, err := find(name)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = s.dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if cmd.SysProcAttr, err = s.attributes(); err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out.Bytes())
	}
	return nil
}

// attributes of a process: it ends with this one, and does not run as root.
func (s *Server) attributes() (*syscall.SysProcAttr, error) {
	who, err := s.credential()
	return &syscall.SysProcAttr{Credential: who, Pdeathsig: syscall.SIGQUIT, Setpgid: true}, err
}

// credential returns the user that servers run as, because PostgreSQL refuses to run as root; nil: this one.
func (s *Server) credential() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	who, err := user.Lookup("postgres")
	if err != nil {
		if who, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err := strconv.ParseUint(who.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(who.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// find returns the path of a program of PostgreSQL. Debian has them in a directory of their own.
func find(name string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		return found[len(found)-1], nil
	}
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("PostgreSQL is not installed (make postgres): %w", err)
	}
	return path, err
}
