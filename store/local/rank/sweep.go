package rank

import (
	"context"

	bolt "go.etcd.io/bbolt"
)

// sweeper is the goroutine that deletes what merges and removals have taken out of the stored trees.
type sweeper struct {
	wake   chan struct{} // gets a value after each merge
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
}

func newSweeper() sweeper { return sweeper{wake: make(chan struct{}, 1), done: make(chan struct{})} }

func (x *Index) startSweeper() {
	ctx, cancel := context.WithCancel(context.Background())
	s := &x.sweeper
	s.cancel = cancel
	s.notify()
	go func() {
		defer close(s.done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
				if err := x.sweep(ctx); err != nil && ctx.Err() == nil {
					x.log.Error("index.db cannot be swept, and takes more space", "error", err)
					x.reportDamage(err)
				}
			}
		}
	}()
}

// stop ends the running sweep. The next start continues it.
func (s *sweeper) stop() {
	s.cancel()
	<-s.done
}

// notify makes the goroutine look for nodes to delete.
func (s *sweeper) notify() {
	select {
	case s.wake <- struct{}{}:
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
	w := newMerger(x.db, sweepBudget, (*bolt.Tx).Commit)
	w.ctx = ctx
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
