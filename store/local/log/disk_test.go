package log

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"mtagd/store/local/faultfs"
	"mtagd/store/testenv"
)

// appendUncertain appends while the disk fails.
func appendUncertain(t *testing.T, l *Log, payload []byte) {
	t.Helper()
	if _, err := l.Append(payload); !errors.Is(err, ErrUncertain) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("Append on a failing disk gives %v", err)
	}
}

// waitForSpare waits until the next file is there and full of zeros, so that nothing but Append can fail.
func waitForSpare(l *Log) {
	filled := func() bool {
		l.spares.mu.Lock()
		defer l.spares.mu.Unlock()
		return l.spares.filled
	}
	for !filled() {
		time.Sleep(time.Millisecond)
	}
}

func newest(l *Log) string {
	f := *l.files.Load()
	return filepath.Base(f[len(f)-1].Name())
}

func TestAfterAFailedWriteOrSyncTheFileIsNotWrittenAgain(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.Write, faultfs.Sync} {
		t.Run(string(op), func(t *testing.T) {
			disk := faultfs.New(t)
			l := open(t, disk.Dir)
			want := []record{add(t, l, payload(1, 5000)), add(t, l, payload(2, 300))}
			failed := newest(l)
			disk.Fail(faultfs.Rule{Op: op, Files: failed, Errno: syscall.EIO})
			appendUncertain(t, l, payload(3, 5000))
			mustHold(t, l, 0, want)
			for n := range 20 { // the rule still holds
				want = append(want, add(t, l, payload(10+n, 5000)))
			}
			if newest(l) == failed {
				t.Error("the failed file is still the newest")
			}
			mustHold(t, l, 0, want)
			disk.Cut()
			testenv.Check(t, l.Close())
			disk.Restore(0, 1)
			mustHold(t, open(t, disk.Dir), 0, want)
		})
	}
}

func TestSeveralFailuresInARow(t *testing.T) {
	disk := faultfs.New(t)
	l := open(t, disk.Dir)
	want := []record{add(t, l, payload(1, 5000))}
	for n := range 5 {
		for range 1 + n%3 {
			waitForSpare(l)
			disk.Fail(faultfs.Rule{Op: faultfs.Sync, Files: "*.log", Errno: syscall.EIO})
			if _, err := l.Append(payload(100+n, 5000)); err == nil {
				t.Fatal("Append on a failing disk succeeds")
			}
			disk.Fail()
		}
		at, err := l.Append(payload(n, 5000))
		for errors.Is(err, ErrNoRoom) { // the spare file failed, too: another one comes soon
			time.Sleep(10 * time.Millisecond)
			at, err = l.Append(payload(n, 5000))
		}
		testenv.Check(t, err)
		want = append(want, record{at, payload(n, 5000)})
	}
	mustHold(t, l, 0, want)
	l = reopen(t, l)
	mustHold(t, l, 0, want)
	for _, name := range files(t, disk.Dir) {
		for n := range 5 {
			if b := snapshot(t, disk.Dir)[filepath.Base(name)]; bytes.Contains(b, payload(100+n, 5000)) {
				t.Errorf("%s still has record %d, which failed", name, n)
			}
		}
	}
}

// The kernel keeps a page that it could not write, and calls it clean. After a restart the page is read as if it were on the
// disk; a power cut takes it away.
func TestDrillWhatARestartReadsAfterAnErrorSurvivesAPowerCut(t *testing.T) {
	testenv.Drill(t)
	for _, records := range []int{1, 2, 12, 13, 14, 15, 16} { // the last ones go to the second file
		t.Run(fmt.Sprint(records, " records"), func(t *testing.T) {
			disk := faultfs.New(t)
			l := open(t, disk.Dir)
			for n := range records - 1 {
				add(t, l, payload(n, 4200))
			}
			waitForSpare(l)
			disk.Fail(faultfs.Rule{Op: faultfs.Sync, Files: "*.log", Errno: syscall.EIO})
			appendUncertain(t, l, payload(records, 4200))
			disk.Fail()
			again := reopen(t, l) // Close writes nothing: this is as after a kill
			want, damage := replay(t, again, 0)
			if len(want) != records || damage != nil {
				t.Fatalf("the restart reads %d records, %v: the last one should be in the page cache", len(want), damage)
			}
			for n := range 3 {
				want = append(want, add(t, again, payload(50+n, 4200)))
			}
			disk.Cut()
			testenv.Check(t, again.Close())
			disk.Restore(0, 1)
			mustHold(t, open(t, disk.Dir), 0, want)
		})
	}
}

func TestAFullDiskIsKnownBeforeAnythingIsWritten(t *testing.T) {
	disk := faultfs.New(t)
	l := open(t, disk.Dir)
	var want []record
	waitForSpare(l)
	disk.Fail(faultfs.Rule{Op: faultfs.Write, Files: "0000000[3-9]*", Errno: syscall.ENOSPC})
	for n := 0; ; n++ {
		at, err := l.Append(payload(n, 8000))
		if errors.Is(err, ErrNoRoom) {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Error(err)
			}
			break
		}
		testenv.Check(t, err)
		want = append(want, record{at, payload(n, 8000)})
	}
	if len(want) < 14 {
		t.Errorf("only %d records fit into two files", len(want))
	}
	mustHold(t, l, 0, want)
	disk.Fail()
	waitForSpare(l)
	want = append(want, add(t, l, payload(99, 8000)))
	mustHold(t, reopen(t, l), 0, want)
}

func TestAFullDiskDoesNotKeepTheLogFromOpening(t *testing.T) {
	disk := faultfs.New(t)
	l := open(t, disk.Dir)
	want := []record{add(t, l, payload(1, 300)), add(t, l, payload(2, 300))}
	testenv.Check(t, l.Close())
	disk.Fail(faultfs.Rule{Op: faultfs.Write, Files: "0000000[3-9]*", Errno: syscall.ENOSPC})
	l = open(t, disk.Dir)
	mustHold(t, l, 0, want)
	if _, err := l.Append(payload(3, 300)); !errors.Is(err, ErrNoRoom) {
		t.Errorf("Append gives %v", err)
	}
	disk.Fail()
	for {
		at, err := l.Append(payload(4, 300))
		if err == nil {
			want = append(want, record{at, payload(4, 300)})
			break
		}
	}
	mustHold(t, reopen(t, l), 0, want)
}

func TestDrillAnOpenThatFailsLosesNothing(t *testing.T) {
	testenv.Drill(t)
	for _, op := range []faultfs.Op{faultfs.Write, faultfs.Sync} {
		for skip := range 7 {
			t.Run(fmt.Sprint(op, skip), func(t *testing.T) {
				disk := faultfs.New(t)
				l := open(t, disk.Dir)
				want := []record{add(t, l, payload(1, 300)), add(t, l, payload(2, 5000))}
				testenv.Check(t, l.Close())
				disk.Fail(faultfs.Rule{Op: op, Files: "*", Skip: skip, Errno: syscall.EIO})
				if l, err := openWith(disk.Dir, slog.Default(), testFile); err == nil {
					testenv.Check(t, l.Close())
				} else if !errors.Is(err, syscall.EIO) {
					t.Fatal(err)
				}
				disk.Cut()
				disk.Fail()
				disk.Restore(float64(skip%3)/2, uint64(skip))
				mustHold(t, open(t, disk.Dir), 0, want)
			})
		}
	}
}

// Whatever fails and whenever the power goes: acknowledged records are there, and at most one other, at the end.
func TestDrillAcknowledgedRecordsSurvive(t *testing.T) {
	testenv.Drill(t)
	seeds := testenv.Random(t)
	for range testenv.Rounds(10) {
		seed := uint64(seeds.Uint32())
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			disk := faultfs.New(t)
			r := rand.New(rand.NewPCG(seed, 7))
			l := open(t, disk.Dir)
			var acknowledged []record
			var uncertain [][]byte // since the last one that was acknowledged
			from := Position(0)
			made := 0
			for range 3 + r.IntN(3) { // each ends with a kill or a power cut
				for range 5 + r.IntN(25) {
					made++
					p := payload(int(seed)*1000+made, 1+r.IntN(12000))
					if r.IntN(8) == 0 {
						disk.Fail(faultfs.Rule{Op: []faultfs.Op{faultfs.Write, faultfs.Sync}[r.IntN(2)], Files: "*", Skip: r.IntN(3), Count: 1, Errno: syscall.EIO})
					}
					at, err := l.Append(p)
					switch {
					case err == nil:
						acknowledged, uncertain = append(acknowledged, record{at, p}), nil
					case errors.Is(err, ErrUncertain):
						uncertain = append(uncertain, p)
					case !errors.Is(err, ErrNoRoom):
						t.Fatal(err)
					}
					if r.IntN(20) == 0 && len(acknowledged) > 3 {
						acknowledged = acknowledged[len(acknowledged)-3:]
						from = acknowledged[0].at
						if err := l.Trim(from); err != nil && !errors.Is(err, syscall.EIO) {
							t.Fatal(err)
						}
					}
				}
				disk.Fail()
				cut := r.IntN(2) == 0
				if cut {
					disk.Cut()
				}
				if err := l.Close(); err != nil { // it writes nothing: the same as a kill
					t.Fatal(err)
				}
				if cut {
					disk.Restore(r.Float64(), seed)
				}
				l = open(t, disk.Dir)
				got, damage := replay(t, l, from)
				if len(damage) > 0 {
					t.Fatalf("damage: %v", damage)
				}
				if n := len(acknowledged); len(got) == n+1 && slices.ContainsFunc(uncertain, func(p []byte) bool { return bytes.Equal(p, got[n].payload) }) {
					acknowledged = append(acknowledged, got[n])
				}
				testenv.Check(t, same(got, acknowledged))
				uncertain = nil
			}
		})
	}
}
