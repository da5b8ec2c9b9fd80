package sdk_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	// The tests build and run the service. Because of these imports, go test does not use a cached result after the
	// service has changed.
	_ "mtagd/edge"
	_ "mtagd/partnerapi"
	_ "mtagd/store/local"
	"mtagd/store/testenv"
)

// The hosts of the tests. The shop and the tag host are of one site, on localhost: browsers treat it as secure without
// TLS. The other shop is of another site, which is not secure.
const (
	tagHost   = "tags.shop.localhost"
	shopHost  = "www.shop.localhost"
	otherHost = "www.other.test"
)

// waitLimit limits every wait, so that a test that fails also ends. Nothing is expected to take that long.
const waitLimit = 3 * time.Minute

// All tests share the program, the browsers, and a service with one partner.
var (
	mtagd      string // the program's path
	inChromium browser
	inWhole    func() (browser, error) // starts the whole Chromium
	inFirefox  browser                 // runs while TestInFirefox does
	shared     *service
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8") // tests spend most of their time waiting
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if testing.Short() {
		return m.Run() // without browsers
	}
	dir, err := os.MkdirTemp("", "mtagd-sdk-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	mtagd = filepath.Join(dir, "mtagd")
	if out, err := exec.Command("go", "build", "-pgo=off", "-ldflags=-s -w", "-o", mtagd, "mtagd/cmd/mtagd").CombinedOutput(); err != nil {
		return fail(fmt.Errorf("%w: %s", err, out))
	}
	if path, err := testenv.Find(testenv.Chromium...); err == nil {
		if inChromium, err = startChromium(path, filepath.Join(dir, "profile")); err != nil {
			return fail(err)
		}
		defer inChromium.stop()
	}
	stopWhole := func() {}
	defer func() { stopWhole() }()
	inWhole = sync.OnceValues(func() (browser, error) {
		path, err := testenv.Find("chromium")
		if err != nil {
			return nil, err
		}
		b, err := startChromium(path, filepath.Join(dir, "whole"))
		if err == nil {
			stopWhole = b.stop
		}
		return b, err
	})
	if shared, err = startService(filepath.Join(dir, "data")); err != nil {
		return fail(err)
	}
	defer shared.kill()
	return m.Run()
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}
