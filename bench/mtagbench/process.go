package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a server under measurement. It ends with its context at the latest, and with this program
// however that ends.
type process struct {
	cmd    *exec.Cmd
	lines  chan string   // its output, until it has told its address
	exited chan struct{} // closed when it has ended; err is set then
	err    error

	mu   sync.Mutex
	tail []string // its last lines
	peak int64    // the most anonymous memory since it was last taken, bytes
}

const stopTimeout = 30 * time.Second

// start runs a program in a process group of its own: Ctrl-C reaches it through its context, after the phase
// under way was told.
func start(ctx context.Context, program string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, program, args...), lines: make(chan string, 64), exited: make(chan struct{})}
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopTimeout
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	output, input := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = input, input
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.read(output)
	go p.watch()
	go func() {
		p.err = p.cmd.Wait()
		_ = input.Close() // ends read
		close(p.exited)
	}()
	return p, nil
}

func (p *process) read(output io.Reader) {
	defer close(p.lines)
	defer io.Copy(io.Discard, output) // after a line too long to scan, so that writing it does not block
	for scanner := bufio.NewScanner(output); scanner.Scan(); {
		p.mu.Lock()
		p.tail = append(p.tail[max(0, len(p.tail)-9):], scanner.Text())
		p.mu.Unlock()
		select {
		case p.lines <- scanner.Text():
		default: // nobody waits for an address any more
		}
	}
}

// watch keeps the peak of the process's anonymous memory.
func (p *process) watch() {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-p.exited:
			return
		case <-ticker.C:
			if now, err := p.anonymous(); err == nil { // it may just have ended
				p.mu.Lock()
				p.peak = max(p.peak, now)
				p.mu.Unlock()
			}
		}
	}
}

// takePeak returns the most anonymous memory since it was last called.
func (p *process) takePeak() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.peak
	p.peak = 0
	return taken
}

// await returns the first non-empty value that find sees in a line of output.
func (p *process) await(ctx context.Context, find func(line string) string) (string, error) {
	timeout := time.After(time.Minute)
	for {
		select {
		case line, open := <-p.lines:
			if !open {
				<-p.exited
				return "", p.failure("ended before it was ready")
			}
			if found := find(line); found != "" {
				return found, nil
			}
		case <-timeout:
			return "", p.failure("was not ready in a minute")
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func (p *process) failure(what string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("%s %s; its last words:\n%s", filepath.Base(p.cmd.Path), what, strings.Join(p.tail, "\n"))
}

// stop asks the process to end; kill does not ask.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		return errors.Join(p.failure("did not stop"), p.kill())
	}
	if p.err != nil {
		return p.failure("stopped badly: " + p.err.Error())
	}
	return nil
}

func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.exited
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

func (p *process) proc(file string) string {
	return filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), file)
}

// clockTick is the unit of CPU time in /proc/PID/stat, the same on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// cpu is the CPU time that the process has used, in itself and in the kernel.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(p.proc("stat"))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(text))
}

func parseCPU(stat string) (time.Duration, error) {
	// The second field is the program's name, which may have spaces.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("unexpected /proc/PID/stat: %q", stat)
	}
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// anonymous is the resident memory that no file backs, in bytes.
func (p *process) anonymous() (int64, error) {
	kib, err := procValue(p.proc("status"), "RssAnon")
	return kib << 10, err
}

// written is what the process has caused to be written to disk, in bytes.
func (p *process) written() (int64, error) { return procValue(p.proc("io"), "write_bytes") }

// procValue reads the number behind a name in a file of /proc.
func procValue(file, name string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// diskUsage is what the files below a directory take on disk. Their sizes would say more than that: files that are
// mapped into memory are made longer than what is in them.
func diskUsage(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed since
		}
		if err != nil {
			return err
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			total += stat.Blocks * 512
		}
		return nil
	})
	return total, err
}
