// Package faultfs is a disk that fails on purpose, for tests. It is a FUSE file system that passes everything through to
// a directory. On command it flips bits, fails reads, writes and syncs, and loses power.
//
// The file system runs in a process of its own: a page fault in a mapped file blocks a thread of the Go runtime, so a
// process that serves its own faults would soon block. That process is the test binary itself, started again. So the
// TestMain of a package that uses faultfs must call Main first.
//
//	faultfs.go  Disk: mount, fail, cut the power; the other process is called by net/rpc on its standard input and output
//	server.go   the file system
//	undo.go     remembers what was not synced, and takes it back when the power is cut
//
// # What survives a power cut
//
// A write survives when the file was synced after it. Creating and renaming a file survive when the file or its directory
// was synced after it, removing a file when the directory was, creating a directory when anything in it was. Linux's file
// systems with a journal do so. Of all else a random part survives: each page of a file, a part of one page, each change
// of a size, and the first few changes of a directory. What a process does after the power cut does not survive.
package faultfs

import (
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"mtagd/store/testenv"
)

// Op is what a rule applies to.
type Op string

// The operations of rules.
const (
	Read  Op = "read"
	Write Op = "write" // changes of content and size, allocating, creating and removing
	Sync  Op = "sync"
)

// Rule makes operations fail. Of several rules the first that matches counts.
type Rule struct {
	Op    Op
	Files string        // pattern of the file's name (filepath.Match)
	Skip  int           // how many matching operations succeed before
	Count int           // how many fail then; 0: all
	Errno syscall.Errno // the error; 0 in a rule for Read: a bit is flipped
	Byte  int64         // the byte of the file in which the bit is flipped
	Bit   uint8         // the bit, 0 to 7
}

// Disk is a mounted file system.
type Disk struct {
	Dir  string // where it is mounted
	Base string // the directory below, with the same files
	t    testing.TB
	cmd  *exec.Cmd
	rpc  *rpc.Client
}

// New mounts an empty disk until the test ends. It skips the test where FUSE is not permitted.
func New(t testing.TB) *Disk {
	t.Helper()
	root := t.TempDir()
	d := &Disk{Dir: filepath.Join(root, "disk"), Base: filepath.Join(root, "base"), t: t}
	for _, dir := range []string{d.Dir, d.Base, d.Base + trashSuffix} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d.mount()
	t.Cleanup(d.unmount)
	return d
}

func (d *Disk) mount() {
	d.t.Helper()
	d.cmd = exec.Command(os.Args[0])
	d.cmd.Env = append(os.Environ(), mountEnv+"="+d.Dir, baseEnv+"="+d.Base, "GOCOVERDIR="+d.t.TempDir())
	d.cmd.Stderr = os.Stderr
	in, err := d.cmd.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.rpc = rpc.NewClient(pipes{out, in})
	if err := d.rpc.Call("Server.Do", Command{Mount: true}, new(int)); err != nil {
		testenv.Skip(d.t, "FUSE is not permitted here, so nothing is tested on a failing disk: "+err.Error())
	}
}

// pipes are the standard output and input of the other process.
type pipes struct {
	io.Reader
	io.WriteCloser
}

func (d *Disk) do(c Command) (failed int) {
	d.t.Helper()
	if err := d.rpc.Call("Server.Do", c, &failed); err != nil {
		d.t.Fatalf("faultfs: %+v: %v", c, err)
	}
	return failed
}

// unmount ends the other process, which unmounts.
func (d *Disk) unmount() {
	_ = d.rpc.Close() // it ends when its standard input is closed
	_ = d.cmd.Wait()
}

// Fail replaces the rules. Without rules the disk works.
func (d *Disk) Fail(rules ...Rule) {
	d.t.Helper()
	d.do(Command{Fail: true, Rules: rules})
}

// Failed returns how often the present rules have applied.
func (d *Disk) Failed() int {
	d.t.Helper()
	return d.do(Command{})
}

// Cut is the moment of a power cut: nothing that is written or synced from now on will survive. The process that uses the
// disk goes on, and may close its files. Then Restore shows what is on the disk.
func (d *Disk) Cut() {
	d.t.Helper()
	d.do(Command{Cut: true})
}

// Restore mounts the disk again after a power cut. keep is the share of what was not synced that survives, from 0 to 1;
// seed decides which part. No file of the disk may be open or mapped.
func (d *Disk) Restore(keep float64, seed uint64) {
	d.t.Helper()
	d.do(Command{Restore: &Survival{Keep: keep, Seed: seed}})
	d.unmount()
	d.mount()
}

// Survival says which part of what was not synced survives.
type Survival struct {
	Keep float64
	Seed uint64
}
