package sdk_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	// The tests build and run the service. Because of these imports, go test does not use a cached result after the
	// service has changed.
	_ "mtagd/edge"
	_ "mtagd/partnerapi"
	_ "mtagd/store/local"
)

// The hosts of the tests. The shop and the tag host are of one site, on localhost: Chromium treats it as secure without
// TLS. The other shop is of another site, which is not secure.
const (
	tagHost   = "tags.shop.localhost"
	shopHost  = "www.shop.localhost"
	otherHost = "www.other.test"
)

// waitLimit limits every wait, so that a test that fails also ends. Nothing is expected to take that long.
const waitLimit = time.Minute

// All tests share the program, the browser, and a service with one partner.
var (
	mtagd   string // the program's path
	browser context.Context
	shared  *service
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8") // tests spend most of their time waiting
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "mtagd-sdk-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	mtagd = filepath.Join(dir, "mtagd")
	if out, err := exec.Command("go", "build", "-pgo=off", "-o", mtagd, "mtagd/cmd/mtagd").CombinedOutput(); err != nil {
		return fail(fmt.Errorf("%w: %s", err, out))
	}
	stop, err := startBrowser(filepath.Join(dir, "profile"))
	if err != nil {
		return fail(err)
	}
	defer stop()
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

// startBrowser starts headless Chromium. It resolves every host name to this machine.
func startBrowser(profile string) (stop func(), err error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("the tests of the browser tag need Chromium; make test installs it: %w", err)
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.NoSandbox, chromedp.NoFirstRun,
		chromedp.Flag("headless", "new"), chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("ignore-certificate-errors", true),
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("host-resolver-rules", "MAP * 127.0.0.1"))
	var close context.CancelFunc
	browser, close = chromedp.NewContext(allocator)
	if err := chromedp.Do(browser); err != nil {
		cancel()
		return nil, err
	}
	return func() { close(); cancel() }, nil
}
