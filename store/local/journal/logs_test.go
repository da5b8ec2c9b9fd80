package journal

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"mtagd/store"
)

func TestBadgersLogsHaveNoReadahead(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	record(t, j, store.NewMerchantID(), 1)
	j.disk.check()
	logs, without := mappedLogs(t)
	if len(without) < len(logs) {
		t.Errorf("readahead is disabled for %d of %d logs: %s", len(without), len(logs), logs)
	}
}

// Before Start all events since a chunk are read, one value log after the other. Without readahead that takes four times
// as long.
func TestLogsHaveReadaheadUntilStart(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	record(t, j, store.NewMerchantID(), 1)
	closeJournal(t, j)
	reopened, err := Open(dir, Options{Log: quiet, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if logs, without := mappedLogs(t); len(without) > 0 {
		t.Errorf("readahead is disabled for %d of %d logs before Start: %s", len(without), len(logs), logs)
	}
	if err := reopened.Close(); err != nil {
		t.Fatal(err)
	}
}

// mappedLogs returns the flags of each mapped log, and of those without readahead.
func mappedLogs(t *testing.T) (logs, withoutReadahead []string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	// smaps has several lines for each mapping: the first ends with the file's name, the last has the flags.
	for _, m := range regexp.MustCompile(`(?s)\.(?:vlog|mem)\n.*?VmFlags:([^\n]*)`).FindAllStringSubmatch(string(b), -1) {
		logs = append(logs, m[1])
		if strings.Contains(m[1]+" ", " rr ") {
			withoutReadahead = append(withoutReadahead, m[1])
		}
	}
	if len(logs) < 2 {
		t.Errorf("%d logs are mapped, want at least a value log and the log of a memtable", len(logs))
	}
	return logs, withoutReadahead
}

// The newest value log of a file system that allocates late may have data, but no blocks yet.
func TestALogWithDataIsNoHole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "000001.vlog")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(2 * valueLogSize); err != nil {
		t.Fatal(err)
	}
	if hole, err := isHole(path); err != nil || !hole {
		t.Errorf("a file of which nothing was written is a hole: %v, %v", hole, err)
	}
	if _, err := f.WriteAt([]byte{1}, valueLogSize); err != nil {
		t.Fatal(err)
	}
	if hole, err := isHole(path); err != nil || hole {
		t.Errorf("a file with data is a hole: %v, %v", hole, err)
	}
}
