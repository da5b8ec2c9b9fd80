package journal

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"mtagd/store"
)

func TestBadgersLogsHaveNoReadahead(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	record(t, j, store.NewMerchantID(), 1)
	j.disk.check()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	// smaps has several lines for each mapping: the first ends with the file's name, the last has the flags.
	for _, m := range regexp.MustCompile(`(?s)\.(vlog|mem)\n.*?VmFlags:([^\n]*)`).FindAllStringSubmatch(string(b), -1) {
		n++
		if !strings.Contains(m[2]+" ", " rr ") {
			t.Errorf("readahead is not disabled for a .%s: its flags are %s, without rr", m[1], m[2])
		}
	}
	if n < 2 {
		t.Errorf("%d logs are mapped, want at least a value log and the log of a memtable", n)
	}
}
