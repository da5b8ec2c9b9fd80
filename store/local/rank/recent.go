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
