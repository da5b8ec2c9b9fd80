package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mtagd/store/testenv"
)

// The slack of Go's monitor thread is the one that matters. Nothing shows which thread that is, so check all of them.
func TestAllThreadsHaveRelaxedTimers(t *testing.T) {
	b := newTaggedService(t)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", b.cmd.Process.Pid))
	if err != nil || len(threads) < 3 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	for _, thread := range threads {
		slack, err := os.ReadFile(filepath.Join("/proc", filepath.Base(thread), "timerslack_ns"))
		if errors.Is(err, fs.ErrPermission) {
			testenv.Skip(t, "only root may read the timer slack of another process")
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(slack)); got != fmt.Sprint(timerSlack.Nanoseconds()) {
			t.Errorf("a thread's timer slack is %s ns, want %d", got, timerSlack.Nanoseconds())
		}
	}
}
