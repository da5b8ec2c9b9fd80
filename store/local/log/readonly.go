package log

import (
	"fmt"
	"log/slog"
)

// OpenReadOnly opens a log that nobody writes to, for Replay and Read. It changes nothing, and skips a torn last record.
func OpenReadOnly(dir string) (*Log, error) {
	l := &Log{dir: dir, readOnly: true, logger: slog.New(slog.DiscardHandler)}
	files, unused, err := l.openFiles()
	for _, f := range unused {
		_ = f.Close()
	}
	l.files.Store(&files)
	if err == nil && len(files) > 0 {
		last := files[len(files)-1]
		var t tail
		t, err = last.findTail(true)
		l.chain = t.after
		l.end.Store(uint64(last.position(t.cut + int64(len(t.last)))))
	}
	if err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, fmt.Errorf("log: %w", err)
	}
	return l, nil
}
