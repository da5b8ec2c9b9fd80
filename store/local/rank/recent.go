package rank

import "mtagd/store/local/codec"

// recentEvents is a merchant's events in memory.
type recentEvents struct {
	covered uint64 // of the stored tree; a merge updates it a moment after its commit
	series  *dictionary
	active  eventsInMemory // takes new events
	frozen  eventsInMemory // is being merged
}

// eventsInMemory is a merchant's events that are not stored yet.
type eventsInMemory struct {
	root     child      // of their tree
	segments []*segment // those of overflow series
}

// add adds an event to the active tree. The caller holds Index.mu.
func (r *recentEvents) add(e *codec.Event, series uint32) error {
	return r.active.root.insertAtRoot(entry{Key{e.Time, e.Position}, series, e.Size}, nil)
}

// segmentsWith returns what the active segments of these merchants are when the events are added to them.
func segmentsWith(events map[*recentEvents][]named) (map[*recentEvents][]*segment, error) {
	if events == nil {
		return nil, nil
	}
	segments := make(map[*recentEvents][]*segment, len(events))
	for r, added := range events {
		var err error
		if segments[r], err = addToMemory(r.active.segments, added); err != nil {
			return nil, err
		}
	}
	return segments, nil
}

// newNamed returns an event of an overflow series.
func newNamed(e *codec.Event, series uint32) named {
	_, name := codec.SplitSeries(e.Series)
	return named{string(name), entry{Key: Key{e.Time, e.Position}, series: series}}
}
