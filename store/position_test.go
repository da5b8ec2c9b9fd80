package store

import (
	"cmp"
	"testing"
)

func FuzzEventIDsSortAsPositions(f *testing.F) {
	f.Add(uint64(1), uint16(0), uint64(2), uint16(0))
	f.Add(uint64(255), uint16(65535), uint64(256), uint16(1))
	f.Fuzz(func(t *testing.T, seqA uint64, indexA uint16, seqB uint64, indexB uint16) {
		a, b := Position{seqA, indexA}, Position{seqB, indexB}
		want := cmp.Or(cmp.Compare(seqA, seqB), cmp.Compare(indexA, indexB))
		if got := cmp.Compare(a.EventID(), b.EventID()); got != want {
			t.Errorf("ids %s and %s compare %d, want %d", a.EventID(), b.EventID(), got, want)
		}
		if got := a.Compare(b); got != want {
			t.Errorf("positions %v and %v compare %d, want %d", a, b, got, want)
		}
		if n := len(a.EventID()); n != 20 {
			t.Errorf("an id has %d characters, want 20", n)
		}
	})
}

// What is taken for a cursor is written again as the same text.
func FuzzCursor(f *testing.F) {
	for _, text := range []string{"", "cur_", "cur_0000000000000001", "cur_000000000000000\n", "cur_00000000000000\r\n", "cur_\n000000000000001\n", "evt_0000000000000001", "cur_000000000000000V"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		at, ok := ParseCursor(Cursor(text))
		if ok && text != "" && string(at.Cursor()) != text {
			t.Errorf("%q is taken for %s", text, at.Cursor())
		}
	})
}
