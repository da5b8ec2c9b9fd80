package journal

import (
	"cmp"
	"slices"
	"sync"
)

// tap remembers what the last commits have written, so that a backup every few seconds need not look for it: links and
// event_ids are spread over all tables.
type tap struct {
	mu      sync.Mutex
	since   uint64 // it has all entries that were written after this commit
	commits []tapped
	bytes   int
}

// tapped is one commit.
type tapped struct {
	version uint64
	entries []byte // codec.AppendEntry
}

// maxTapped bounds the memory of a tap. When a backup's destination cannot be reached, the tap forgets everything, and the
// next backup looks for what is new.
const maxTapped = 64 << 20

// add adds a commit, the bytes of which must not change. A key that was set twice has two entries; the later one counts. The commits before
// it are on disk up to last.
func (t *tap) add(last, version uint64, entries []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since == 0 {
		t.since = last
	}
	if t.bytes+len(entries) > maxTapped {
		t.commits, t.bytes, t.since = nil, 0, version
		return
	}
	t.commits, t.bytes = append(t.commits, tapped{version, entries}), t.bytes+len(entries)
}

// take returns the entries of the commits after since, up to and including version, and forgets those up to unneeded
// (Journal.Tapped).
func (t *tap) take(since, version, unneeded uint64) (commits [][]byte, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since == 0 && version <= since {
		return nil, true // nothing was committed
	}
	if t.since == 0 || since < t.since {
		return nil, false
	}
	from, _ := slices.BinarySearchFunc(t.commits, unneeded+1, func(c tapped, v uint64) int { return cmp.Compare(c.version, v) })
	for _, c := range t.commits[:from] {
		t.bytes -= len(c.entries)
	}
	t.commits = slices.Clone(t.commits[from:]) // so that the forgotten ones are garbage
	t.since = max(t.since, min(unneeded, since))
	for _, c := range t.commits {
		if c.version > since && c.version <= version {
			commits = append(commits, c.entries)
		}
	}
	return commits, true
}
