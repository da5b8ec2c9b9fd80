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
	// A mapping has a line with its file, and then lines of its own. The last of them has the flags.
	for _, m := range regexp.MustCompile(`(?s)\.(vlog|mem)\n.*?VmFlags:([^\n]*)`).FindAllStringSubmatch(string(b), -1) {
		n++
		if !strings.Contains(m[2]+" ", " rr ") {
			t.Errorf("a .%s has readahead: its flags are %s", m[1], m[2])
		}
	}
	if n < 2 { // a value log, and the log of a memtable
		t.Errorf("%d logs are mapped", n)
	}
}
