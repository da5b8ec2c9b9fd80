package local

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/faultfs"
	"mtagd/store/testenv"
)

// endsSoon reports whether a drill must end with what it has done, because of -timeout.
func endsSoon(t *testing.T) bool {
	deadline, ok := t.Deadline()
	return ok && time.Until(deadline) < 20*time.Second
}

const childEnv = "LOCAL_TEST_ENGINE" // the data directory of a child

func TestMain(m *testing.M) {
	faultfs.Main()
	if dir := os.Getenv(childEnv); dir != "" {
		serveChild(dir)
		return
	}
	if dir := os.Getenv(lifeEnv); dir != "" {
		serveLife(dir)
		return
	}
	os.Exit(m.Run())
}

var childMerchant = store.MerchantID("018f0000-0000-7000-8000-000000000001")

// serveChild opens an engine, and does what the lines of standard input say. It answers each with a line. Events move to the
// archive all the time.
func serveChild(dir string) {
	e, err := Open(dir, Options{Log: quiet, ArchiveRun: 5000})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	fmt.Println("ok")
	answer := func(text any, err error) {
		if err != nil {
			text = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(text)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		verb, arg, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "record": // a number: records 10 events with this and the next numbers
			n, _ := strconv.Atoi(arg)
			marks := make([]store.Mark, 10)
			for i := range marks {
				marks[i] = newMark(childMerchant, "PageView", n+i, fmt.Appendf(nil, `{"n":%d,"noise":"%x%x"}`, n+i, rand.Uint64(), rand.Uint64()))
			}
			answer("ok", e.Record(ctx, marks))
		case "list":
			page, err := e.Events(ctx, store.Query{Merchant: childMerchant, Limit: 1_000_000})
			var numbers []string
			for _, event := range page.Events {
				numbers = append(numbers, strconv.FormatInt(event.Time.UnixMicro(), 10))
			}
			if err == nil && page.Total != len(page.Events) {
				err = fmt.Errorf("%d events of %d", len(page.Events), page.Total)
			}
			answer(strings.Join(append([]string{"ok"}, numbers...), " "), err)
		case "load": // a number: records events with this and the next numbers until the end
			n, _ := strconv.Atoi(arg)
			serveLoad(e, n)
		case "retry":
			n, _ := strconv.Atoi(arg)
			answer("ok", e.Record(ctx, loadMarks(n, "load")))
		case "backup":
			answer("ok", backUpNow(e))
		case "merchants":
			var err error
			for _, id := range strings.Fields(arg) {
				_, err2 := e.Merchant(ctx, store.MerchantID(id))
				err = errors.Join(err, err2)
			}
			answer("ok", err)
		case "known":
			answer("ok", checkLoad(e, arg))
		case "ready":
			answer("ok", e.Ready())
		case "close":
			answer("ok", e.Close())
			return
		}
	}
}

// child is an engine in a process of its own, which can be killed.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
}

func startChild(t *testing.T, dir string) *child {
	t.Helper()
	return startChildOf(t, os.Args[0], dir)
}

// startChildOf is startChild for another test binary.
func startChildOf(t *testing.T, binary, dir string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(binary)}
	c.cmd.Env = append(os.Environ(), childEnv+"="+dir)
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	testenv.Check(t, err)
	out, err := c.cmd.StdoutPipe()
	testenv.Check(t, err)
	testenv.Check(t, c.cmd.Start())
	t.Cleanup(c.kill)
	c.in, c.lines = in, bufio.NewScanner(out)
	c.lines.Buffer(nil, 64<<20)
	return c
}

// answer returns the next line of the child.
func (c *child) answer() string {
	if !c.lines.Scan() {
		return "error: the process ended"
	}
	return c.lines.Text()
}

func (c *child) ask(line string) string {
	fmt.Fprintln(c.in, line)
	return c.answer()
}

func (c *child) opened() {
	c.t.Helper()
	if got := c.answer(); got != "ok" {
		c.t.Fatal("the engine does not start: ", got)
	}
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// acknowledged are the numbers of acknowledged events.
type acknowledged struct {
	next int
	got  []int // the first of each ten
}

// record records ten events, and reports whether they were acknowledged.
func (a *acknowledged) record(c *child) bool {
	n := a.next
	a.next += 10
	if c.ask(fmt.Sprint("record ", n)) != "ok" {
		return false
	}
	a.got = append(a.got, n)
	return true
}

// checkAll fails the test unless every acknowledged event is listed.
func (a *acknowledged) checkAll(t *testing.T, c *child) {
	t.Helper()
	a.check(t, c.ask("list"))
}

// check is checkAll for the answer to "list".
func (a *acknowledged) check(t *testing.T, list string) {
	t.Helper()
	numbers := strings.Fields(list)
	if numbers[0] != "ok" {
		t.Fatal("list: ", list)
	}
	listed := map[string]int{}
	for _, n := range numbers[1:] {
		listed[n]++
	}
	missing := 0
	for _, first := range a.got {
		for n := first; n < first+10; n++ {
			if listed[strconv.Itoa(n)] != 1 {
				missing++
			}
		}
	}
	if missing > 0 {
		t.Errorf("%d of %d acknowledged events are missing or listed twice", missing, 10*len(a.got))
	}
}

// Writes and syncs fail for a moment. Then the process is killed, started again, and the power is cut: what the kernel
// believes to be on the disk is not there.
func TestDrillAFailedWriteLosesNothing(t *testing.T) {
	testenv.Drill(t)
	random := testenv.Random(t)
	rules := []faultfs.Rule{
		{Op: faultfs.Write, Files: "*.log", Errno: syscall.EIO},
		{Op: faultfs.Sync, Files: "*.log", Errno: syscall.EIO},
		{Op: faultfs.Write, Files: "*", Skip: 3, Count: 5, Errno: syscall.EIO},
	}
	for _, i := range random.Perm(len(rules))[:min(len(rules), testenv.Rounds(1))] {
		rule := rules[i]
		d := faultfs.New(t)
		data := filepath.Join(d.Dir, "data")
		c := startChild(t, data)
		c.opened()
		var a acknowledged
		for range 5 {
			if !a.record(c) {
				t.Fatal("an event is refused")
			}
		}
		d.Fail(rule)
		refused := false
		for range 20 {
			refused = refused || !a.record(c)
		}
		d.Fail()
		if !refused {
			t.Errorf("%s of %s: every event was acknowledged", rule.Op, rule.Files)
		}
		if got := c.ask("ready"); refused && rule.Files != "*" && !strings.HasPrefix(got, "error") {
			t.Errorf("%s of %s: after a failed write the engine is ready", rule.Op, rule.Files)
		}
		if rule.Files != "*" { // without a restart
			deadline := time.Now().Add(time.Minute)
			for !a.record(c) && time.Now().Before(deadline) {
			}
			if got := c.ask("ready"); got != "ok" {
				t.Errorf("%s of %s: when the disk works again, the engine is not ready: %s", rule.Op, rule.Files, got)
			}
		}
		// Reads go on, unless the index was hit: then listings wait for the restart.
		if list := c.ask("list"); rule.Files != "*" || !strings.HasPrefix(list, "error event index:") {
			a.check(t, list)
		}
		c.kill()

		c = startChild(t, data)
		c.opened()
		a.checkAll(t, c)
		for range 3 {
			if !a.record(c) {
				t.Fatal("an event is refused after the restart")
			}
		}
		d.Cut()
		c.kill()
		d.Restore(random.Float64()*float64(random.IntN(2)), random.Uint64())

		c = startChild(t, data)
		c.opened()
		a.checkAll(t, c)
		c.kill()
	}
}

// A table cannot be written. Badger would go on, and after a compaction delete what the table was made from. So the close fails, and the next
// start has everything, also after a power cut.
func TestDrillATableThatCannotBeWrittenLosesNothing(t *testing.T) {
	testenv.Drill(t)
	d := faultfs.New(t)
	data := filepath.Join(d.Dir, "data")
	c := startChild(t, data)
	c.opened()
	// The first table is created; then its content cannot be written.
	d.Fail(faultfs.Rule{Op: faultfs.Write, Files: "*.sst.new", Skip: 1, Count: 1, Errno: syscall.EIO})
	var a acknowledged
	for deadline := time.Now().Add(time.Minute); d.Failed() == 0; {
		if !a.record(c) {
			t.Fatal("an event is refused")
		}
		if time.Now().After(deadline) {
			t.Fatal("no table was written")
		}
	}
	c.ask("close") // what it says does not count: everything is in the log
	d.Cut()
	c.kill()
	d.Restore(0, 1)
	c = startChild(t, data)
	c.opened()
	a.checkAll(t, c)
	if got := c.ask("close"); got != "ok" {
		t.Error("close gives ", got)
	}
}

// Each kill is at any moment: while events are recorded, while the engine starts or while it closes.
func TestDrillAKillLosesNothing(t *testing.T) {
	testenv.Drill(t)
	random := testenv.Random(t)
	data := filepath.Join(t.TempDir(), "data")
	var a acknowledged
	done := 0
	for i := range testenv.Rounds(3) {
		if endsSoon(t) {
			break
		}
		done++
		c := startChild(t, data)
		if i%4 == 3 { // during the start
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
			c.kill()
			continue
		}
		c.opened()
		a.checkAll(t, c)
		for range 5 + random.IntN(30) {
			if !a.record(c) {
				t.Fatal("an event is refused")
			}
		}
		if i%4 == 2 {
			fmt.Fprintln(c.in, "close")
		} else {
			fmt.Fprintln(c.in, "record", a.next)
			a.next += 10
		}
		time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond) // any moment will do
		c.kill()
		if t.Failed() {
			t.Fatalf("round %d", i)
		}
	}
	c := startChild(t, data)
	c.opened()
	a.checkAll(t, c)
	c.kill()
	t.Logf("%d kills, %d events", done, 10*len(a.got))
}

func TestDrillAPowerCutLosesNothing(t *testing.T) {
	testenv.Drill(t)
	random := testenv.Random(t)
	d := faultfs.New(t)
	data := filepath.Join(d.Dir, "data")
	var a acknowledged
	done := 0
	for i := range testenv.Rounds(2) {
		if endsSoon(t) {
			break
		}
		done++
		c := startChild(t, data)
		c.opened()
		a.checkAll(t, c)
		for range 5 + random.IntN(30) {
			if !a.record(c) {
				t.Fatal("an event is refused")
			}
		}
		closing := random.IntN(3) == 0
		if closing {
			fmt.Fprintln(c.in, "close")
		} else {
			fmt.Fprintln(c.in, "record", a.next)
			a.next += 10
		}
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond) // any moment will do
		d.Cut()
		c.kill()
		keep, seed := random.Float64()*float64(random.IntN(3))/2, random.Uint64()
		d.Restore(keep, seed)
		if t.Failed() {
			t.Fatalf("round %d", i)
		}
	}
	c := startChild(t, data)
	c.opened()
	a.checkAll(t, c)
	c.kill()
	t.Logf("%d power cuts, %d events", done, 10*len(a.got))
}
