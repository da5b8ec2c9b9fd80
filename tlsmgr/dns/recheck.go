package dns

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"mtagd/store"
)

// RecheckConfig is what a Recheck is made of. Every field is required, except Found and Every.
type RecheckConfig struct {
	Hosts  store.Hosts  // the hosts of tags that are checked
	Engine store.Engine // keeps the tags
	Verify func(ctx context.Context, host string) store.DNSFinding

	// Found receives every finding of the hourly check, after the tags were updated; nil: nobody does. Several calls
	// may run at the same time.
	Found func(host string, f store.DNSFinding)

	Every time.Duration // the time in which each host is checked once; 0: an hour
	Log   *slog.Logger
}

const (
	usualInterval = time.Hour
	// rechecksAtOnce limits the checks that run at the same time.
	rechecksAtOnce = 8
	// freshFor is how long Now trusts a correct finding.
	freshFor = time.Minute
)

// Recheck checks the DNS of every host that may have a certificate, evenly spread over an hour. So isConnected of
// the tags is true within the hour, and a host that comes back gets its certificate.
//
// It updates a tag only when the finding changes isConnected, and never activates a tag: verify alone does. Its
// methods are safe for concurrent use.
type Recheck struct {
	RecheckConfig

	ctx     context.Context // ends with Stop
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu        sync.Mutex
	elsewhere map[string]bool // hosts whose last certain finding was wrong
}

// NewRecheck returns a Recheck that does nothing yet.
func NewRecheck(cfg RecheckConfig) *Recheck {
	cfg.Every = cmp.Or(cfg.Every, usualInterval)
	r := &Recheck{RecheckConfig: cfg, elsewhere: map[string]bool{}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Start begins the hourly checks, in the background.
func (r *Recheck) Start() { r.running.Go(r.run) }

// Stop ends the hourly checks and waits for those in progress. Now still works.
func (r *Recheck) Stop() {
	r.cancel()
	r.running.Wait()
}

// run checks all hosts again and again. It goes through them in the same order each time, so that an hour lies
// between two checks of the same host.
func (r *Recheck) run() {
	slots := make(chan struct{}, rechecksAtOnce)
	for {
		hosts := r.Hosts.OfTags()
		slices.Sort(hosts)
		r.forgetAllBut(hosts)
		if len(hosts) == 0 && !r.pause(r.Every/60) {
			return
		}
		for _, host := range hosts {
			if !r.pause(r.Every / time.Duration(len(hosts))) {
				return
			}
			select {
			case <-r.ctx.Done():
				return
			case slots <- struct{}{}:
			}
			r.running.Go(func() {
				defer func() { <-slots }()
				found := r.check(r.ctx, host)
				if r.Found != nil && r.ctx.Err() == nil {
					r.Found(host, found)
				}
			})
		}
	}
}

// pause returns false when Stop is called in the meantime.
func (r *Recheck) pause(d time.Duration) bool {
	select {
	case <-r.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Now checks one host at once, and updates its tags like the hourly check. It returns a correct finding that is
// less than a minute old without a new check: verify has just answered.
func (r *Recheck) Now(ctx context.Context, host string) store.DNSFinding {
	for _, tag := range r.Engine.Directory().TagsOn(host) {
		f := tag.DNS
		if tag.Connected && f != nil && f.Verdict == store.DNSCorrect && time.Since(f.CheckedAt) < freshFor {
			return *f
		}
	}
	return r.check(ctx, host)
}

func (r *Recheck) check(ctx context.Context, host string) store.DNSFinding {
	found := r.Verify(ctx, host)
	if found.Verdict == store.DNSCorrect || found.Verdict == store.DNSWrong {
		r.logMove(host, found)
		r.updateTags(ctx, host, found)
	}
	return found
}

// logMove logs a certain finding that differs from the host's last one.
func (r *Recheck) logMove(host string, f store.DNSFinding) {
	elsewhere := f.Verdict == store.DNSWrong
	r.mu.Lock()
	moved := r.elsewhere[host] != elsewhere
	if elsewhere {
		r.elsewhere[host] = true
	} else {
		delete(r.elsewhere, host)
	}
	r.mu.Unlock()
	if moved {
		r.Log.Info("host has moved", "host", host, "here", !elsewhere, "code", f.Code, "detail", f.Detail)
	}
}

// forgetAllBut drops hosts that no tag has any more.
func (r *Recheck) forgetAllBut(hosts []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for host := range r.elsewhere {
		if _, known := slices.BinarySearch(hosts, host); !known {
			delete(r.elsewhere, host)
		}
	}
}

func (r *Recheck) updateTags(ctx context.Context, host string, f store.DNSFinding) {
	transition := func(t store.Tag) store.Tag {
		if t.Status() == store.Inactive {
			return t
		}
		return t.AfterDNSCheck(f)
	}
	for _, tag := range r.Engine.Directory().TagsOn(host) {
		if transition(tag).Connected == tag.Connected {
			continue
		}
		if _, err := r.Engine.UpdateTag(ctx, tag.ID, transition); err != nil && ctx.Err() == nil {
			r.Log.Error("tag not updated after a DNS check", "tag", tag.ID, "host", host, "error", err)
		}
	}
}
