package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"mtagd/bench/mtagbench/load"
)

// Group has the processes of a measurement.
type Group struct {
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// NewGroup returns a group whose processes are stopped when ctx ends, or by Stop.
func NewGroup(ctx context.Context) *Group {
	g := &Group{}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

// Stop asks all processes to end, and waits until they have.
func (g *Group) Stop() {
	g.cancel()
	g.running.Wait()
}

// Process is a server of a group. It ends when this program ends, even if this program is killed.
type Process struct {
	group  *Group
	cmd    *exec.Cmd
	proc   procfs.Proc
	lines  chan string   // its output; lines that nobody reads are dropped once the channel is full
	exited chan struct{} // closed when the process has ended; err is set before that
	err    error

	mu        sync.Mutex
	lastLines []string
	peak      int64 // the most anonymous memory since takePeakMemory, bytes
}

const stopTimeout = 30 * time.Second

// start runs a program in an operating system process group of its own. So Ctrl-C does not reach it: the context stops it.
func (g *Group) start(program string, args ...string) (*Process, error) {
	p := &Process{group: g, cmd: exec.CommandContext(g.ctx, program, args...), lines: make(chan string, 64), exited: make(chan struct{})}
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopTimeout
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	output, input := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = input, input
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	var err error
	if p.proc, err = procfs.NewProc(p.cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, p.cmd.Process.Kill(), p.cmd.Wait())
	}
	go p.readOutput(output)
	go p.watchMemory()
	g.running.Go(func() {
		p.err = p.cmd.Wait()
		_ = input.Close() // ends readOutput
		close(p.exited)
	})
	return p, nil
}

func (p *Process) readOutput(output io.Reader) {
	defer close(p.lines)
	defer io.Copy(io.Discard, output) // the scanner gives up on a very long line; the process must still be able to write
	for scanner := bufio.NewScanner(output); scanner.Scan(); {
		p.mu.Lock()
		p.lastLines = append(p.lastLines[max(0, len(p.lastLines)-9):], scanner.Text())
		p.mu.Unlock()
		select {
		case p.lines <- scanner.Text():
		default:
		}
	}
}

// findInOutput passes lines of output to find, and returns the first value that is not empty.
func (p *Process) findInOutput(find func(line string) string) (string, error) {
	timeout := time.After(time.Minute)
	for {
		select {
		case line, open := <-p.lines:
			if !open {
				<-p.exited
				return "", p.Failure("ended before it was ready")
			}
			if found := find(line); found != "" {
				return found, nil
			}
		case <-timeout:
			return "", p.Failure("was not ready in a minute")
		case <-p.group.ctx.Done():
			return "", p.group.ctx.Err()
		}
	}
}

// Failure makes an error that ends with the last lines of output.
func (p *Process) Failure(what string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("%s %s; its last lines:\n%s", filepath.Base(p.cmd.Path), what, strings.Join(p.lastLines, "\n"))
}

// Stop asks the process to end, and waits until it has. It kills a process that does not end in time.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		return errors.Join(p.Failure(fmt.Sprintf("did not stop in %v", stopTimeout)), p.Kill())
	}
	if p.err != nil {
		return p.Failure("failed while stopping: " + p.err.Error())
	}
	return nil
}

// Kill kills the process, and waits until it has ended.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	<-p.exited
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// CPUTime is the processor time that the process has used, in user and kernel mode.
func (p *Process) CPUTime() (time.Duration, error) {
	stat, err := p.proc.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}

// DiskWrites is how much the process has written to disk, in bytes.
func (p *Process) DiskWrites() (int64, error) {
	counters, err := p.proc.IO()
	return int64(counters.WriteBytes), err
}

// watchMemory records the peak of the resident anonymous memory until the process ends.
func (p *Process) watchMemory() {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-p.exited:
			return
		case <-ticker.C:
			if now, err := p.proc.NewStatus(); err == nil { // fails when the process has just ended
				p.mu.Lock()
				p.peak = max(p.peak, int64(now.RssAnon))
				p.mu.Unlock()
			}
		}
	}
}

// takePeakMemory returns the most anonymous memory, in bytes, since its last call. It is sampled ten times a second.
func (p *Process) takePeakMemory() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.peak
	p.peak = 0
	return taken
}

// StartOwn starts a server that is a hidden command of this program, and prints its address.
func (g *Group) StartOwn(command string, args ...string) (p *Process, t load.Target, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, t, err
	}
	if p, err = g.start(self, append([]string{command}, args...)...); err != nil {
		return nil, t, err
	}
	address, err := p.findInOutput(func(line string) string { return line })
	if err == nil {
		t, err = load.NewTarget(address, address, "/mark/tag")
	}
	if err != nil {
		return nil, t, errors.Join(err, p.Kill())
	}
	return p, t, nil
}
