package local

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/journal"
	"mtagd/store/rules"
)

// Links and event_ids that damage has cost are written again in the background, from the events that have them. Until
// then, DIR/relink is there, with the ranges of keys in which some were lost (badgerdb.Range). A look-up in a range that finds nothing fails with KindUnavailable, because the key may be lost:
// else an event would be recorded twice, or get another muid.
//
// Events do not say the source of a link, so it becomes a claimed one: the next event with the merchant's secret makes it a
// trusted one. Lost for good are former links, and the links of which no event is left, such as those of /id. An identifier
// that was linked again may lead to its former muid, if an older table has that.
const relinkFile = "relink"

// keysLost notes that links and event_ids may be lost, with all ranges of their keys, and that removed ones may be back.
func (h *healer) keysLost(lost []badgerdb.Range) error {
	return cmp.Or(writeSealed(h.dir, relinkFile, lost), h.repeatErasures())
}

// readLostKeys returns the ranges that DIR/relink has.
func readLostKeys(dir string, log *slog.Logger) (lost []badgerdb.Range) {
	if err := readSealed(dir, relinkFile, &lost); err != nil {
		log.Warn("the file relink cannot be read: a lost event_id that comes again may be recorded twice", "error", err)
	}
	return lost
}

// relink writes the links and event_ids of all events again that are missing.
func (h *healer) relink() error {
	path := filepath.Join(h.dir, relinkFile)
	if !durable.Exists(path) {
		return nil
	}
	if err := h.archiver.moveTo(h.opened, h.journal.Barrier()); err != nil { // newer events have theirs
		return err
	}
	merchants, err := h.archive.Merchants()
	if err != nil {
		return err
	}
	written := 0
	for _, m := range merchants {
		n, err := h.relinkOf(m)
		if err != nil {
			return err
		}
		written += n
	}
	h.log.Info("lost links and event_ids were written again from the events that have them", "written", written)
	h.journal.Refilled()
	h.remover.runner.Wake() // erasures that needed a list of links have failed
	return errors.Join(os.Remove(path), durable.SyncPath(h.dir))
}

// relinkedAtOnce is how many events' links are in memory at a time. The events of a merchant with more are read several times.
const relinkedAtOnce = 4_000_000

func (h *healer) relinkOf(m store.MerchantKey) (written int, err error) {
	h.remover.busy.Lock() // an erasure must not miss what is written
	defer h.remover.busy.Unlock()
	if h.control.IsRemoved(m.ID()) {
		return 0, nil
	}
	has, err := h.archive.Usage(m)
	if err != nil {
		return 0, err
	}
	pace := h.remover.pace()
	remembered := uint64(h.now().Add(-store.DedupeWindow).UnixMicro()) // chunks are numbered by time
	parts := int(1 + has.Events/relinkedAtOnce)
	for part := range parts {
		var reader rules.EventReader
		r := h.journal.NewRefill(m)
		if err := h.archive.Since(h.opened, m, store.Position{}, func(events []archive.Event) error {
			for _, stored := range events {
				event, err := journal.DecodeBody(m, stored.Position, stored.Body)
				if err != nil { // its keys stay lost, but look-ups must not fail for ever
					h.log.Error("the links and the event_id of an event cannot be written again", "error", ofEvents("archive/", err))
					continue
				}
				identifiers, eventID := reader.Keys(event.Raw)
				for _, k := range identifiers {
					if !event.ByClaim && int(k[0])%parts == part {
						err = cmp.Or(err, r.Link(k, event.MUID))
					}
				}
				if eventID != "" && int(stored.Seq%uint64(parts)) == part && stored.Seq > remembered {
					_, name := codec.SplitSeries(event.Series)
					err = cmp.Or(err, r.Remember(journal.Remembered{Name: string(name), EventID: eventID}, time.UnixMicro(int64(stored.Seq))))
				}
				if err != nil {
					return err
				}
			}
			pace()
			return nil
		}, h.remover.damaged); err != nil {
			return written, err
		}
		n, err := r.Write()
		if written += n; err != nil {
			return written, err
		}
	}
	return written, nil
}
