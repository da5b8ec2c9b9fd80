package sdk_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"mtagd/store/testenv"
)

// TestInFirefox runs in Firefox the tests of what browsers do differently: storage, cookies, the network, and the end of
// a page. What only the tag's own code decides is tested in Chromium: a page in Firefox costs about twice as much.
func TestInFirefox(t *testing.T) {
	t.Parallel()
	var err error
	if inFirefox, err = startFirefox(testenv.Program(t, "firefox-esr", "firefox"), filepath.Join(t.TempDir(), "profile")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(inFirefox.stop)
	for _, test := range []func(*testing.T){
		TestAChangeOfTheAddressIsAPageView,
		TestAHiddenPage,
		TestALateAnswerLeavesTheNextVisitor,
		TestAPageThatIsHiddenOrClosedBeforeItsTitleIsKnown,
		TestAPageThatIsHiddenSendsWhatWaits,
		TestAPageThatIsLeftRightAfterAnEvent,
		TestAPageThatLeavesManyEvents,
		TestAReturnFromTheBackForwardCacheIsAPageView,
		TestAStrictContentSecurityPolicy,
		TestARandomVisitLosesNothing,
		TestARandomVisitWithdrawsConsent,
		TestAWithdrawalWithoutTheParts,
		TestAnAnswerThatIsLost,
		TestAGrantThatIsWithdrawnWhileAPageIsInTheBackForwardCache,
		TestAnEventWithAnEmailIsLeftToItsPage,
		TestAnEventHasItsFieldsAndThoseOfThePage,
		TestChoicesWhileAPageIsInTheBackForwardCache,
		TestACookieThatAScriptMayNotReplace,
		TestAResetReachesAllTabs,
		TestConsentThatIsWithdrawn,
		TestConsentThatIsWithdrawnWhileEventsAreOnTheirWay,
		TestEachStateOfConsent,
		TestLocalStorageThatIsDenied,
		TestLocalStorageThatIsFull,
		TestOfflineAndBack,
		TestATabThatHearsOfAGrantBeforeItsCookie,
		TestOtherTabsHearOfAGrant,
		TestPagesThatBreakTheTagsTools,
		TestThreeTabsDuringAnOutage,
		TestResetMakesAnotherVisitor,
		TestTheCookieOfTheVisitIsBounded,
		TestTheMUIDIsACookieOfTheRootDomain,
		TestTheOrdersOfConsentPlatforms,
		TestTheTagHostRenewsTheCookie,
		TestTheVisitorIsCarriedToAnotherSite,
		TestWhatAnOutageHasLeftWhenConsentIsWithdrawnOnAnotherHost,
		TestWithdrawalOnAnotherHostOfTheSiteIsSeenByTheNextCall,
		TestWithoutConsentThereIsNoTrace,
	} {
		name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
		t.Run(name[strings.LastIndex(name, ".")+1:], test)
	}
}

// browserOf returns the browser that a test runs in. Chromium without windows has no back/forward cache.
func browserOf(t testing.TB) browser {
	testenv.NotShort(t, "a browser")
	switch name := t.Name(); {
	case strings.HasPrefix(name, "TestInFirefox/"):
		return inFirefox
	case strings.Contains(name, "BackForwardCache"):
		whole, err := inWhole()
		if err != nil {
			testenv.Missing(t, err.Error())
		}
		return whole
	}
	return inChromium
}

// firefox is headless Firefox. It is driven by WebDriver BiDi, which it speaks without a driver program.
type firefox struct {
	cmd *exec.Cmd
	*bidi

	profiles pool[*firefoxProfile]

	mu   sync.Mutex
	free []string // the first tabs of windows that no profile uses
}

// firefoxPrefs resolve every host name to this machine, keep the pages of all tabs in the back/forward cache, and spare work, questions
// and requests of the browser itself. Nobody looks at its windows, so they are drawn ten times a second.
const firefoxPrefs = `
user_pref("network.dns.forceResolve", "127.0.0.1");
user_pref("browser.sessionhistory.max_total_viewers", 100);
user_pref("layout.frame_rate", 10);
user_pref("ui.prefersReducedMotion", 1);
user_pref("browser.aboutwelcome.enabled", false);
user_pref("browser.chrome.site_icons", false);
user_pref("browser.ml.enable", false);
user_pref("browser.newtab.preload", false);
user_pref("browser.newtabpage.activity-stream.feeds.asrouterfeed", false);
user_pref("browser.newtabpage.enabled", false);
user_pref("browser.safebrowsing.downloads.enabled", false);
user_pref("browser.safebrowsing.malware.enabled", false);
user_pref("browser.safebrowsing.phishing.enabled", false);
user_pref("browser.safebrowsing.update.enabled", false);
user_pref("browser.search.update", false);
user_pref("browser.sessionstore.disable_platform_collection", true);
user_pref("browser.sessionstore.interval", 3600000);
user_pref("browser.sessionstore.max_tabs_undo", 0);
user_pref("browser.sessionstore.max_windows_undo", 0);
user_pref("browser.startup.homepage_override.mstone", "ignore");
user_pref("browser.startup.page", 0);
user_pref("browser.translations.enable", false);
user_pref("datareporting.healthreport.uploadEnabled", false);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("extensions.formautofill.addresses.enabled", false);
user_pref("extensions.formautofill.creditCards.enabled", false);
user_pref("extensions.webcompat.enable_shims", false);
user_pref("extensions.webcompat.perform_injections", false);
user_pref("extensions.webcompat.perform_ua_overrides", false);
user_pref("messaging-system.rsexperimentloader.enabled", false);
user_pref("network.http.speculative-parallel-limit", 0);
user_pref("app.normandy.enabled", false);
user_pref("dom.ipc.processHangMonitor", false);
user_pref("dom.ipc.processPrelaunch.enabled", false);
user_pref("identity.fxaccounts.enabled", false);
user_pref("places.history.enabled", false);
user_pref("security.warn_submit_secure_to_insecure", false);
user_pref("signon.rememberSignons", false);
`

// startFirefox starts Firefox with a new data directory.
func startFirefox(path, dir string) (browser, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "user.js"), []byte(firefoxPrefs), 0o600); err != nil {
		return nil, err
	}
	f := &firefox{cmd: exec.Command(path, "--headless", "--no-remote", "--remote-debugging-port", "0", "--profile", dir)}
	f.cmd.Env = append(os.Environ(), "HOME="+dir, "MOZ_HEADLESS_WIDTH=450", "MOZ_HEADLESS_HEIGHT=300") // small windows are drawn sooner
	stderr, err := f.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if _, url, ok := strings.Cut(lines.Text(), "WebDriver BiDi listening on "); ok {
			go io.Copy(io.Discard, stderr)
			if f.bidi, err = dialBiDi(url); err != nil {
				f.stop()
				return nil, err
			}
			return f, nil
		}
	}
	return nil, errors.Join(errors.New("Firefox ended before it listened"), f.cmd.Wait())
}

func (f *firefox) stop() {
	f.cmd.Process.Kill() // fails only when Firefox has already ended
	f.cmd.Wait()
}

func (f *firefox) newProfile() (profile, error) {
	if p, ok := f.profiles.take(); ok {
		return p, nil
	}
	p := &firefoxProfile{firefox: f}
	return p, f.call("browser.createUserContext", params{}, p)
}

// firefoxProfile is a user context.
type firefoxProfile struct {
	*firefox
	UserContext string
	tabs        []*firefoxTab // of the test
	left        []*firefoxTab // of earlier tests
	changed     bool          // a tab is not as it was
}

func (p *firefoxProfile) leave(url string) {
	for _, t := range p.tabs {
		switch {
		case t.closed:
			p.release(t)
		case t.navigate(url) == nil:
			p.listen(t.Context, func(logEntry) {})
			p.left = append(p.left, t)
		}
	}
	p.tabs = nil
}

// close closes the tabs too, unless the profile is used again.
func (p *firefoxProfile) close(reuse bool) {
	partition := params{"type": "storageKey", "userContext": p.UserContext}
	if reuse && !p.changed && p.call("storage.deleteCookies", params{"partition": partition}, nil) == nil {
		p.profiles.put(p)
		return
	}
	if p.call("browser.removeUserContext", params{"userContext": p.UserContext}, nil) != nil {
		return // after another failure
	}
	for _, t := range p.left {
		p.release(t)
	}
}

// release leaves the window of a tab to others, as a new one takes long, but not a minimized one.
func (f *firefox) release(t *firefoxTab) {
	if t.minimized {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = append(f.free, t.window)
}

// newTab opens a tab in a window of its own, because of the tabs in a window all but one are hidden.
func (p *firefoxProfile) newTab(console func(line string)) (driver, error) {
	if last := len(p.left) - 1; last >= 0 {
		t := p.left[last]
		p.left, p.tabs = p.left[:last], append(p.tabs, t)
		p.listen(t.Context, func(entry logEntry) { console(consoleKind(entry) + ": " + entry.Text) })
		return t, nil
	}
	window, err := p.window()
	if err != nil {
		return nil, err
	}
	t := &firefoxTab{firefox: p.firefox, profile: p, window: window}
	create := params{"type": "tab", "referenceContext": window, "userContext": p.UserContext}
	if err := p.call("browsingContext.create", create, t); err != nil {
		return nil, err
	}
	p.tabs = append(p.tabs, t)
	p.listen(t.Context, func(entry logEntry) { console(consoleKind(entry) + ": " + entry.Text) })
	return t, nil
}

// window returns the first tab of a window that no profile uses.
func (f *firefox) window() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last := len(f.free) - 1; last >= 0 {
		window := f.free[last]
		f.free = f.free[:last]
		return window, nil
	}
	var created struct{ Context string }
	err := f.call("browsingContext.create", params{"type": "window"}, &created)
	return created.Context, err
}

// exception matches the text of an exception that nothing caught.
var exception = regexp.MustCompile(`^(\w*Error|uncaught exception): `)

// consoleKind returns Chromium's name for the kind of a line.
func consoleKind(entry logEntry) string {
	switch {
	case entry.Type == "javascript" && exception.MatchString(entry.Text):
		return string(chromedp.ConsoleException)
	case entry.Level == "warn":
		return string(chromedp.ConsoleWarning)
	}
	return entry.Level
}

func (p *firefoxProfile) cookies() ([]*network.Cookie, error) {
	var jar struct {
		Cookies []struct {
			Name, Domain, Path string
			Value              struct{ Value string }
			SameSite           string
			Secure, HTTPOnly   bool
			Expiry             float64
		}
	}
	err := p.call("storage.getCookies", params{"partition": params{"type": "storageKey", "userContext": p.UserContext}}, &jar)
	var all []*network.Cookie
	for _, c := range jar.Cookies {
		cookie := &network.Cookie{Name: c.Name, Value: c.Value.Value, Domain: c.Domain, Path: c.Path,
			Secure: c.Secure, HTTPOnly: c.HTTPOnly, Expires: c.Expiry}
		switch c.SameSite {
		case "strict":
			cookie.SameSite = network.CookieSameSiteStrict
		case "lax":
			cookie.SameSite = network.CookieSameSiteLax
		case "none":
			cookie.SameSite = network.CookieSameSiteNone
		}
		all = append(all, cookie)
	}
	return all, err
}

// firefoxTab is a tab. It is closed with its profile.
type firefoxTab struct {
	*firefox
	profile   *firefoxProfile
	Context   string // the id of its browsing context
	window    string // the id of the first one of its window
	minimized bool
	closed    bool
}

func (t *firefoxTab) navigate(url string) error {
	return t.call("browsingContext.navigate", params{"context": t.Context, "url": url, "wait": "complete"}, nil)
}

func (t *firefoxTab) run(script string) error {
	_, err := t.evaluate(t.Context, script, false)
	return err
}

func (t *firefoxTab) text(expression string) (string, error) {
	value, err := t.evaluate(t.Context, "Promise.resolve("+expression+").then(String)", true)
	if err != nil {
		return "", err
	}
	var text string
	return text, json.Unmarshal(value, &text)
}

func (t *firefoxTab) offline(is bool) error {
	t.profile.changed = true
	conditions := any(nil)
	if is {
		conditions = params{"type": "offline"}
	}
	return t.call("emulation.setNetworkConditions", params{"networkConditions": conditions, "contexts": []string{t.Context}}, nil)
}

func (t *firefoxTab) minimize() error {
	t.minimized, t.profile.changed = true, true
	var tree struct {
		Contexts []struct{ ClientWindow string }
	}
	if err := t.call("browsingContext.getTree", params{"root": t.Context, "maxDepth": 0}, &tree); err != nil {
		return err
	}
	if len(tree.Contexts) != 1 {
		return fmt.Errorf("the tab %s is gone", t.Context)
	}
	return t.call("browser.setClientWindowState", params{"clientWindow": tree.Contexts[0].ClientWindow, "state": "minimized"}, nil)
}

func (t *firefoxTab) close() error {
	t.closed = true
	return t.call("browsingContext.close", params{"context": t.Context}, nil)
}
