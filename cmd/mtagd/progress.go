package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// bar shows progress on a terminal.
type bar struct {
	w       io.Writer // nil: not a terminal
	started time.Time
	shown   time.Time
}

const barInterval = 200 * time.Millisecond

func newBar(w io.Writer) *bar {
	b := &bar{started: time.Now()}
	if f, ok := w.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			b.w = w
		}
	}
	return b
}

// show shows how many bytes are done. A total of 0 is unknown.
func (b *bar) show(done, total int64) {
	now := time.Now()
	if b.w == nil || now.Sub(b.shown) < barInterval {
		return
	}
	b.shown = now
	speed := uint64(float64(done) / max(now.Sub(b.started).Seconds(), 0.1))
	line := fmt.Sprintf("%s, %s/s", humanize.IBytes(uint64(done)), humanize.IBytes(speed))
	if total > 0 {
		const width = 30
		share := min(1, float64(done)/float64(total))
		line = fmt.Sprintf("[%-*s] %3.0f %%  %s", width, strings.Repeat("#", int(share*width)), share*100, line)
	}
	fmt.Fprintf(b.w, "\r\x1b[K%s", line)
}

// end removes the line.
func (b *bar) end() {
	if b.w != nil && !b.shown.IsZero() {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}
