package tag

import (
	"strings"
	"sync"

	"github.com/mileusna/useragent"
)

// bots knows which user agents call themselves bots. Package useragent has the rules: a well-known name, a name with bot in
// it, or an address for webmasters. They take microseconds, so results are remembered. The memory is bounded, also when each
// request has another user agent.
type bots struct {
	mu     sync.RWMutex
	recent map[string]bool
	old    map[string]bool // what recent was before it was full
}

const (
	maxUserAgent  = 512  // bytes; the rest of a longer one is ignored
	maxUserAgents = 2048 // in each of the two maps
)

func newBots() *bots { return &bots{recent: map[string]bool{}} }

// isBot reports whether a user agent calls itself a bot. It does not keep userAgent, and does not allocate when it remembers
// the result.
func (b *bots) isBot(userAgent string) bool {
	if userAgent == "" {
		return false
	}
	userAgent = userAgent[:min(len(userAgent), maxUserAgent)]
	b.mu.RLock()
	is, ok := b.recent[userAgent]
	b.mu.RUnlock()
	if ok {
		return is
	}
	userAgent = strings.Clone(userAgent)
	b.mu.RLock()
	is, ok = b.old[userAgent]
	b.mu.RUnlock()
	if !ok {
		is = useragent.Parse(userAgent).Bot
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.recent) >= maxUserAgents {
		b.old, b.recent = b.recent, make(map[string]bool, maxUserAgents)
	}
	b.recent[userAgent] = is
	return is
}
