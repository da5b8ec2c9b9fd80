package local

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/backup"
	"mtagd/store/local/faultfs"
	"mtagd/store/testenv"
)

// lossyDisk is a disk of which the power can be cut.
type lossyDisk struct {
	dir string
	// cut loses what was not synced. kill ends the processes that use the disk. What they write after unheard is called may not survive,
	// although a sync says so.
	cut func(unheard, kill func())
}

// newLossyDisk makes a disk with a file system. "fuse" loses a random part of what was not synced. A real file system, which
// needs root, is shut down without its log, as xfs_io -x -c shutdown does, so that it has to replay its log.
func newLossyDisk(t *testing.T, kind string, random *rand.Rand) lossyDisk {
	t.Helper()
	if kind == "fuse" {
		d := faultfs.New(t)
		return lossyDisk{d.Dir, func(unheard, kill func()) {
			unheard()
			d.Cut()
			kill()
			d.Restore(random.Float64()*float64(random.IntN(3))/2, random.Uint64())
		}}
	}
	if os.Getenv("DRILL_MOUNT") == "" {
		t.Skip("DRILL_MOUNT is not set: it permits to mount file systems")
	}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
	}
	root := t.TempDir()
	image, dir := filepath.Join(root, "image"), filepath.Join(root, "disk")
	testenv.Check(t, os.WriteFile(image, nil, 0o600))
	testenv.Check(t, os.Truncate(image, imageSize))
	testenv.Check(t, os.Mkdir(dir, 0o700))
	run("mkfs."+kind, "-q", image)
	run("mount", "-o", "loop", image, dir)
	t.Cleanup(func() { _ = exec.Command("umount", dir).Run() })
	return lossyDisk{dir, func(_, kill func()) { // now syncs fail
		f, err := os.Open(dir)
		testenv.Check(t, err)
		const shutdown, withoutLog = 0x8004587d, 2 // FS_IOC_SHUTDOWN, which ext4 and xfs share
		testenv.Check(t, unix.IoctlSetPointerInt(int(f.Fd()), shutdown, withoutLog))
		testenv.Check(t, f.Close())
		kill()
		run("umount", dir)
		run("mount", "-o", "loop", image, dir)
	}}
}

// imageSize is the size of a real file system, of which the image needs what is used.
const imageSize = 3 << 30

// loadWorkers record at the same time, each of them in calls of loadBatch events.
const loadWorkers, loadBatch = 6, 10

// loadCall is the first number of the events of a call.
func loadCall(from, worker, i int) int { return from + (i*loadWorkers+worker)*loadBatch }

func loadMarks(first int, run string) []store.Mark {
	marks := make([]store.Mark, loadBatch)
	for k := range marks {
		n := first + k
		marks[k] = newMark(childMerchant, fmt.Sprintf("Name%d", n%9), n, fmt.Appendf(nil, `{"n":%d,"run":%q}`, n, run))
		marks[k].DedupeID = fmt.Sprint("id-", n)
		marks[k].Identity = store.Identity{MUID: store.MUID(fmt.Sprint("u-", n)), Source: store.BySecret}
		marks[k].Identity.Add(store.Email, fmt.Sprintf("%d@example.com", n))
	}
	return marks
}

// serveLoad records from all workers, and prints the first number of each call that was acknowledged, until a call fails.
func serveLoad(e store.Engine, from int) {
	var out sync.Mutex
	var all sync.WaitGroup
	var failed atomic.Bool
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	source := SourceOf(e)
	go func() {
		<-stop
		_ = source.Close()
		_ = e.Close() // the drill does not wait for it
	}()
	if d := backupEnv(); d != nil { // a kill or power cut may find it anywhere
		go func() {
			for b := backup.New(d, source); !failed.Load(); {
				_, _ = b.Run(ctx, backup.Options{Log: quiet, Now: time.Now, Small: rand.IntN(2) == 0})
			}
		}()
	}
	all.Go(func() {
		p, err := e.AddPartner(ctx, "Agency")
		for err == nil && !failed.Load() {
			var m store.Merchant
			if m, err = e.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Shop"}); err == nil {
				out.Lock()
				fmt.Println("added", m.ID)
				out.Unlock()
			}
		}
	})
	for w := range loadWorkers {
		all.Go(func() {
			for i := 0; !failed.Load(); i++ {
				n := loadCall(from, w, i)
				err := e.Record(ctx, loadMarks(n, "load"))
				out.Lock()
				if err != nil {
					failed.Store(true)
					fmt.Println("failed", n, err)
				} else {
					fmt.Println("acked", n)
				}
				out.Unlock()
			}
		})
	}
	all.Wait()
	fmt.Println("ok")
}

// backupEnv returns where the child backs up to, nil for nowhere.
func backupEnv() backup.Destination {
	dir := os.Getenv("LOCAL_TEST_BACKUP")
	if dir == "" {
		return nil
	}
	d, err := backup.Open(dir, true)
	if err != nil {
		panic(err)
	}
	return d
}

// backUpNow makes a point of what a child has.
func backUpNow(e store.Engine) error {
	_, err := tryBackup(e.(*engine), "", backupEnv(), func(o *backup.Options) { o.Small = rand.IntN(2) == 0 })
	return err
}

// checkLoad checks that links and event_ids of the calls in arg are remembered.
func checkLoad(e store.Engine, arg string) error {
	for _, text := range strings.Fields(arg) {
		first, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		marks := loadMarks(first, "again")
		if err := e.Record(ctx, marks); err != nil {
			return err
		}
		for k, m := range marks {
			if m.Outcome != store.Duplicate {
				return fmt.Errorf("the event_id of %d is not remembered: %v", first+k, m.Outcome)
			}
			id := store.Identity{}
			id.Add(store.Email, fmt.Sprintf("%d@example.com", first+k))
			muid, err := e.Resolve(ctx, childMerchant, id)
			if err != nil {
				return err
			}
			if want := store.MUID(fmt.Sprint("u-", first+k)); muid != want {
				return fmt.Errorf("the email of %d is linked to %q", first+k, muid)
			}
		}
	}
	return nil
}

// loadModel is what is known of the events of a directory.
type loadModel struct {
	acked  []int        // the first of each acknowledged call since the last check
	failed []int        // the first of each call that was refused since the last check
	known  map[int]bool // the first of each call that a start has had
	added  []string     // acknowledged merchants
	from   int          // where the last load began
	deaf   atomic.Bool  // what is acknowledged from now on counts no more
	next   int
}

// loadFor has a child record for a while, and calls end, which ends it.
func (l *loadModel) loadFor(c *child, d time.Duration, end func()) {
	l.from = l.next
	l.deaf.Store(false)
	fmt.Fprintln(c.in, "load", l.from)
	lines := make(chan string, 1<<20)
	go func() {
		defer close(lines)
		for c.lines.Scan() {
			line := c.lines.Text()
			if l.deaf.Load() {
				line = "unknown"
			}
			lines <- line
		}
	}()
	time.Sleep(d)
	end()
	for line := range lines {
		verb, text, _ := strings.Cut(line, " ")
		text, _, _ = strings.Cut(text, " ")
		n, _ := strconv.Atoi(text)
		switch verb {
		case "added":
			l.added = append(l.added, text)
		case "acked":
			l.acked = append(l.acked, n)
			l.next = max(l.next, n+loadBatch)
		case "failed":
			l.failed = append(l.failed, n)
		}
	}
	l.next += 1000 * loadWorkers * loadBatch // past the calls that were under way
}

// check compares a start with what was acknowledged, and with what earlier starts had: nothing is lost, doubled, hidden or comes back.
func (l *loadModel) check(t *testing.T, c *child) {
	t.Helper()
	numbers := strings.Fields(c.ask("list"))
	if numbers[0] != "ok" {
		t.Fatal("list: ", strings.Join(numbers, " "))
	}
	listed := map[int]int{}
	for _, text := range numbers[1:] {
		n, err := strconv.Atoi(text)
		testenv.Check(t, err)
		if listed[n]++; listed[n] > 1 {
			t.Errorf("event %d is listed twice", n)
		}
	}
	first := func(n int) int { return n - n%loadBatch }
	calls := map[int]int{}
	for n := range listed {
		calls[first(n)]++
	}
	for _, n := range l.acked {
		if calls[n] != loadBatch {
			t.Errorf("acknowledged call %d has %d events", n, calls[n])
		}
	}
	for n := range l.known {
		if calls[n] != loadBatch {
			t.Errorf("call %d, which an earlier start had, has %d events", n, calls[n])
		}
	}
	for n, count := range calls {
		if count != loadBatch {
			t.Errorf("call %d has %d events", n, count)
		}
		if !l.known[n] && n < l.from {
			t.Errorf("call %d comes back", n)
		}
		l.known[n] = true
	}
	sample := slices.Clone(l.acked)
	for n := range l.known { // in random order
		if sample = append(sample, n); len(sample) > len(l.acked)+50 {
			break
		}
	}
	for part := range slices.Chunk(sample, 500) {
		if got := c.ask("known " + strings.Trim(fmt.Sprint(part), "[]")); got != "ok" {
			t.Error(got)
		}
	}
	for part := range slices.Chunk(l.added, 500) {
		if got := c.ask("merchants " + strings.Join(part, " ")); got != "ok" {
			t.Error(got)
		}
	}
	l.acked = nil
}

// retry repeats the calls that were refused, as a client does. Some of them may have been recorded.
func (l *loadModel) retry(t *testing.T, c *child) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for _, n := range l.failed {
		for got := ""; got != "ok"; {
			if got = c.ask(fmt.Sprint("retry ", n)); got != "ok" && time.Now().After(deadline) {
				t.Fatalf("the retry of call %d: %s", n, got)
			}
		}
		l.known[n] = true
	}
	l.acked, l.failed = append(l.acked, l.failed...), nil
}

// checkNewestPoint restores the newest point, which was made after the last check. Then it has the same calls.
func (l *loadModel) checkNewestPoint(t *testing.T) {
	t.Helper()
	d := backupEnv()
	points, err := backup.Points(ctx, d)
	testenv.Check(t, err)
	dir := filepath.Join(t.TempDir(), "restored")
	newest := points[0]
	for _, p := range points {
		if p.Time.After(newest.Time) {
			newest = p
		}
	}
	testenv.Check(t, restoreTo(d, newest, dir))
	c := startChild(t, dir)
	c.opened()
	before := len(l.known)
	l.from = l.next
	l.check(t, c)
	if len(l.known) != before {
		t.Errorf("the newest point has %d calls, want %d", len(l.known), before)
	}
	c.kill()
	testenv.Check(t, os.RemoveAll(dir))
}

// The power is cut, or the process killed, while several clients record, and events move to the archive.
func drillLoad(t *testing.T, dir string, rounds int, random *rand.Rand, cut func(unheard, kill func())) {
	t.Helper()
	data := filepath.Join(dir, "data")
	l := loadModel{known: map[int]bool{}, next: loadBatch}
	done, acked := 0, 0
	for i := range rounds {
		if endsSoon(t) {
			break
		}
		c := startChild(t, data)
		if random.IntN(6) == 0 { // during the start, which has merges and a repair of tables
			time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
			cut(func() {}, c.kill)
			c = startChild(t, data)
		}
		c.opened()
		l.check(t, c)
		if t.Failed() {
			kept := filepath.Join(os.TempDir(), "failed-"+strings.ReplaceAll(t.Name(), "/", "-"))
			t.Fatalf("round %d; a copy is in %s: %v", i, kept, faultfs.Copy(data, kept))
		}
		if backupEnv() != nil && i%3 == 2 {
			if got := c.ask("backup"); got != "ok" {
				t.Error("backup: ", got)
			}
			l.checkNewestPoint(t)
		}
		l.loadFor(c, time.Duration(random.IntN(700))*time.Millisecond, func() {
			if random.IntN(4) == 0 {
				_ = c.cmd.Process.Signal(syscall.SIGTERM) // it closes beside the load
				time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
			}
			cut(func() { l.deaf.Store(true) }, c.kill)
		})
		acked += len(l.acked)
		done++
	}
	c := startChild(t, data)
	c.opened()
	l.check(t, c)
	if got := c.ask("close"); got != "ok" {
		t.Error("close: ", got)
	}
	c.kill()
	for _, f := range withoutTags(closedFindings(t, data)) {
		t.Errorf("%+v", f)
	}
	t.Logf("%d rounds, %d acknowledged events", done, acked*loadBatch)
}

func TestDrillAKillUnderLoadLosesNothing(t *testing.T) {
	testenv.Drill(t)
	random := testenv.Random(t)
	drillLoad(t, t.TempDir(), testenv.Rounds(2), random, func(_, kill func()) { kill() })
}

// Backups run beside the load. What a point has and the power cut has taken must not hide or double what comes later in its place.
func TestDrillBackupsOfADiskThatLosesPower(t *testing.T) {
	testenv.Drill(t)
	for _, kind := range []string{"fuse", "ext4", "kill"} {
		t.Run(kind, func(t *testing.T) {
			random := testenv.Random(t)
			t.Setenv("LOCAL_TEST_BACKUP", filepath.Join(t.TempDir(), "backup"))
			dir, cut := t.TempDir(), func(_, kill func()) { kill() }
			if kind != "kill" {
				d := newLossyDisk(t, kind, random)
				dir, cut = d.dir, d.cut
			}
			drillLoad(t, dir, testenv.Rounds(2)+1, random, cut) // the third makes a point
		})
	}
}

func TestDrillAPowerCutUnderLoadLosesNothing(t *testing.T) {
	testenv.Drill(t)
	for _, kind := range []string{"fuse", "ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			random := testenv.Random(t)
			d := newLossyDisk(t, kind, random)
			drillLoad(t, d.dir, testenv.Rounds(2), random, d.cut)
		})
	}
}

// Writes or syncs fail for 30 ms under load, or the disk is full for a while. Then the process starts again, the clients repeat what was
// refused, and the power is cut.
func TestDrillAFaultUnderLoadLosesNothing(t *testing.T) {
	testenv.Drill(t)
	random := testenv.Random(t)
	ops := []faultfs.Op{faultfs.Write, faultfs.Sync}
	for i := range testenv.Rounds(2) {
		if endsSoon(t) {
			break
		}
		d := faultfs.New(t)
		data := filepath.Join(d.Dir, "data")
		l := loadModel{known: map[int]bool{}, next: loadBatch}
		c := startChild(t, data)
		c.opened()
		for range 2 {
			rule := faultfs.Rule{
				Op: ops[random.IntN(len(ops))], Files: []string{"*", "*.log", "*.sst*", "control*"}[random.IntN(4)],
				Errno: []syscall.Errno{syscall.EIO, syscall.ENOSPC}[random.IntN(2)],
			}
			where := fmt.Sprintf("round %d: %s of %s: %v", i, rule.Op, rule.Files, rule.Errno)
			hits := 0
			l.loadFor(c, time.Duration(50+random.IntN(300))*time.Millisecond, func() {
				d.Fail(rule)
				time.Sleep(time.Duration(30*(1+random.IntN(4))) * time.Millisecond)
				hits = d.Failed()
				d.Fail()
				time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
				c.kill()
			})
			refused := len(l.failed)
			c = startChild(t, data)
			c.opened()
			l.check(t, c)
			l.retry(t, c)
			d.Cut()
			c.kill()
			d.Restore(random.Float64()*float64(random.IntN(2)), random.Uint64())
			c = startChild(t, data)
			c.opened()
			l.check(t, c)
			t.Logf("%s: %d operations failed, %d calls were refused", where, hits, refused)
			if t.Failed() {
				t.Fatal(where)
			}
		}
		c.kill()
	}
}

// A real file system becomes full under load, and is given space again. Nothing that was acknowledged is lost, also by the kill or power cut
// that follows.
func TestDrillAFullDiskUnderLoadLosesNothing(t *testing.T) {
	testenv.Drill(t)
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			random := testenv.Random(t)
			d := newLossyDisk(t, kind, random)
			data := filepath.Join(d.dir, "data")
			l := loadModel{known: map[int]bool{}, next: loadBatch}
			fill := filepath.Join(d.dir, "fill")
			for i := range testenv.Rounds(2) {
				if endsSoon(t) {
					break
				}
				if err := os.Remove(fill); !errors.Is(err, os.ErrNotExist) { // the power cut may have brought it back
					testenv.Check(t, err)
				}
				c := startChild(t, data)
				c.opened()
				l.check(t, c)
				l.retry(t, c)
				l.loadFor(c, 100*time.Millisecond, func() {
					f, err := os.Create(fill)
					testenv.Check(t, err)
					at := int64(0)
					for size := int64(imageSize); size >= 4096; {
						if err := unix.Fallocate(int(f.Fd()), 0, at, size); err == nil {
							at += size
						} else if size /= 2; !errors.Is(err, unix.ENOSPC) {
							t.Error(err)
						}
					}
					time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond)
					if random.IntN(2) == 0 {
						c.kill()
						full := startChild(t, data) // a start on a full disk: it may be refused
						t.Log("a start on a full disk: ", full.answer())
						full.kill()
					}
					testenv.Check(t, errors.Join(f.Close(), os.Remove(fill)))
					time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
					d.cut(func() {}, c.kill)
				})
				t.Logf("%d calls were refused", len(l.failed))
				if t.Failed() {
					t.Fatalf("round %d", i)
				}
			}
			if err := os.Remove(fill); !errors.Is(err, os.ErrNotExist) {
				testenv.Check(t, err)
			}
			c := startChild(t, data)
			c.opened()
			l.check(t, c)
			c.kill()
		})
	}
}

var formerTest = flag.String("formertest", "", "the test binary of another version with the same children, for TestDrillAnUpgradeLosesNothing")

// Another version records under load and is killed. This one has everything, records too, and is killed. Then the other one has everything, or refuses
// in words and changes nothing.
func TestDrillAnUpgradeLosesNothing(t *testing.T) {
	testenv.Drill(t)
	if *formerTest == "" {
		t.Skip("-formertest is not set")
	}
	random := testenv.Random(t)
	for i := range testenv.Rounds(1) {
		if endsSoon(t) {
			break
		}
		data := filepath.Join(t.TempDir(), "data")
		l := loadModel{known: map[int]bool{}, next: loadBatch}
		for step, binary := range []string{*formerTest, *formerTest, os.Args[0], os.Args[0], *formerTest, *formerTest, os.Args[0]} {
			c := startChildOf(t, binary, data)
			if got := c.answer(); got != "ok" {
				t.Logf("step %d does not start: %s", step, got)
				c.kill()
				continue
			}
			l.check(t, c)
			if t.Failed() {
				kept := filepath.Join(os.TempDir(), "failed-upgrade")
				t.Fatalf("round %d, step %d; a copy is in %s: %v", i, step, kept, faultfs.Copy(data, kept))
			}
			l.loadFor(c, time.Duration(random.IntN(1500))*time.Millisecond, func() {
				if random.IntN(3) == 0 {
					_ = c.cmd.Process.Signal(syscall.SIGTERM)
					time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
				}
				c.kill()
			})
		}
		c := startChild(t, data)
		c.opened()
		l.check(t, c)
		if got := c.ask("close"); got != "ok" {
			t.Error(got)
		}
		c.kill()
		for _, f := range withoutTags(closedFindings(t, data)) {
			t.Errorf("%+v", f)
		}
		t.Logf("round %d: %d events", i, len(l.known)*loadBatch)
	}
}
