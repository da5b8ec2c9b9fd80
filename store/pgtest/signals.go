package pgtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Freeze stops all processes of the server, as when its machine is paused. They go on after thaw, and when this process ends
// however that is.
func (s *Server) Freeze() (thaw func() error, err error) {
	pids, err := s.StopAll()
	if err != nil {
		return nil, err
	}
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

// StopAll stops the server's processes, and returns their ids, that of the first process first; none if it has ended.
func (s *Server) StopAll() (pids []int, err error) {
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
