package local

import (
	"cmp"
	"context"
	"math"
	"sync/atomic"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
	"mtagd/store/rules"
)

// people implements rules.People.
type people struct {
	*reader
	remover *remover
}

// LinksOf implements rules.People. Without muids it need not read all links of the merchant.
func (p people) LinksOf(ctx context.Context, m store.MerchantKey, who store.Person) (links []store.Link, err error) {
	if len(who.MUIDs) == 0 {
		for _, k := range who.Identifiers {
			some, err := p.journal.LinksOf(ctx, m, k)
			if err != nil {
				return nil, err
			}
			links = append(links, some...)
		}
		return links, nil
	}
	persons := rules.NewPersons(who)
	return p.journal.Links(ctx, m, func(l store.Link) bool { return len(persons.OfLink(l)) > 0 })
}

// EventsOf implements rules.People. An erasure moves the events to the archive, from which Forget removes them, and
// ends before Close closes the files. An answer makes Close wait.
func (p people) EventsOf(ctx context.Context, m store.MerchantKey, who *rules.Persons, begin func(last uint64), use func(e *rules.PersonalEvent, owners, claimed []int) error) (err error) {
	pace := p.remover.pace()
	from := int64(math.MinInt64) // an erasure is of all events
	if begin != nil {
		last := p.journal.Barrier()
		if err := cmp.Or(p.remover.broken(m.ID()), p.remover.archiver.moveTo(ctx, last)); err != nil {
			return err
		}
		begin(last)
	} else {
		var done func()
		if ctx, done, err = p.beginReading(ctx); err != nil {
			return err
		}
		defer done()
		pace, from = func() {}, p.retainedFrom(m.ID())
	}
	return p.eachOf(ctx, m, who, pace, func(event *journal.Event, owners, claimed []int) error {
		if event.Time < from {
			return nil
		}
		tag, _ := codec.SplitSeries(event.Series)
		return use(&rules.PersonalEvent{Event: event.Listed(), Tag: store.TagID(tag), At: event.Position}, owners, claimed)
	})
}

// Forget implements rules.People.
func (p people) Forget(ctx context.Context, m store.MerchantKey, links []store.Link, events []rules.ForgottenEvent) error {
	keys := make([]rank.Key, len(events))
	var remembered []journal.Remembered
	for i, e := range events {
		keys[i] = rank.Key{Time: e.Time.UnixMicro(), Position: e.At}
		if e.EventID != "" {
			remembered = append(remembered, journal.Remembered{Name: e.Name, EventID: e.EventID})
		}
	}
	if err := p.journal.Remove(m, links, remembered); err != nil {
		return err
	}
	return p.remover.removeEvents(ctx, m, keys)
}

// foundAtOnce is how many events eachOf finds in the journal before it passes them on.
const foundAtOnce = 256

// eachOf calls use with those events of a merchant that belong to persons, in the order of receipt, until use returns
// an error, and with those that claimed links lead to (rules.Matcher). It reads all events committed before the call,
// and fails at the end when some are missing. It calls pace now and then. use may take long: no transaction is open.
func (p people) eachOf(ctx context.Context, m store.MerchantKey, who *rules.Persons, pace func(),
	use func(event *journal.Event, owners, claimed []int) error) error {
	all, err := p.expect(ctx, m)
	if err != nil {
		return err
	}
	var read atomic.Uint64
	concerns := func(matcher *rules.Matcher, event *journal.Event) bool {
		if event.Time >= all.from {
			read.Add(1)
		}
		owners, claimed := matcher.Of(event.MUID, event.Raw, event.ByClaim)
		return len(owners)+len(claimed) > 0
	}
	matcher := who.Matcher()
	pass := func(event *journal.Event) error {
		owners, claimed := matcher.Of(event.MUID, event.Raw, event.ByClaim)
		return use(event, owners, claimed)
	}
	f := newFeed(store.FeedQuery{Merchants: []store.MerchantID{m.ID()}}, store.Position{}, store.EndOf(all.upTo), keptForEver)
	var found []journal.Event
	f.use = func(event *journal.Event, _ store.MerchantID) bool {
		if concerns(matcher, event) {
			found = append(found, event.Clone())
		}
		return len(found) < foundAtOnce
	}
	for f.at.Compare(f.end) < 0 {
		if boundary := p.archive.Boundary(); f.nextChunk() <= boundary {
			upTo := store.EndOf(min(boundary, all.upTo))
			if err := p.selectArchived(ctx, m, f.at, upTo, who, concerns, pass, pace); err != nil {
				return err
			}
			f.moveTo(upTo)
			continue
		}
		found, f.events, f.stopped = found[:0], 0, false
		if err := cmp.Or(ctx.Err(), p.feedNext(ctx, f)); err != nil {
			return err
		}
		for i := range found {
			if err := pass(&found[i]); err != nil {
				return err
			}
		}
		pace()
	}
	all.read = read.Load()
	return all.check()
}

// selectArchived passes the events of the archive that concern somebody.
func (p people) selectArchived(ctx context.Context, m store.MerchantKey, after, upTo store.Position, who *rules.Persons,
	concerns func(*rules.Matcher, *journal.Event) bool, pass func(*journal.Event) error, pace func()) error {
	err := p.archive.Select(ctx, m, after, upTo, func() func(archive.Event) bool {
		matcher := who.Matcher()
		return func(stored archive.Event) bool {
			event, err := journal.DecodeBody(m, stored.Position, stored.Body)
			return err == nil && concerns(matcher, &event)
		}
	}, func(stored archive.Event) error {
		event, _ := journal.DecodeBody(m, stored.Position, stored.Body) // as above, where it was decoded
		return pass(&event)
	}, p.remover.damaged, pace)
	return unread(ctx, m, err)
}
