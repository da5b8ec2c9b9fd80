package archive

import (
	"context"
	"runtime"
	"sync"

	"mtagd/store/local/codec"
)

// selectBlocks is how many blocks Select reads at a time.
const selectBlocks = 256

// Select reads all of the merchant's events after a position, up to and including another one. It calls use with those that a
// filter wants, in the order of positions, until use returns an error. Several filters run at the same time, each in a
// goroutine of its own. An event is valid until the filter or use returns. Select passes blocks that cannot be read to
// damaged, and goes on. It calls pace now and then.
func (a *Archive) Select(ctx context.Context, m codec.MerchantKey, after, upTo codec.Position, newFilter func() func(Event) (wanted bool),
	use func(Event) error, damaged func(Damage), pace func()) error {
	selectors := make([]selector, runtime.GOMAXPROCS(0))
	for i := range selectors {
		selectors[i].wants = newFilter()
	}
	for after.Compare(upTo) < 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		blocks, err := a.nextBlocks(m, after, upTo, selectBlocks, damaged)
		if err != nil || len(blocks) == 0 {
			return err
		}
		var run sync.WaitGroup
		for i := range selectors {
			s, from, to := &selectors[i], len(blocks)*i/len(selectors), len(blocks)*(i+1)/len(selectors)
			start := after
			if from > 0 {
				start = blocks[from-1].last
			}
			run.Go(func() { s.run(a, m, blocks[from:to], start, upTo) })
		}
		run.Wait()
		for _, s := range selectors {
			for _, e := range s.found {
				if err := use(e); err != nil {
					return err
				}
			}
			for _, d := range s.damaged {
				damaged(d)
			}
		}
		after = blocks[len(blocks)-1].last
		pace()
	}
	return nil
}

// selector filters the events of some blocks.
type selector struct {
	wants   func(Event) bool
	memory  memory
	found   []Event
	damaged []Damage
}

func (s *selector) run(a *Archive, m codec.MerchantKey, blocks []storedBlock, after, upTo codec.Position) {
	s.found, s.damaged = s.found[:0], nil
	for _, stored := range blocks {
		b, err := a.unpack(&s.memory, stored.blockKey, stored.value)
		copied := false
		if err == nil {
			err = b.each(func(e Event) bool {
				if e.Compare(after) > 0 && e.Compare(upTo) <= 0 && s.wants(e) {
					s.found = append(s.found, e)
					copied = true
				}
				return e.Compare(upTo) < 0
			})
		}
		if copied {
			s.memory.content = nil // the events refer to it
		}
		if err != nil {
			s.damaged = append(s.damaged, Damage{m, after, stored.last, err})
		}
		after = stored.last
	}
}
