package journal

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// killedMemLog returns the log of a memtable after a kill.
func killedMemLog(t *testing.T) []byte {
	t.Helper()
	dir, _ := killedJournal(t)
	logs, err := filepath.Glob(filepath.Join(dir, "*.mem"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no logs: %v", err)
	}
	b, err := os.ReadFile(logs[len(logs)-1])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEveryWrongBitInTheLogOfAMemtableIsCorrected(t *testing.T) {
	b := killedMemLog(t)
	want, lost := readMemLog(b).survivors(b)
	if lost != 0 || len(want) == 0 {
		t.Fatalf("without damage: %d bytes, %d lost", len(want), lost)
	}
	end := logHeader + len(want)
	for at := logHeader; at < end; at += 1 + end/4000 {
		for bit := range 8 {
			damaged := bytes.Clone(b)
			damaged[at] ^= 1 << bit
			l := readMemLog(damaged)
			if got, lost := l.survivors(damaged); !bytes.Equal(got, want) || lost != 0 || !l.corrected {
				t.Fatalf("bit %d of byte %d of %d: %d bytes instead of %d, %d lost, gaps %v", bit, at, end, len(got), len(want), lost, l.damage)
			}
		}
	}
}
