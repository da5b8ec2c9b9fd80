// Package testenv says what tests need of the machine that they run on. A test that lacks something is skipped, and
// make test names at its end what was missing. Where the environment has CI=true, as in make check, such a test fails.
// It also has what tests of all packages do.
package testenv

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Check ends a test at an error. t is that of testing, or of rapid.
func Check(t interface {
	Helper()
	Fatal(args ...any)
}, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Program returns the path of a program, which may have several names.
func Program(t testing.TB, names ...string) string {
	t.Helper()
	NotShort(t, names[0])
	path, err := Find(names...)
	if err != nil {
		Missing(t, err.Error())
	}
	return path
}

// Chromium has the names of Chromium's programs: first those without windows, which take a fifth of the processor time, then
// the whole browser.
var Chromium = []string{"chromium-headless-shell", "chrome-headless-shell", "chromium"}

// Find is Program without a test. Only root's PATH has /usr/sbin, where Debian installs servers.
func Find(names ...string) (path string, err error) {
	for _, name := range names {
		for _, place := range []string{name, filepath.Join("/usr/sbin", name)} {
			if path, err := exec.LookPath(place); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not installed", strings.Join(names, " or "))
}

// NotShort skips a test in make quick, because it needs a program or takes long.
func NotShort(t testing.TB, needs string) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: it needs ", needs)
	}
}

// Missing skips a test, because something is not installed.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("CI=true insists on every test, but", what)
	}
	Skip(t, what)
}

// Skip skips a test that cannot run on this machine, even if everything is installed.
func Skip(t testing.TB, why string) {
	t.Helper()
	if list := os.Getenv("SKIPPED"); list != "" { // of make test
		f, err := os.OpenFile(list, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = fmt.Fprintln(f, why)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Skip(why)
}

// Rounds is how many random places a drill tries: n, or DRILLS times as many in make drills.
func Rounds(n int) int {
	times, err := strconv.Atoi(cmp.Or(os.Getenv("DRILLS"), "1"))
	if err != nil {
		panic("DRILLS: " + err.Error())
	}
	return n * times
}

// Random is another source of random numbers in each run. The test logs its seed, which DRILL_SEED repeats.
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("DRILL_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("DRILL_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Drill skips a test under the race detector, which would make it several times slower and find nothing: it damages, kills,
// compares or computes, in one goroutine. make test runs it without. Its name begins with TestDrill, by which make test knows it.
func Drill(t testing.TB) {
	t.Helper()
	if !strings.HasPrefix(t.Name(), "TestDrill") {
		t.Fatal("the name of a drill begins with TestDrill")
	}
	NotShort(t, "time")
	if Race {
		t.Skip("a drill runs without the race detector")
	}
}
