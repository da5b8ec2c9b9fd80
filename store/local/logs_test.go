package local

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"mtagd/store"
)

func TestLogsAreNotReadAhead(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	record(t, e, store.NewMerchantID(), 1)
	e.disk.look()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	// Each mapping is a line with its file, and then lines of its own, the last of which has flags.
	for _, m := range regexp.MustCompile(`(?s)\.(vlog|mem)\n.*?VmFlags:([^\n]*)`).FindAllStringSubmatch(string(b), -1) {
		n++
		if !strings.Contains(m[2]+" ", " rr ") {
			t.Errorf("a .%s is read ahead: its flags are %s", m[1], m[2])
		}
	}
	if n < 2 { // a value log, and the log of a memtable
		t.Errorf("%d logs are mapped", n)
	}
}
