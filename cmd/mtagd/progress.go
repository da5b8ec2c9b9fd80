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

// progressBar shows on a terminal how far a command is. Elsewhere it shows nothing.
type progressBar struct {
	w       io.Writer // nil: not a terminal
	title   string
	started time.Time
	shown   time.Time
}

const barInterval = 200 * time.Millisecond

func newProgressBar(w io.Writer, title string) *progressBar {
	b := &progressBar{title: title, started: time.Now()}
	if f, ok := w.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			b.w = w
		}
	}
	return b
}

// show shows how many items of a step are done. A total of 0 means unknown.
func (b *progressBar) show(step string, done, total uint64) {
	b.draw(step, humanize.Comma(int64(done)), float64(done), float64(total))
}

// bytes shows how many bytes are done. A total of 0 means unknown.
func (b *progressBar) bytes(done, total int64) {
	speed := float64(done) / max(time.Since(b.started).Seconds(), 0.1)
	b.draw("", fmt.Sprintf("%s, %s/s", humanize.IBytes(uint64(done)), humanize.IBytes(uint64(speed))), float64(done), float64(total))
}

func (b *progressBar) draw(step, amount string, done, total float64) {
	if b.w == nil || time.Since(b.shown) < barInterval {
		return
	}
	b.shown = time.Now()
	bar := ""
	if total > 0 {
		const width = 30
		share := min(1, done/total)
		bar = fmt.Sprintf(" [%-*s] %3.0f %%", width, strings.Repeat("#", int(share*width)), share*100)
	}
	fmt.Fprintf(b.w, "\r\x1b[K%s %s%s %s", b.title, step, bar, amount)
}

// end removes the bar.
func (b *progressBar) end() {
	if b.w != nil && !b.shown.IsZero() {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}
