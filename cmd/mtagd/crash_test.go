package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store/pgtest"
)

// crash kills all processes of a server of PostgreSQL at once, as a power cut does.
func crash(s *pgtest.Server) error {
	pids, err := s.StopAll()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			return err
		}
	}
	if len(pids) == 0 {
		return nil // it has ended already
	}
	defer removeLock(s)
	if err := s.Kill(); err != nil { // waits until the first process has ended
		return err
	}
	for _, pid := range pids[1:] { // until the last has ended, the memory that they share keeps the server from starting
		for deadline := time.Now().Add(time.Minute); isRunning(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d of %s does not end", pid, s.Name)
			}
		}
	}
	return nil
}

// removeLock removes the piece of shared memory with which a server keeps others out of its directory, and which a killed
// one leaves behind. The next start would do it too, but some are never started again.
func removeLock(s *pgtest.Server) {
	const line = 6 // of postmaster.pid: key and id
	text, err := os.ReadFile(filepath.Join(s.DataDir(), "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	if err != nil || len(lines) <= line {
		return
	}
	var key, id int
	if n, _ := fmt.Sscan(lines[line], &key, &id); n == 2 {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) // it may be gone
	}
}

// isRunning is false for a process that has ended, whether or not its parent has noticed.
func isRunning(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	after := text[bytes.LastIndexByte(text, ')')+1:]
	return err == nil && !bytes.HasPrefix(after, []byte(" Z")) && !bytes.HasPrefix(after, []byte(" X"))
}

// freezeProcess stops a process. It goes on after thaw, and when this process ends, in whatever way.
func freezeProcess(p *os.Process) (thaw func() error, err error) {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	if thaw, err = pgtest.AtEnd(fmt.Sprintf("kill -CONT %d 2>/dev/null; true", p.Pid)); err != nil {
		err = errors.Join(err, p.Signal(syscall.SIGCONT))
	}
	return thaw, err
}
