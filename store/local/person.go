package local

import (
	"context"
	"errors"
	"sync/atomic"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/rules"
)

// resolvePerson returns the hashes of a person who is named by one muid or one identifier.
func (e *engine) resolvePerson(ctx context.Context, m codec.MerchantKey, id store.Identity, withClaimed bool) (p store.Person, err error) {
	if err := rules.CheckPerson(&id); err != nil {
		return p, err
	}
	var links []store.Link
	for _, k := range id.Keys() {
		if links, err = e.journal.LinksOf(ctx, m, k); err != nil {
			return p, err
		}
	}
	return rules.PersonOf(&id, links, withClaimed), nil
}

// foundAtOnce is how many events eachOf finds in the journal before it passes them on.
const foundAtOnce = 256

// eachOf calls use with those events of a merchant that belong to persons, in the order of receipt, until use returns an error, and
// with those that claimed links lead to (rules.Matcher). It reads all events that were committed before the call, and fails at the end
// when some of them were not found. pace is called now and then. No transaction is open while use runs, which may take long.
func (e *engine) eachOf(ctx context.Context, m codec.MerchantKey, who *rules.Persons, pace func(),
	use func(event *journal.Event, owners, claimed []int) error) error {
	all, err := e.expect(ctx, m)
	if err != nil {
		return err
	}
	after, upTo := codec.Position{}, all.upTo
	var archived atomic.Uint64 // events that were read
	matcher := who.Matcher()
	one := func(event *journal.Event) error {
		if owners, claimed := matcher.Of(event.MUID, event.Raw, event.ByClaim); len(owners)+len(claimed) > 0 {
			return use(event, owners, claimed)
		}
		return nil
	}
	concerns := func(matcher *rules.Matcher, event *journal.Event) bool {
		owners, claimed := matcher.Of(event.MUID, event.Raw, event.ByClaim)
		return len(owners)+len(claimed) > 0
	}
	for {
		boundary := min(e.archive.Boundary(), upTo)
		if err := e.archive.Select(ctx, m, after, codec.EndOf(boundary), func() func(archive.Event) bool {
			matcher := who.Matcher()
			return func(stored archive.Event) bool {
				event, err := journal.DecodeBody(m, stored.Position, stored.Body)
				if err == nil && event.Time >= all.from {
					archived.Add(1)
				}
				return err == nil && concerns(matcher, &event)
			}
		}, func(stored archive.Event) error {
			event, err := journal.DecodeBody(m, stored.Position, stored.Body)
			if err != nil {
				return ofEvents("archive/", err)
			}
			return one(&event)
		}, e.remover.damaged, pace); err != nil {
			return unread(ctx, m, err)
		}
		if after = codec.EndOf(max(boundary, after.Seq)); after.Seq >= upTo {
			break
		}
		var found []journal.Event
		err := e.journal.Scan(ctx, after.Seq+1, upTo, journal.NewMerchantSet(m), func(seq uint64, events []journal.Event) bool {
			if e.hasMoved(after.Seq + 1) {
				return false
			}
			for i := range events {
				event := &events[i]
				if event.Merchant != m {
					continue
				}
				if event.Time >= all.from {
					all.read++
				}
				if concerns(matcher, event) {
					found = append(found, event.Clone())
				}
			}
			after = codec.EndOf(seq)
			pace()
			return len(found) < foundAtOnce
		})
		for i := range found {
			if err := one(&found[i]); err != nil {
				return err
			}
		}
		damaged, isDamaged := errors.AsType[journal.DamagedChunks](err)
		switch {
		case e.hasMoved(after.Seq + 1): // the next round reads it from the archive
		case err == nil && len(found) >= foundAtOnce:
		case isDamaged:
			after = codec.EndOf(damaged[0].Seq)
		case err != nil:
			return err
		default:
			after = codec.EndOf(upTo)
		}
	}
	all.read += archived.Load()
	return all.check()
}

// linksAtOnce is how many links eachLinkOf finds before it passes them on.
const linksAtOnce = 4096

// eachLinkOf calls use with the links of persons. No transaction is open while use runs.
func (e *engine) eachLinkOf(ctx context.Context, m codec.MerchantKey, p *rules.Persons, use func(store.Link) error) error {
	var next []byte
	for {
		links, from, err := e.journal.Links(ctx, m, next, linksAtOnce, func(l store.Link) bool { return len(p.OfLink(l)) > 0 })
		if err != nil {
			return err
		}
		for _, l := range links {
			if err := use(l); err != nil {
				return err
			}
		}
		if next = from; next == nil {
			return nil
		}
	}
}

// PersonalData implements store.Persons.
func (e *engine) PersonalData(ctx context.Context, id store.MerchantID, named store.Identity, withClaimed bool, use func(*store.PersonalRecord) error) (claimed int, err error) {
	m, err := codec.NewMerchantKey(id)
	if err != nil {
		return 0, err
	}
	who, err := e.resolvePerson(ctx, m, named, withClaimed)
	if err != nil || e.IsRemoved(id) {
		return 0, err
	}
	if !e.beginReading() {
		return 0, store.Unavailable("the service is stopping")
	}
	defer e.verifying.RUnlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.opened, cancel)()
	p := rules.NewPersons(who)
	if err := e.eachLinkOf(ctx, m, p, func(l store.Link) error { return use(&store.PersonalRecord{Link: l}) }); err != nil {
		return 0, err
	}
	from := e.retainedFrom(id)
	err = e.eachOf(ctx, m, p, func() {}, func(event *journal.Event, owners, _ []int) error {
		if event.Time < from {
			return nil
		}
		if len(owners) == 0 {
			claimed++
			return nil
		}
		tag, _ := codec.SplitSeries(event.Series)
		listed := event.Listed()
		return use(&store.PersonalRecord{Event: &listed, Tag: store.TagID(tag)})
	})
	return claimed, err
}
