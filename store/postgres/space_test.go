package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/postgres/write"
	"mtagd/store/testenv"
)

// Two nodes fill the space that events may take. Each knows its own events at once, and those of the other one a little
// later. Then events are refused, until some have gone.
func TestEventsTakeNoMoreThanTheSize(t *testing.T) {
	const size, raw, fits = 1 << 20, 7 << 10, 127
	s := newShop(t, Options{Size: size})
	b := s.opened(openURL(s.url, Options{Log: quiet, Size: size}))
	record := func(e *engine, n int) (recorded int) {
		for range n {
			err := e.Record(t.Context(), []store.Mark{{Merchant: s.id, Tag: s.tag, Name: "A", Time: time.Now(), Raw: []byte(strings.Repeat("x", raw)),
				Identity: store.Identity{MUID: "m"}}})
			if err != nil {
				if store.KindOf(err) != store.KindUnavailable {
					t.Fatal(err)
				}
				break
			}
			recorded++
		}
		return recorded
	}
	look := func() {
		t.Helper()
		s.rollUp(s.key())
		for _, e := range []*engine{s.engine, b} {
			for range write.SpaceLooks + 1 {
				testenv.Check(t, e.LookAtSpace(t.Context()))
			}
		}
	}
	if n := record(s.engine, fits/2); n != fits/2 {
		t.Fatalf("%d events were recorded", n)
	}
	free := s.FreeSpace()
	if free >= size/2+raw || free <= size/2-3*raw {
		t.Errorf("after half of the events, %d bytes are free", free)
	}
	look()
	if s.FreeSpace() != free || b.FreeSpace() != free {
		t.Errorf("what has come into the database counts %d and %d, before %d", s.FreeSpace(), b.FreeSpace(), free)
	}
	if n := record(b, fits); n < fits/2 || n > fits/2+3 {
		t.Errorf("the other node has recorded %d events", n)
	}
	if b.FreeSpace() != 0 || b.Ready() == nil {
		t.Errorf("%d bytes are free where events are refused; ready: %v", b.FreeSpace(), b.Ready())
	}
	look()
	if n := record(s.engine, 1); n != 0 || s.FreeSpace() != 0 {
		t.Errorf("the first node has recorded %d events more, and has %d bytes free", n, s.FreeSpace())
	}
}

// Links take space too, and anybody with a tag id can make ever new ones. What they take is known at once, and later from
// what the database has.
func TestLinksTakeNoMoreThanTheSize(t *testing.T) {
	const size = 64 << 10
	s := newShop(t, Options{Size: size})
	made := 0
	for ; made < size/write.LinkCost; made++ {
		var who store.Identity
		who.Add(store.Email, fmt.Sprint(made))
		who.MUID = store.MUID(fmt.Sprint("m", made))
		if _, err := s.Resolve(t.Context(), s.id, who); err != nil {
			if store.KindOf(err) != store.KindUnavailable {
				t.Fatal(err)
			}
			break
		}
	}
	if made < 10 || made > size/write.LinkCost/2 || s.FreeSpace() != 0 {
		t.Errorf("%d links were made, and %d bytes are free", made, s.FreeSpace())
	}
	exec(t, s.db.Pool, "ANALYZE link, held_link, linked_muid")
	b := s.opened(openURL(s.url, Options{Log: quiet, Size: size}))
	if free := b.FreeSpace(); free != 0 {
		t.Errorf("another node takes it that %d bytes are free", free)
	}
	if err := b.Record(t.Context(), []store.Mark{s.visit(0, 0)}); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("an event: %v", err)
	}
}
