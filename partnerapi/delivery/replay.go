package delivery

import (
	"slices"

	"mtagd/store"
)

// beginReplay notes what a replay sends again.
func (r *runner) beginReplay(replay Replay) {
	sh := r.sh
	if replay.DeadLetters || replay.Discard || replay.Delivery != "" {
		r.opening++
		sh.runners.Go(func() {
			for !sh.replayDeliveries(r, replay) && sh.sleep(flushInterval) {
			}
		})
		return
	}
	r.st.Replays = append(slices.Clone(r.st.Replays), replaying{Of: replay.ID, UpTo: replay.UpTo, From: replay.From, To: replay.To})
	r.noteBegun()
}

// noteBegun notes that all replays up to the last one have begun, when that is so.
func (r *runner) noteBegun() {
	if r.opening == 0 {
		r.st.Replayed = r.begun
	}
}

// replayDeliveries begins to replay the events of dead letters or of one delivery, or discards the dead letters. It returns
// false when it must be tried again.
func (sh *shard) replayDeliveries(r *runner, replay Replay) (begun bool) {
	kinds := []store.DocumentKind{store.DeadLetters}
	if replay.Delivery != "" {
		kinds = append(kinds, store.Deliveries)
	}
	failed := sh.flush(sh.ctx) // the replay must find the deliveries that are not written yet
	var ranges []replaying
	var gone []store.Document
	for _, kind := range kinds {
		docs, err := sh.s.deliveries(sh.ctx, kind, r.merchant, r.id)
		if failed == nil {
			failed = err
		}
		for _, d := range docs {
			if replay.Delivery != "" && d.ID != replay.Delivery {
				continue
			}
			if !replay.Discard {
				ranges = append(ranges, replaying{Of: replay.ID, After: d.After, UpTo: d.UpTo})
			}
			if d.State == Dead {
				gone = append(gone, store.Document{Kind: kind, Merchant: r.merchant, ID: r.id + "/" + d.ID})
			}
		}
	}
	if failed != nil {
		sh.s.Log.Warn("a replay cannot begin yet", "destination", r.id, "error", failed)
		return false
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r.st.Replays = append(slices.Clone(r.st.Replays), ranges...)
	r.opening--
	r.noteBegun()
	r.dropped = append(r.dropped, gone...)
	r.st.Letters = max(0, r.st.Letters-len(gone))
	r.markDirty()
	r.kick()
	return true
}

// forget deletes what is stored of a destination that was deleted. The state goes too, so openShard finds what a kill has
// left.
func (sh *shard) forget(m store.MerchantID, id string) {
	s, ctx := sh.s, sh.ctx
	sh.flushing.Lock() // a flush may be about to write it
	defer sh.flushing.Unlock()
	gone := []store.Document{{Kind: store.DeliveryStates, Merchant: m, ID: id}}
	for _, kind := range []store.DocumentKind{store.Deliveries, store.DeadLetters} {
		all, err := s.deliveries(ctx, kind, m, id)
		if err != nil {
			s.Log.Warn("deliveries of a destination that was deleted stay until the next start", "error", err)
			return
		}
		for _, d := range all {
			gone = append(gone, store.Document{Kind: kind, Merchant: m, ID: id + "/" + d.ID})
		}
	}
	if err := s.Engine.PutDocuments(ctx, gone); err != nil {
		s.Log.Warn("deliveries of a destination that was deleted stay", "error", err)
	}
}
