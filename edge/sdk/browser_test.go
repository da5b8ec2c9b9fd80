package sdk_test

import (
	"sync"

	"github.com/chromedp/cdproto/network"
)

// browser is a browser that runs the pages of worlds. Each world has a profile of its own.
type browser interface {
	newProfile() (profile, error)
	stop()
}

// profile is a browser profile. Its tabs share cookies and storage. A new profile costs a process for each tab and site, so a
// test leaves its own to later ones, with its tabs.
type profile interface {
	// newTab opens an empty tab. It passes each line of the tab's console to console: its kind, ": " and its text. The
	// kinds are those of Chromium.
	newTab(console func(line string)) (driver, error)
	cookies() ([]*network.Cookie, error)
	// leave loads a page in all tabs, when a test has ended. The next test needs no new process for a page of the same site.
	leave(url string)
	// close ends the profile. With reuse, the browser may return it as a new one, without cookies. What pages have stored
	// stays, out of sight: each world has origins of its own.
	close(reuse bool)
}

// driver controls a tab. A call fails after waitLimit, for example when a script of the page never ends.
type driver interface {
	// navigate loads a page, and returns when the page is complete.
	navigate(url string) error
	// run runs a script. It does not wait for a promise.
	run(script string) error
	// text returns the value of an expression as text. It waits for a promise.
	text(expression string) (string, error)
	// offline tells the tab that it is disconnected from the network, or connected again. Firefox really disconnects it.
	offline(is bool) error
	// minimize minimizes the window of the tab.
	minimize() error
	// close closes the tab as a user would.
	close() error
}

// pool has what tests have left to later ones. Its zero value is ready.
type pool[T any] struct {
	mu   sync.Mutex
	free []T
}

func (p *pool[T]) put(left T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, left)
}

// take returns what was put last; ok is false when there is nothing.
func (p *pool[T]) take() (left T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.free) - 1
	if last < 0 {
		return left, false
	}
	left, p.free = p.free[last], p.free[:last]
	return left, true
}
