package rank

import (
	"context"
	"sync"
)

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
