package journal

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"mtagd/store"
	"mtagd/store/local/faultfs"
)

// Many callers send marks with long muids, identifiers and large bodies at once. No record may exceed the log's
// limit.
func TestLargeMarksFitIntoTransactions(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	m := store.NewMerchantID()
	const callers, marks = 8, 500
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			batch := make([]store.Mark, marks)
			for i := range batch {
				id := store.Identity{MUID: store.MUID(strings.Repeat("u", store.MaxMUIDLength))}
				id.Add(store.Email, fmt.Sprintf("a%d-%d@example.com", c, i))
				id.Add(store.Phone, fmt.Sprint(1e6*c+i))
				id.Add(store.DeviceID, fmt.Sprintf("device-%d-%d", c, i))
				batch[i] = store.Mark{
					Merchant: m, Tag: "cs_a", Name: "Login", Identity: id,
					DedupeID: fmt.Sprint(c, i), Raw: fmt.Appendf(nil, `{"x":"%0900d"}`, i),
				}
			}
			err := j.Record(ctx, batch)
			for store.KindOf(err) == store.KindUnavailable {
				runtime.Gosched()
				err = j.Record(ctx, batch)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := len(since(t, j, 0)); got != callers*marks {
		t.Errorf("%d events, want %d", got, callers*marks)
	}
}

// A batch that takes several transactions is recorded as a whole, and in its order.
func TestARequestMayTakeSeveralTransactions(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	m := store.NewMerchantID()
	noise := rand.NewChaCha8([32]byte{}) // cannot be compressed
	marks := make([]store.Mark, 3*maxTransaction/2000)
	for i := range marks {
		raw := make([]byte, 2000)
		if _, err := noise.Read(raw); err != nil {
			t.Fatal(err)
		}
		raw[0] = '{'
		marks[i] = newMark(m, "PageView", i, raw)
		marks[i].DedupeID = fmt.Sprint(i)
	}
	if err := j.Record(ctx, marks); err != nil {
		t.Fatal(err)
	}
	closeJournal(t, j)
	j = open(t, dir)
	defer closeJournal(t, j)
	var positions []store.Position
	for _, e := range since(t, j, 0) {
		positions = append(positions, e.Position)
	}
	if len(positions) != len(marks) {
		t.Fatalf("%d events, want %d", len(positions), len(marks))
	}
	if err := j.Read(ctx, positions, func(n int, e Event) {
		if !bytes.Equal(e.Raw, marks[n].Raw) {
			t.Errorf("event %d does not have the body that was sent as number %d", n, n)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// A group whose write fails is refused. The next one is written to a new file, without a restart.
func TestAFailedWriteIsNotTheLast(t *testing.T) {
	disk := faultfs.New(t)
	dir := filepath.Join(disk.Dir, "events")
	j := open(t, dir)
	m := store.NewMerchantID()
	record(t, j, m, 1)
	for range 3 {
		disk.Fail(faultfs.Rule{Op: faultfs.Sync, Files: "*.log", Errno: syscall.EIO})
		if err := j.Record(ctx, []store.Mark{newMark(m, "Lost", 0, []byte("{}"))}); err == nil || store.KindOf(err) == store.KindUnavailable {
			t.Errorf("a write that fails gives %v, want an error that does not say that nothing was recorded", err)
		}
		if err := j.Failure(); err == nil {
			t.Error("after a failed write there is no failure")
		}
		disk.Fail()
		for j.Record(ctx, []store.Mark{newMark(m, "Next", 0, []byte("{}"))}) != nil { // until there is another file
		}
		if err := j.Failure(); err != nil {
			t.Error(err)
		}
	}
	closeJournal(t, j)
	j = open(t, dir)
	defer closeJournal(t, j)
	if events := since(t, j, 0); len(events) != 4 {
		t.Errorf("%d events, want 4", len(events))
	}
}
