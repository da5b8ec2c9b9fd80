package rank

import (
	"context"
	"errors"
	"log/slog"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// sweeper deletes in the background what merges and removals have taken out of the stored trees, in small transactions.
type sweeper struct {
	db     *boltfile.DB // index.db
	log    *slog.Logger
	commit func(*bolt.Tx) error // (*bolt.Tx).Commit, except in tests
	budget int                  // of each transaction, in entries
	wake   chan struct{}        // gets a value after each merge
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended

	onDamage func(error) // of Index.OnDamage
}

func newSweeper(db *boltfile.DB, log *slog.Logger) *sweeper {
	return &sweeper{db: db, log: log, commit: (*bolt.Tx).Commit, budget: sweepBudget,
		wake: make(chan struct{}, 1), cancel: func() {}, done: make(chan struct{})}
}

func (s *sweeper) start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.notify()
	go func() {
		defer close(s.done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
				s.report(ctx, s.sweep(ctx))
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

// report logs an error, unless stop caused it, and reports damage of the file.
func (s *sweeper) report(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	s.log.Error("index.db cannot be swept, and takes more space", "error", err)
	if errors.Is(err, codec.ErrCorrupt) && s.onDamage != nil {
		s.onDamage(err)
	}
}

// sweep deletes all freed subtrees.
func (s *sweeper) sweep(ctx context.Context) error {
	var freed []freedSubtree
	if err := s.db.View(func(tx *bolt.Tx) (err error) {
		freed, err = loadFreed(tx)
		return err
	}); err != nil || len(freed) == 0 {
		return err
	}
	w := newMerger(s.db, s.budget, s.commit)
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
