package bench

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store/local/log"
)

// BenchmarkLog appends groups of events of 800 bytes to the log, and to a plain file: one that grows, and one that was full
// of zeros. Each operation is one write and one sync.
func BenchmarkLog(b *testing.B) {
	for _, events := range []int{1, 64, 256} {
		whole := []byte(nil)
		for i := range events {
			whole = AppendBrowserEvent(whole, uint64(i), Names[i%len(Names)], time.Time{})
			whole = append(whole, make([]byte, 800-BrowserEventSize)...)
		}
		b.Run(fmt.Sprintf("group=%d/to=log", events), func(b *testing.B) {
			l, err := log.Open(b.TempDir(), slog.Default())
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			perGroup(b, len(whole), func() error {
				at, err := l.Append(whole)
				if err == nil && at-l.First() > 4*log.DefaultFileSize { // as after checkpoints
					err = l.Trim(at)
				}
				return err
			})
		})
		for _, zeros := range []bool{true, false} {
			b.Run(fmt.Sprintf("group=%d/to=%s", events, map[bool]string{true: "zeros", false: "growing"}[zeros]), func(b *testing.B) {
				file, err := os.CreateTemp(b.TempDir(), "")
				if err != nil {
					b.Fatal(err)
				}
				defer file.Close()
				if zeros {
					if err := fillWithZeros(file); err != nil {
						b.Fatal(err)
					}
				}
				offset := int64(0)
				perGroup(b, len(whole), func() error {
					if offset+int64(len(whole)) > syncedFileSize {
						offset = 0
					}
					if _, err := file.WriteAt(whole, offset); err != nil {
						return err
					}
					offset += int64(len(whole))
					return unix.Fdatasync(int(file.Fd()))
				})
			})
		}
	}
}

func perGroup(b *testing.B, size int, write func() error) {
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if err := write(); err != nil {
			b.Fatal(err)
		}
	}
}
