// Package rank is the embedded engine's index of events. It counts the events that a query selects, and finds those of
// one page by their rank, which is their place among the selected events in the order of time. The cost does not depend
// on the number of events or the depth of the page. The package does not know the journal, and of an event it knows only
// position, time and series.
//
// Each merchant has a stored tree, and up to two trees in memory with the events since. All are counted B+ trees
// (tree.go). One goroutine applies events to the trees in memory, in the order of receipt. Every few seconds a merge
// writes the events in memory into the stored trees. After a crash, package local replays the events that the stored
// trees do not cover, so that none is lost and none is counted twice.
//
//	index.go       Index: open, replay, apply, schedule merges, close
//	progress.go    lets readers wait until events are applied
//	merge.go       writes events into the stored trees, in one or more transactions
//	query.go       pages of a selection, and candidates where the counts do not suffice
//	selection.go   a query in the terms of the index
//	runs.go        collects runs of ranks, from one tree or several
//	reader.go      one merchant's trees as of one moment; counts events before a key
//	tree.go        the counted tree in memory
//	dictionary.go  numbers a merchant's series
//	nodefile.go    reads and writes the values in index.db
//	nodearena.go   the memory of decoded nodes
//
// # What is in index.db
//
// A bbolt file of format "1". Nodes are replaced all the time, and bbolt reuses their pages. Badger would have to compact
// them away, and requests would wait for that. Buckets:
//
//	meta      "format" → version
//	          "covered" → seq: the stored trees have the events of chunks up to it (8 bytes, big endian)
//	nodes     merchant, node id (8 bytes, big endian) → node of the merchant's stored tree
//	roots     merchant → root record of that tree
//	replaced  merchant → number, ids (uvarints): the nodes that the last merge replaced and has not deleted yet
//
// A merchant is the 16 bytes of its UUID. Each node, root record and list of ids is sealed: it ends with its CRC-32C
// (4 bytes, big endian), as bbolt has no checksums.
//
// A root record: next id, root id, covered (uvarints), first key, counts of the root, number of series (uvarint), series
// (each length-prefixed).
//
// A leaf: 0, number of entries, entries. An inner node: 1, number of children, children. The numbers are uvarints. Keys
// are differences to the previous key.
//
//	entry:   key, series (uvarint)
//	child:   key, id (uvarint), counts
//	counts:  number of series (uvarint), for each: series as difference to the previous one (uvarint),
//	         events (uvarint)
//	key:     time (varint), seq (varint), index (uvarint, not a difference)
package rank
