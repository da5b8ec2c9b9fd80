package move

import (
	"context"
	"testing"

	"mtagd/store"
)

// keysSource passes the same 30 links each time, and 70 event_ids.
type keysSource struct {
	Source
	passesAll bool
}

func (s keysSource) PassesAllLinks() bool { return s.passesAll }

func (s keysSource) Keys(_ context.Context, _ uint64, use func(*Key) error) (moment uint64, err error) {
	for i := range 100 {
		k := Key{Key: make([]byte, 16), Seen: int64(i)}
		if i < 30 {
			k = Key{Key: make([]byte, len(store.IdentityKey{})), MUID: []byte{byte(i)}}
		}
		if err := use(&k); err != nil {
			return 0, err
		}
	}
	return 1, nil
}

type keysTarget struct {
	Target
	written int
}

func (t *keysTarget) AddKeys(_ context.Context, keys []Key) error {
	t.written += len(keys)
	return nil
}

// A large store has too many links and event_ids to keep the hashes of all in memory. Only those are kept that the source passes again.
func TestOnlyWhatComesAgainIsKept(t *testing.T) {
	for _, passesAll := range []bool{false, true} {
		dst := &keysTarget{}
		m := &mover{src: keysSource{passesAll: passesAll}, dst: dst, opt: Options{Progress: func(Phase, uint64) {}}}
		for i, want := range []struct{ kept, written int }{{30, 100}, {100, 70}, {0, 0}} {
			again := func(*Key) bool { return false }
			if i < 2 {
				again = m.passesAgain(i == 1)
			}
			if !passesAll {
				want.kept, want.written = 0, 100
			}
			dst.written = 0
			if err := m.copyKeys(t.Context(), m.moment, again); err != nil {
				t.Fatal(err)
			}
			if len(m.known) != want.kept || dst.written != want.written {
				t.Errorf("pass %d of a source that passes all links (%t): %d are kept, %d written; want %+v", i+1, passesAll, len(m.known), dst.written, want)
			}
		}
	}
}
