package bench

import (
	"os"
	"sync"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

var bareBody = []byte(`{"message":"Event accepted"}`)

// NewBareServer makes the server that mtagd is compared with. It reads a request and answers 201 with the body of a
// POST /mark answer, so it shows what fasthttp alone can do on this machine.
func NewBareServer() *fasthttp.Server {
	return &fasthttp.Server{
		Handler:               answerBare,
		NoDefaultServerHeader: true,
	}
}

func answerBare(ctx *fasthttp.RequestCtx) {
	ctx.SetStatusCode(fasthttp.StatusCreated)
	ctx.SetContentType("application/json")
	ctx.SetBody(bareBody)
}

// syncedFileSize is what the file has, in bytes. It is written again from its beginning when it is full.
const syncedFileSize = 256 << 20

// SyncedServer is the bare server, but it answers when the body is in a file and the file is synced. Bodies that come
// during a sync are written and synced together. So it shows the most that a durable server can do on this machine: no
// engine writes less, or syncs less often. The file is full of zeros before, because a sync that need not change the
// metadata of the file system is the fastest.
type SyncedServer struct {
	*fasthttp.Server
	file   *os.File
	offset int64

	mu      sync.Mutex
	started sync.Cond // next has its first body
	next    *group
}

// group is what is synced together.
type group struct {
	bodies []byte
	synced chan struct{} // closed when err is set
	err    error
}

func newGroup(buffer []byte) *group { return &group{bodies: buffer[:0], synced: make(chan struct{})} }

// NewSyncedServer fills a new file. Nothing else may use it.
func NewSyncedServer(file *os.File) (*SyncedServer, error) {
	if err := fillWithZeros(file); err != nil {
		return nil, err
	}
	s := &SyncedServer{Server: NewBareServer(), file: file, next: newGroup(nil)}
	s.started.L = &s.mu
	s.Handler = func(ctx *fasthttp.RequestCtx) {
		if err := s.record(ctx.PostBody()); err != nil {
			ctx.Error(err.Error(), fasthttp.StatusInternalServerError)
			return
		}
		answerBare(ctx)
	}
	go s.writeGroups()
	return s, nil
}

func fillWithZeros(file *os.File) error {
	zeros := make([]byte, 4<<10) // a larger write would become one folio of the page cache, which each sync of a part would write
	for range syncedFileSize / len(zeros) {
		if _, err := file.Write(zeros); err != nil {
			return err
		}
	}
	return file.Sync()
}

func (s *SyncedServer) record(body []byte) error {
	s.mu.Lock()
	g := s.next
	if g.bodies = append(g.bodies, body...); len(g.bodies) == len(body) {
		s.started.Signal()
	}
	s.mu.Unlock()
	<-g.synced
	return g.err
}

// writeGroups runs until the process ends.
func (s *SyncedServer) writeGroups() {
	var buffer []byte
	for {
		s.mu.Lock()
		for len(s.next.bodies) == 0 {
			s.started.Wait()
		}
		g := s.next
		s.next = newGroup(buffer)
		s.mu.Unlock()
		if s.offset+int64(len(g.bodies)) > syncedFileSize {
			s.offset = 0
		}
		if _, g.err = s.file.WriteAt(g.bodies, s.offset); g.err == nil {
			g.err = unix.Fdatasync(int(s.file.Fd()))
		}
		s.offset += int64(len(g.bodies))
		buffer = g.bodies
		close(g.synced)
	}
}
