// Package delivery sends events on to where merchants want them: to webhooks, to ad platforms. A destination is a reader of
// the feed: a cursor, and a bounded set of events that are tried again. There is no queue beside the feed, so a destination
// that is down costs nothing, and what is erased or past its retention is not sent.
//
// # How it works
//
// Destinations are divided among shards by their merchant. With a database, each shard has a lease, so one node runs it. A
// shard reads the feed once for all its attached destinations, and hands each the events that it may want. A destination
// that fails or does not keep up is detached: it drops the events that it was handed, and later reads them from the feed by
// itself. Missed events, replays and retries are read and sent in portions, and not kept in memory. A destination that has
// caught up is attached again.
//
// The number of destinations that work at once is bounded: each waits for a place (places.go). With a place, a destination
// takes events, leaves out those that its filter or missing consent excludes, lets its kind make the requests, sends them,
// and notes each outcome. At rest it is only a struct: no goroutine, no timer, no read.
//
//   - At least once: the cursor moves when events are taken, and states are written once a second. An event has the same id
//     each time.
//
//   - In order for each visitor: events of one muid are in the same lane, and a lane stops at the first failure. An event
//     that fails while others are taken waits in the set of retries, with all later ones of its muid. When nothing is taken,
//     or the set is full, the destination waits as a whole: its cursor stays.
//
//   - A failed event is tried again after growing, jittered pauses, or when Retry-After says, for as long as its kind says
//     that it makes sense. Then it becomes a dead letter, with the last answer. Dead letters are ranges of the feed: a
//     replay reads them again.
//
//     delivery.go     Service: shards and leases
//     destination.go  create and change destinations
//     secrets.go      encrypts secrets
//     shard.go        reads the feed for all
//     places.go       how many work at once, and when
//     runner.go       one destination
//     retry.go        events that are tried again
//     replay.go       events that are sent again
//     send.go         one round of a destination: what is left out, what is sent
//     outcome.go      what became of it: retries, dead letters, pauses
//     asked.go        asks destinations to erase
//     clients.go      client details: addresses and user agents, for ad platforms
//     erasing.go      whose events must not be sent any more
//     state.go        what is stored of a destination
//     client.go       HTTP: which addresses may be reached, and bounds
//     view.go         what merchants see: status, deliveries, preview
//     metrics.go      what operators see
//     kind/           what a kind of destination is; webhook/, sinks/, meta/, ga4/ … are the kinds
//     filter/         the expressions of filters
package delivery

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"mtagd/partnerapi/delivery/ga4"
	"mtagd/partnerapi/delivery/googleads"
	"mtagd/partnerapi/delivery/kind"
	"mtagd/partnerapi/delivery/linkedin"
	"mtagd/partnerapi/delivery/meta"
	"mtagd/partnerapi/delivery/microsoft"
	"mtagd/partnerapi/delivery/pinterest"
	"mtagd/partnerapi/delivery/sinks"
	"mtagd/partnerapi/delivery/snap"
	"mtagd/partnerapi/delivery/tiktok"
	"mtagd/partnerapi/delivery/webhook"
	"mtagd/store"
)

// Config is what the service is made of.
type Config struct {
	Engine  store.Engine
	Shared  store.Shared // nil: there is one node
	Keys    *Keyring
	Allow   store.Networks // networks that requests may reach besides public addresses
	Log     *slog.Logger
	Now     func() time.Time
	Metrics prometheus.Registerer // nil: they are not exported

	// For tests.
	Kinds    []kind.Kind                      // besides the usual ones
	Roots    *tls.Config                      // nil: the system's
	Backoff  func(failures int) time.Duration // nil: backoff
	Interval time.Duration                    // instead of flushInterval, followInterval, leaseInterval and longer waits of kinds; 0: these
}

// Service delivers events.
type Service struct {
	Config
	kinds   map[string]kind.Kind
	client  *client
	metrics *metrics
	clients *clients
	memory  *semaphore.Weighted // for the events that destinations read by themselves
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	shards map[int]*shard // that run here

	telling sync.Mutex // held while shards are told what has changed, one change after the other
	told    int64      // guarded by telling: see store.Documents, ChangedDestinations
}

// Times of the service.
const (
	flushInterval  = time.Second
	followInterval = time.Second     // for changes that other nodes have made
	leaseInterval  = 5 * time.Second // between attempts to get the lease of a shard
	sharedShards   = 8               // with a database
)

const maxMemory = 12 << 20 // bytes of events that destinations read by themselves

// Open starts to deliver.
func Open(cfg Config) *Service {
	s := &Service{Config: cfg, kinds: map[string]kind.Kind{}, client: newClient(cfg.Allow, cfg.Roots), memory: semaphore.NewWeighted(maxMemory), shards: map[int]*shard{}}
	for _, k := range append(Kinds(), cfg.Kinds...) {
		s.kinds[k.Name] = k
	}
	if s.Backoff == nil {
		s.Backoff = backoff
	}
	s.metrics = newMetrics(cfg.Metrics, s)
	s.clients = &clients{s: s, active: map[store.MerchantID]map[string]bool{}}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.running.Go(func() {
		s.tell(ctx) // notes all destinations; no shard runs yet, and each opens its own
		for i := range s.count() {
			s.running.Go(func() { s.runShard(ctx, i) })
		}
		s.follow(ctx)
	})
	return s
}

// Kinds are the kinds of destinations.
func Kinds() []kind.Kind {
	return append([]kind.Kind{webhook.Kind, meta.Kind, googleads.Kind, ga4.Kind, tiktok.Kind, microsoft.Kind, pinterest.Kind, snap.Kind, linkedin.Kind},
		sinks.Kinds()...)
}

// Close stops: requests under way are cut off, and their events are sent again after the next start.
func (s *Service) Close() error {
	s.stop()
	s.running.Wait()
	s.client.http.CloseIdleConnections()
	return nil
}

func (s *Service) count() int {
	if s.Shared == nil {
		return 1
	}
	return sharedShards
}

// shardOf returns the shard of a merchant.
func (s *Service) shardOf(m store.MerchantID) int {
	return int(hashOf(string(m)) % uint32(s.count()))
}

// hashOf returns the FNV-1a hash of a text.
func hashOf(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum32()
}

// runShard runs a shard as long as its lease is held, again and again.
func (s *Service) runShard(ctx context.Context, i int) {
	for ctx.Err() == nil {
		if err := s.runLeased(ctx, i); err != nil && ctx.Err() == nil {
			s.Log.Error("delivery of events stands still, and is tried again", "shard", i, "error", err)
		}
		_ = store.Sleep(ctx, cmp.Or(s.Interval, leaseInterval)) // the loop looks at ctx
	}
}

// errStopping is why a shard ends while its lease is held.
var errStopping = errors.New("the service stops")

// runLeased runs a shard until it is not this node's any more. It returns at once when another node has it.
func (s *Service) runLeased(ctx context.Context, i int) error {
	if s.Shared == nil {
		return s.runHeld(ctx, i)
	}
	lease, err := s.Shared.Lease(ctx, fmt.Sprintf("delivery/%d", i))
	if err != nil || lease == nil {
		return err
	}
	held, cancel := context.WithCancelCause(lease.Held())
	defer cancel(errStopping)
	defer context.AfterFunc(ctx, func() { cancel(errStopping) })()
	err = s.runHeld(held, i)
	released := lease.Release(context.WithoutCancel(ctx))
	if errors.Is(released, store.ErrLeaseLost) {
		released = nil
	}
	return errors.Join(err, released)
}

func (s *Service) runHeld(held context.Context, i int) error {
	s.telling.Lock()
	before := s.told
	s.telling.Unlock()
	sh, err := s.openShard(held, i)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.shards[i] = sh
	s.mu.Unlock()
	s.telling.Lock()
	s.told = min(s.told, before)
	s.telling.Unlock()
	s.tell(held) // what has changed meanwhile
	sh.run()
	s.mu.Lock()
	delete(s.shards, i)
	s.mu.Unlock()
	return nil
}

// tell tells the shards what has changed since the last call, here and on other nodes. The first call tells of all destinations.
func (s *Service) tell(ctx context.Context) {
	s.telling.Lock()
	defer s.telling.Unlock()
	docs, upTo, err := s.Engine.ChangedDestinations(ctx, s.told)
	if err != nil {
		return // ctx has ended
	}
	for _, doc := range docs {
		d, err := decodeDestination(doc)
		if err != nil {
			s.Log.Error("a destination cannot be read", "merchant", doc.Merchant, "destination", doc.ID, "error", err)
			continue
		}
		s.clients.note(doc.Merchant, doc.ID, s.takes(d))
		s.mu.Lock()
		sh := s.shards[s.shardOf(doc.Merchant)]
		s.mu.Unlock()
		if sh != nil {
			sh.set(doc.Merchant, doc.ID, d)
		}
	}
	s.told = upTo
	s.clients.tend(ctx)
}

// follow tells the shards what other nodes have changed, and which destinations have gone with their merchants.
func (s *Service) follow(ctx context.Context) {
	for store.Sleep(ctx, cmp.Or(s.Interval, followInterval)) == nil {
		s.tell(ctx)
	}
}
