package rank

import (
	"context"
	"errors"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/space"
)

// Start starts the goroutine that applies pushed events and merges, and the sweeper.
func (x *Index) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	x.stopSweeper = cancel
	x.sweepSoon()
	x.sweeper.Go(func() { x.runSweeper(ctx) })
	go x.run()
}

// run applies what is pushed. Merges run in another goroutine meanwhile, one after the other.
func (x *Index) run() {
	defer close(x.done)
	ticker := time.NewTicker(x.mergeInterval)
	defer ticker.Stop()
	m := mergeState{x: x, ended: make(chan error, 1)}
	for {
		select {
		case <-ticker.C:
			m.due = true
		case err := <-m.ended:
			m.end(err)
		case r := <-x.merges:
			m.requested = append(m.requested, r)
		case b, open := <-m.queue():
			if !open {
				m.finish()
				return
			}
			x.applyBatch(b)
		}
		m.startIfDue()
	}
}

// mergeState is what the applying goroutine knows about the running merge and the next one.
type mergeState struct {
	x       *Index
	due     bool       // the ticker has ticked since the last merge began
	running bool       // a merge is running
	ended   chan error // the result of the running merge

	requested []chan error // that wait for the next merge
	waiting   []chan error // that wait for the running one
}

// queue returns the queue to apply from. It is nil, and blocks, while too much is in memory for the running merge.
func (m *mergeState) queue() <-chan committedBatch {
	if m.running && m.x.entries >= 2*m.x.mergeEntries {
		return nil
	}
	return m.x.queue
}

// startIfDue starts a merge when one is due or requested, or, unless the disk is full, much is in memory.
func (m *mergeState) startIfDue() {
	x := m.x
	if err := x.Failure(); err != nil {
		m.answer(err)
		return
	}
	retry := len(x.unmerged.trees) > 0
	due := m.due || x.entries >= x.mergeEntries && !retry || len(m.requested) > 0
	if m.running || !due {
		return
	}
	if !retry {
		x.unmerged = x.freeze()
		m.waiting, m.requested = m.requested, nil
	}
	m.running, m.due = true, false
	events := x.unmerged
	go func() { m.ended <- x.merge(events) }()
}

// end notes that the running merge has ended. When the disk was full, the merge is retried as long as there is space in
// memory; after any other error the index fails.
func (m *mergeState) end(err error) {
	x := m.x
	m.running = false
	if err == nil {
		x.unmerged = frozenEvents{}
		m.answerWaiting(nil)
		return
	}
	m.answer(err) // also those that wait for the next merge: that would not begin before there is space
	if space.IsFull(err) && x.entries < maxUnmerged {
		x.log.Error("the index waits for disk space", "error", err)
		return
	}
	x.fail(err)
}

// answer answers all requests for a merge.
func (m *mergeState) answer(err error) {
	m.waiting, m.requested = append(m.waiting, m.requested...), nil
	m.answerWaiting(err)
}

func (m *mergeState) answerWaiting(err error) {
	for _, r := range m.waiting {
		r <- err
	}
	m.waiting = nil
}

// finish waits for the running merge, and merges the rest. When the disk is full, the next start replays it.
func (m *mergeState) finish() {
	defer func() { m.answer(errClosed) }()
	if m.running {
		m.end(<-m.ended)
	}
	if m.x.Failure() == nil && len(m.x.unmerged.trees) == 0 {
		m.end(m.x.merge(m.x.freeze()))
	}
}

// Merge merges all events that were applied before the call: StoredUpTo covers them then. Call it between Start and Close.
func (x *Index) Merge(ctx context.Context) error {
	merged := make(chan error, 1)
	select {
	case x.merges <- merged:
	case <-ctx.Done():
		return ctx.Err()
	case <-x.done:
		return errClosed
	}
	select {
	case err := <-merged:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errClosed = errors.New("the event index is closed")

// runSweeper deletes what merges and removals have taken out of the stored trees, until ctx ends. The next start goes on.
func (x *Index) runSweeper(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.unswept:
			if err := x.sweep(ctx); err != nil && ctx.Err() == nil {
				x.log.Error("index.db cannot be swept, and takes more space", "error", err)
				x.reportDamage(err)
			}
		}
	}
}

// sweepSoon makes the sweeper look for nodes to delete.
func (x *Index) sweepSoon() {
	select {
	case x.unswept <- struct{}{}:
	default:
	}
}

// sweep deletes all freed subtrees, in small transactions.
func (x *Index) sweep(ctx context.Context) error {
	var freed []freedSubtree
	if err := x.db.View(func(tx *bolt.Tx) (err error) {
		freed, err = loadFreed(tx)
		return err
	}); err != nil || len(freed) == 0 {
		return err
	}
	w := merger{x: x, ctx: ctx, budget: sweepBudget, commit: (*bolt.Tx).Commit}
	return w.run(func() error {
		for _, f := range freed {
			if err := w.deleteSubtree(f.m, f.id, f.height); err != nil {
				return err
			}
			if err := w.tx.Bucket(bucketFreed).Delete(nodeKey(f.m, f.id)); err != nil {
				return err
			}
		}
		return nil
	})
}

// progress lets readers wait until the trees have the events of a chunk.
type progress struct {
	mu      sync.Mutex
	applied uint64        // the events of chunks up to this seq are in the trees
	err     error         // why nothing is applied any more
	changed chan struct{} // closed when applied or err changes; nil while no one waits
}

// wait returns nil when the chunks up to seq are applied, and an error when ctx ends or applying has failed.
func (p *progress) wait(ctx context.Context, seq uint64) error {
	for {
		changed, err := p.reached(seq)
		if changed == nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reached returns a channel that is closed with the next change; nil when there is nothing to wait for.
func (p *progress) reached(seq uint64) (changed chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.applied >= seq || p.err != nil {
		return nil, p.err
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed, nil
}

// note records that the chunks up to seq are applied, or why applying has stopped. It keeps only the first error.
func (p *progress) note(seq uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied = max(p.applied, seq)
	if p.err == nil {
		p.err = err
	}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}
