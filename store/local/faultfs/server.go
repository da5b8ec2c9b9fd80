package faultfs

import (
	"context"
	"net/rpc"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	mountEnv    = "FAULTFS_MOUNT"
	baseEnv     = "FAULTFS_BASE"
	trashSuffix = ".removed" // of the directory that keeps removed files until removing them survives
)

// Main serves a file system when this process was started for that, and then does not return.
func Main() {
	if os.Getenv(mountEnv) == "" {
		return
	}
	s := &Server{dir: os.Getenv(mountEnv), base: os.Getenv(baseEnv)}
	s.undo.trash = s.base + trashSuffix
	r := rpc.NewServer()
	if err := r.Register(s); err != nil {
		panic(err)
	}
	r.ServeConn(pipes{os.Stdin, os.Stdout})
	s.unmount()
	os.Exit(0)
}

// Server runs in a process of its own, which serves the file system.
type Server struct {
	dir, base string
	server    *fuse.Server

	mu     sync.Mutex
	undo   undo
	rules  []Rule
	failed int
}

// Command is what Disk asks for.
type Command struct {
	Mount, Cut bool
	Fail       bool // Rules are the new ones
	Rules      []Rule
	Restore    *Survival
}

// Do serves a command. failed is how often the present rules have applied.
func (s *Server) Do(c Command, failed *int) (err error) {
	if c.Mount {
		root := &node{s: s, LoopbackNode: fs.LoopbackNode{RootData: &fs.LoopbackRoot{Path: s.base}}}
		s.server, err = fs.Mount(s.dir, root, &fs.Options{MountOptions: fuse.MountOptions{
			FsName: "faultfs", DirectMountStrict: true, DisableXAttrs: true,
		}})
	}
	if c.Restore != nil {
		s.unmount() // which writes what the kernel still has
		s.server = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Fail {
		s.rules, s.failed = c.Rules, 0
	}
	if c.Restore != nil {
		err = s.undo.takeBack(s.base, *c.Restore)
	}
	s.undo.wasCut = s.undo.wasCut || c.Cut
	*failed = s.failed
	return err
}

func (s *Server) unmount() {
	if s.server != nil && s.server.Unmount() != nil {
		_ = unix.Unmount(s.dir, unix.MNT_DETACH)
	}
}

// rule returns the rule that applies to an operation, if there is one. The lock is held.
func (s *Server) rule(op Op, name string) (Rule, bool) {
	for i := range s.rules {
		r := &s.rules[i]
		if matches, _ := filepath.Match(r.Files, name); r.Op != op || !matches || r.Count < 0 {
			continue
		}
		if r.Skip > 0 {
			r.Skip--
			continue
		}
		switch r.Count {
		case 0: // all
		case 1:
			r.Count = -1 // no more
		default:
			r.Count--
		}
		s.failed++
		return *r, true
	}
	return Rule{}, false
}

// fails returns the error of a rule that applies to an operation, else 0. The lock is held.
func (s *Server) fails(op Op, path string) syscall.Errno {
	r, _ := s.rule(op, filepath.Base(path))
	return r.Errno
}

// change makes a change, unless a rule makes it fail.
func (s *Server) change(at func() string, do func(u *undo, path string) error) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := at()
	if errno := s.fails(Write, path); errno != 0 {
		return errno
	}
	return fs.ToErrno(do(&s.undo, path))
}

// orNil returns nil for 0, which as an error is not nil.
func orNil(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

type node struct {
	fs.LoopbackNode
	s *Server
}

// WrapChild makes the nodes that LoopbackNode creates nodes of this package.
func (n *node) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{s: n.s, LoopbackNode: fs.LoopbackNode{RootData: child.(*fs.LoopbackNode).RootData}}
}

func (n *node) path() string { return filepath.Join(n.s.base, n.Path(nil)) }

// at returns the path of a file in a directory.
func (n *node) at(name string) func() string {
	return func() string { return filepath.Join(n.path(), name) }
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (child *fs.Inode, fh fs.FileHandle,
	fuseFlags uint32, errno syscall.Errno) {
	errno = n.s.change(n.at(name), func(u *undo, path string) error {
		child, fh, fuseFlags, errno = n.LoopbackNode.Create(ctx, name, flags, mode, out)
		if errno == 0 {
			u.created(path)
			fh = &file{LoopbackFile: fh.(*fs.LoopbackFile), n: child.Operations().(*node)}
		}
		return orNil(errno)
	})
	return child, fh, fuseFlags, errno
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	path := filepath.Join(n.path(), name)
	child, errno := n.LoopbackNode.Mkdir(ctx, name, mode, out)
	if errno == 0 {
		n.s.undo.created(path)
	}
	return child, errno
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_TRUNC != 0 {
		n.s.mu.Lock()
		defer n.s.mu.Unlock()
		if err := n.s.undo.resize(n.path(), 0); err != nil {
			return nil, 0, fs.ToErrno(err)
		}
	}
	if flags&syscall.O_ACCMODE == syscall.O_WRONLY { // the kernel reads pages of which a part is written
		flags = flags&^syscall.O_ACCMODE | syscall.O_RDWR
	}
	fh, fuseFlags, errno := n.LoopbackNode.Open(ctx, flags)
	if errno == 0 {
		fh = &file{LoopbackFile: fh.(*fs.LoopbackFile), n: n}
	}
	return fh, fuseFlags, errno
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	return n.s.change(n.at(name), (*undo).remove)
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	return n.s.change(n.at(name), func(u *undo, path string) error {
		files, err := os.ReadDir(path)
		if err == nil && len(files) > 0 {
			err = syscall.ENOTEMPTY
		}
		if err != nil {
			return err
		}
		return u.remove(path)
	})
}

func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if flags != 0 {
		return syscall.EINVAL
	}
	return n.s.change(parent.(*node).at(newName), func(u *undo, to string) error { return u.rename(filepath.Join(n.path(), name), to) })
}

func (n *node) Link(context.Context, fs.InodeEmbedder, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return nil, syscall.ENOTSUP
}

func (n *node) Setattr(ctx context.Context, fh fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) (errno syscall.Errno) {
	size, ok := in.GetSize()
	if !ok {
		return n.LoopbackNode.Setattr(ctx, nil, in, out)
	}
	return n.s.change(n.path, func(u *undo, path string) error {
		if err := u.resize(path, int64(size)); err != nil {
			return err
		}
		return orNil(n.LoopbackNode.Setattr(ctx, nil, in, out))
	})
}

// Fsync serves directories.
func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return n.sync() }

// OpendirHandle makes the kernel send syncs of directories.
func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	fh, fuseFlags, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno == 0 {
		fh = &directory{FileHandle: fh, FileReaddirenter: fh.(fs.FileReaddirenter), FileReleasedirer: fh.(fs.FileReleasedirer), n: n}
	}
	return fh, fuseFlags, errno
}

type directory struct {
	fs.FileHandle
	fs.FileReaddirenter
	fs.FileReleasedirer
	n *node
}

func (d *directory) Fsyncdir(context.Context, uint32) syscall.Errno { return d.n.sync() }

func (n *node) sync() syscall.Errno {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	path := n.path()
	if errno := n.s.fails(Sync, path); errno != 0 {
		return errno
	}
	n.s.undo.synced(path)
	return 0
}

// file is an open file.
type file struct {
	*fs.LoopbackFile
	n *node
}

func (*file) PassthroughFd() (int, bool) { return 0, false }

func (f *file) Read(ctx context.Context, buf []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f.n.s.mu.Lock()
	defer f.n.s.mu.Unlock()
	result, errno := f.LoopbackFile.Read(ctx, buf, off)
	if errno != 0 {
		return nil, errno
	}
	b, status := result.Bytes(buf)
	if status != fuse.OK {
		return nil, syscall.Errno(status)
	}
	r, found := f.n.s.rule(Read, filepath.Base(f.n.path()))
	if found && r.Errno != 0 {
		return nil, r.Errno
	}
	if found && r.Byte >= off && r.Byte < off+int64(len(b)) {
		b[r.Byte-off] ^= 1 << r.Bit
	}
	return fuse.ReadResultData(b), 0
}

func (f *file) Write(ctx context.Context, data []byte, off int64) (n uint32, errno syscall.Errno) {
	errno = f.n.s.change(f.n.path, func(u *undo, path string) error {
		if err := u.write(path, off, int64(len(data))); err != nil {
			return err
		}
		n, errno = f.LoopbackFile.Write(ctx, data, off)
		return orNil(errno)
	})
	return n, errno
}

func (f *file) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	return f.n.s.change(f.n.path, func(u *undo, path string) error {
		changed := int64(0) // only the size
		if mode&unix.FALLOC_FL_PUNCH_HOLE != 0 {
			changed = int64(size)
		}
		if err := u.write(path, int64(off), changed); err != nil {
			return err
		}
		return orNil(f.LoopbackFile.Allocate(ctx, off, size, mode))
	})
}

func (f *file) Fsync(context.Context, uint32) syscall.Errno { return f.n.sync() }
