package rank

// recentEvents is a merchant's events in memory.
type recentEvents struct {
	covered uint64 // of the stored tree; a merge updates it a moment after its commit
	series  *dictionary
	active  eventsInMemory // takes new events
	frozen  eventsInMemory // is being merged
}

// eventsInMemory is a merchant's events that are not stored yet.
type eventsInMemory struct {
	root  child // of their tree
	names run   // those of overflow series (names.go)
}

// snapshot returns what is in memory now, for readers. The caller holds Index.mu.
func (r *recentEvents) snapshot() *recentEvents {
	return &recentEvents{r.covered, r.series, r.active.snapshot(), r.frozen.snapshot()}
}

func (e *eventsInMemory) snapshot() eventsInMemory {
	return eventsInMemory{e.root.share(), run{e.names.root.share(), e.names.from, e.names.to}}
}
