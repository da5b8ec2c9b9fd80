package local

import (
	"context"
	"errors"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/person"
)

// resolvePerson returns the hashes of a person who is named by one muid or one identifier.
func (e *engine) resolvePerson(ctx context.Context, m store.MerchantID, id store.Identity) (p store.Person, err error) {
	if err := person.Check(&id); err != nil {
		return p, err
	}
	muid := id.MUID
	if muid == "" {
		p.Identifiers = append(p.Identifiers, id.Keys()...)
		if muid, err = e.journal.Resolve(ctx, m, id); err != nil {
			return p, err
		}
	}
	if muid != "" {
		p.MUIDs = append(p.MUIDs, store.MUIDKey(muid))
	}
	return p, nil
}

// foundAtOnce is how many events eachOf finds in the journal before it passes them on.
const foundAtOnce = 256

// eachOf calls use with those events of a merchant up to a chunk that belong to persons, in the order of receipt, until use
// returns an error. Events that cannot be read are left out. pace is called now and then. No transaction is open while use
// runs, which may take long.
func (e *engine) eachOf(ctx context.Context, m codec.MerchantKey, who *person.Persons, upTo uint64, pace func(), use func(event *journal.Event, owners []int) error) error {
	after := codec.Position{}
	matcher := who.Matcher()
	one := func(event *journal.Event) error {
		if owners := matcher.Of(event.MUID, event.Raw); len(owners) > 0 {
			return use(event, owners)
		}
		return nil
	}
	for {
		boundary := min(e.archive.Boundary(), upTo)
		if err := e.archive.Select(ctx, m, after, codec.EndOf(boundary), func() func(archive.Event) bool {
			matcher := who.Matcher()
			return func(stored archive.Event) bool {
				event, err := journal.DecodeBody(m, stored.Position, stored.Body)
				return err == nil && len(matcher.Of(event.MUID, event.Raw)) > 0
			}
		}, func(stored archive.Event) error {
			event, err := journal.DecodeBody(m, stored.Position, stored.Body)
			if err != nil {
				return ofEvents("archive/", err)
			}
			return one(&event)
		}, e.life.damaged, pace); err != nil {
			return err
		}
		if after = codec.EndOf(max(boundary, after.Seq)); after.Seq >= upTo {
			return nil
		}
		var found []journal.Event
		err := e.journal.Scan(ctx, after.Seq+1, upTo, func(seq uint64, events []journal.Event) bool {
			if e.hasMoved(after.Seq + 1) {
				return false
			}
			for i := range events {
				if event := &events[i]; event.Merchant == m && len(matcher.Of(event.MUID, event.Raw)) > 0 {
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
		default:
			return err
		}
	}
}

// linksAtOnce is how many links linksOf finds before it passes them on.
const linksAtOnce = 4096

var errMoreLinks = errors.New("there are more links")

// linksOf calls use with the links of persons. No transaction is open while use runs.
func (e *engine) linksOf(ctx context.Context, m codec.MerchantKey, p *person.Persons, use func(*store.PersonalRecord) error) error {
	var from store.IdentityKey
	for {
		var found []store.PersonalRecord
		err := e.journal.Links(ctx, m, from, func(k store.IdentityKey, muid []byte) error {
			if len(p.OfLink(k, muid)) == 0 {
				return nil
			}
			if len(found) == linksAtOnce {
				from = k
				return errMoreLinks
			}
			found = append(found, store.PersonalRecord{Identifier: k, MUID: store.MUID(muid)})
			return nil
		})
		for i := range found {
			if err := use(&found[i]); err != nil {
				return err
			}
		}
		if !errors.Is(err, errMoreLinks) {
			return err
		}
	}
}

// PersonalData implements store.Persons.
func (e *engine) PersonalData(ctx context.Context, id store.MerchantID, named store.Identity, use func(*store.PersonalRecord) error) error {
	m, err := codec.NewMerchantKey(id)
	if err != nil {
		return err
	}
	who, err := e.resolvePerson(ctx, id, named)
	if err != nil || e.IsRemoved(id) {
		return err
	}
	if !e.beginReading() {
		return store.Unavailable("the service is stopping")
	}
	defer e.verifying.RUnlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.opened, cancel)()
	p := person.New(who)
	if err := e.linksOf(ctx, m, p, use); err != nil {
		return err
	}
	from := e.keptFrom(id)
	return e.eachOf(ctx, m, p, e.journal.Committed(), func() {}, func(event *journal.Event, _ []int) error {
		if event.Time < from {
			return nil
		}
		tag, _ := codec.SplitSeries(event.Series)
		listed := event.Listed()
		return use(&store.PersonalRecord{Event: &listed, Tag: store.TagID(tag)})
	})
}
