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
	err := sh.flush(sh.ctx) // the replay must find the deliveries that are not written yet
	var all []Delivery
	if err == nil {
		all, err = sh.s.deliveries(sh.ctx, r.merchant, r.id)
	}
	if err != nil {
		sh.s.Log.Warn("a replay cannot begin yet", "destination", r.id, "error", err)
		return false
	}
	var ranges []replaying
	var gone []store.Document
	for _, d := range all {
		if wanted := d.ID == replay.Delivery || replay.Delivery == "" && d.State == Dead; !wanted {
			continue
		}
		if !replay.Discard {
			ranges = append(ranges, replaying{Of: replay.ID, After: d.After, UpTo: d.UpTo})
		}
		if d.State == Dead {
			gone = append(gone, d.document(r.merchant, r.id))
		}
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
	all, err := s.deliveries(ctx, m, id)
	if err != nil {
		s.Log.Warn("deliveries of a destination that was deleted stay until the next start", "error", err)
		return
	}
	for _, d := range all {
		gone = append(gone, d.document(m, id))
	}
	if err := s.Engine.PutDocuments(ctx, gone); err != nil {
		s.Log.Warn("deliveries of a destination that was deleted stay", "error", err)
	}
}
