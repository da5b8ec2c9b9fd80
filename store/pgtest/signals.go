package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Crash kills all processes of the server at once, as a power cut does.
func (s *Server) Crash() error {
	pids, err := s.stopAll()
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
	<-s.ended
	defer s.removeLock()
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
func (s *Server) removeLock() {
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

// Freeze stops all processes of the server, as when its machine is paused. They go on after thaw, and when this process ends
// however that is.
func (s *Server) Freeze() (thaw func() error, err error) {
	pids, err := s.stopAll()
	if err != nil {
		return nil, err
	}
	return guard(pids)
}

// guard continues stopped processes when thaw is called, or when this process ends.
func guard(pids []int) (thaw func() error, err error) {
	var words []string
	for _, pid := range pids {
		words = append(words, strconv.Itoa(pid))
	}
	thaw, err = AtEnd("kill -CONT " + strings.Join(words, " ") + " 2>/dev/null; true")
	if err != nil {
		for _, pid := range pids {
			err = errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
		}
	}
	return thaw, err
}

// AtEnd runs a shell command when run is called, or when this process ends, in whatever way.
func AtEnd(command string) (run func() error, err error) {
	cmd := exec.Command("sh", "-c", "read line; "+command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	return func() error {
		_, err := io.WriteString(in, "\n")
		return errors.Join(err, in.Close(), cmd.Wait())
	}, nil
}

// FreezeProcess stops a process, as Freeze does with a server.
func FreezeProcess(p *os.Process) (thaw func() error, err error) {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return guard([]int{p.Pid})
}

// stopAll stops the server's processes, and returns their ids, that of the first process first; none if it has ended.
func (s *Server) stopAll() (pids []int, err error) {
	select {
	case <-s.ended:
		return nil, nil
	default:
	}
	first := s.process.Pid
	if err := syscall.Kill(first, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	pids = []int{first}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", first))
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return nil, err
		}
		for word := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				return nil, err
			}
			if err := syscall.Kill(pid, syscall.SIGSTOP); err == nil {
				pids = append(pids, pid)
			} else if err != syscall.ESRCH {
				return nil, err
			}
		}
	}
	return pids, nil
}
