// Package rank is the embedded engine's index of events. It counts the events that a query selects, and finds those of
// one page by their rank, which is their place among the selected events. The cost does not depend on the number of
// events, the depth of the page, or how many names visitors have made up. The package does not know the journal, and of an
// event it knows only position, time, series and size.
//
// Each merchant has a stored tree, and up to two trees in memory with the events since. All are counted B+ trees
// (tree.go), ordered by time, with counts by series (a tag and a name, of bots or of others). They suffice for merchants
// with up to 256 series, and 64 of bots. The events of further series are counted only by tag. They are also in runs, which
// are counted trees in the order of names (names.go).
//
// One goroutine applies events to the trees in memory, in the order of receipt. Every few seconds a merge writes the events
// in memory into the stored trees. Another goroutine deletes what is no longer in them. After a crash, package local replays
// the events that the stored trees do not cover, so that none is lost and none is counted twice. Removing events changes the
// stored trees as a merge does. Readers take a snapshot of the trees in memory and of the stored ones. A node that a reader
// may have never changes: it is copied first.
//
// # What is in index.db
//
// A bbolt file of format "5"; one of another format is rebuilt. Nodes are replaced all the time, and bbolt reuses their
// pages. Badger would have to compact them away, and requests would wait for that. Buckets:
//
//	meta      "format" → version
//	          "opening" → the number of SetOpening (8 bytes, big endian)
//	          "covered" → seq: the stored trees have the events of chunks up to it (8 bytes, big endian)
//	          "roots" → the number of root records, and the sum of the CRC-64 (ECMA) of each key and record, modulo 2^64
//	          (8 bytes each, big endian)
//	nodes     merchant, node id (8 bytes, big endian) → node of one of the merchant's stored trees
//	roots     merchant → root record of these trees
//	freed     merchant, node id (8 bytes, big endian) → height (1 byte): a node that a removal took out of a tree with all
//	          below it, or that was replaced (0: only this node), and that has not been deleted yet
//
// A merchant is the 16 bytes of its UUID. bbolt has no checksums. So each node and record is sealed: it ends with the
// CRC-32C of its key and itself (4 bytes, big endian). In the bucket meta, all but "format" are sealed too. Damage that
// hides a root record, or brings back an earlier one, is found by "roots" when the file is opened.
//
// A root record: next id, covered (uvarints), root, number of series (uvarint), series (each length-prefixed), number of
// runs (uvarint), runs (least and greatest key, both without name and as difference to zero; root). A root has the form of a
// child; its id is 0 when the tree has no events. Series are numbered from 1, in this order; the first in the record is
// empty. An overflow series has a tag and an empty name. A series of bots has a mark behind its name (codec.AppendSeries).
//
// A leaf: 0, number of entries, entries. An inner node: 1, number of children, children. In a run, 2 and 3. The numbers are
// uvarints. Keys are differences to the previous key.
//
//	entry:   key, series (uvarint), size of the event (uvarint; codec.Event; 0 in a run)
//	child:   key, id (uvarint), bytes: the sum of the sizes below (uvarint), counts
//	counts:  number of series (uvarint), for each: series as difference to the previous one (uvarint),
//	         events (uvarint)
//	key:     in a run: how many bytes of the previous name it shares (uvarint), the rest of the name (length-prefixed);
//	         time (varint), seq (varint), index (uvarint, not a difference)
package rank
