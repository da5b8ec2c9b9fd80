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

// RecheckConfig says what a Recheck works with. Every field is required, except Found and Every.
type RecheckConfig struct {
	Hosts  store.Hosts  // the hosts of tags that are checked
	Engine store.Engine // has the tags
	Verify func(ctx context.Context, host string) store.DNSFinding

	// Found, if not nil, is called with every finding of the hourly check, after the tags were updated. Several calls
	// may run at the same time.
	Found func(host string, f store.DNSFinding)

	Every time.Duration // each host is checked once in this time; 0: an hour
	Log   *slog.Logger
}

const (
	usualInterval = time.Hour
	// rechecksAtOnce limits the checks that run at the same time.
	rechecksAtOnce = 8
	// freshFor is how long Now trusts a correct finding.
	freshFor = time.Minute
)

// Recheck checks the DNS of every tag host that may have a certificate once an hour, evenly spread over the hour. So a
// tag's isConnected is never out of date for much longer, and a host whose DNS leads here again gets its certificate.
//
// store.Tag.AfterRecheck says how a finding changes a tag. The methods of a Recheck are safe for concurrent use.
type Recheck struct {
	RecheckConfig

	ctx     context.Context // ends with Stop
	cancel  context.CancelFunc
	running sync.WaitGroup

	updating sync.Mutex // held while tags are read and updated, so that two checks of a host do not both write a change
}

// NewRecheck returns a Recheck that does nothing yet.
func NewRecheck(cfg RecheckConfig) *Recheck {
	cfg.Every = cmp.Or(cfg.Every, usualInterval)
	r := &Recheck{RecheckConfig: cfg}
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

// run checks all hosts, again and again. Each round has the same order, so that two checks of a host are an hour apart.
func (r *Recheck) run() {
	slots := make(chan struct{}, rechecksAtOnce)
	for {
		hosts := r.Hosts.OfTags()
		slices.Sort(hosts)
		if len(hosts) == 0 && store.Sleep(r.ctx, r.Every/60) != nil {
			return
		}
		for _, host := range hosts {
			if store.Sleep(r.ctx, r.Every/time.Duration(len(hosts))) != nil {
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

// Now checks one host immediately, and updates its tags like the hourly check. If a tag on the host has a correct
// finding that is less than a minute old, as after verify, Now returns that one.
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
	if found.Verdict.IsCertain() {
		r.updateTags(ctx, host, found)
	}
	return found
}

// updateTags updates the tags on a host after a certain finding, and logs once if that is the opposite of what they had.
func (r *Recheck) updateTags(ctx context.Context, host string, f store.DNSFinding) {
	r.updating.Lock()
	defer r.updating.Unlock()
	transition := func(t store.Tag) store.Tag { return t.AfterRecheck(f) }
	moved := false
	for _, tag := range r.Engine.Directory().TagsOn(host) {
		after := transition(tag)
		if after == tag {
			continue
		}
		if after.Connected != tag.Connected && !moved {
			moved = true
			r.Log.Info("host has moved", "host", host, "here", after.Connected, "code", f.Code, "detail", f.Detail)
		}
		if _, err := r.Engine.UpdateTag(ctx, tag.ID, transition); err != nil && ctx.Err() == nil {
			r.Log.Error("tag not updated after a DNS check", "tag", tag.ID, "host", host, "error", err)
		}
	}
}
