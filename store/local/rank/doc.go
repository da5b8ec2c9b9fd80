// Package rank is the embedded engine's index of events. It counts the events that a query selects, and finds those of
// one page by their rank, which is their place among the selected events. The cost does not depend on the number of
// events, the depth of the page, or how many names visitors have made up. The package does not know the journal, and of an
// event it knows only position, time, series and size.
//
// Each merchant has a stored tree, and up to two trees in memory with the events since. All are counted B+ trees
// (tree.go), ordered by time, with counts by series (a tag and a name, of bots or of others). They suffice for merchants with
// up to 256 series, and 64 of bots. The events of further series are counted only by tag, and are also in segments. A segment never changes. It is ordered
// by name, and can count its events below a name within any time range (segment.go). Small segments are merged into
// larger ones, in memory as well as stored.
//
// One goroutine applies events to the trees and segments in memory, in the order of receipt. Every few seconds a merge
// writes the events in memory into the stored trees and into new stored segments. Another goroutine compacts stored
// segments. After a crash, package local replays the events that the stored trees do not cover, so that none is lost and
// none is counted twice.
//
// Events can be removed. A removal changes the stored tree as a merge does, and writes segments again without the removed
// events. Where all events before a time are removed, it only notes that time in the segments.
//
// # What is in index.db
//
// A bbolt file of format "3". Nodes are replaced all the time, and bbolt reuses their pages. Badger would have to compact
// them away, and requests would wait for that. Buckets:
//
//	meta      "format" → version
//	          "opening" → the number of SetOpening (8 bytes, big endian)
//	          "covered" → seq: the stored trees have the events of chunks up to it (8 bytes, big endian)
//	          "roots" → the number of root records, and the sum of the CRC-64 (ECMA) of each key and record, modulo 2^64
//	          (8 bytes each, big endian)
//	nodes     merchant, node id (8 bytes, big endian) → node of the merchant's stored tree
//	roots     merchant → root record of that tree
//	freed     merchant, node id (8 bytes, big endian) → height (1 byte): a node that a removal took out of the tree with all
//	          below it, or that was replaced (0: only this node), and that has not been deleted yet
//	segments  merchant → segments record; only of merchants that have had events of overflow series
//	blocks    merchant, segment id (8 bytes, big endian), kind (1 byte), number (4 bytes, big endian) → block
//	unused    merchant, segment id (8 bytes, big endian) → 'm' or 'c': a merge ('m'), or a compaction or removal ('c'), is
//	          writing the segment, or it is not used any more and has not been deleted yet
//
// A merchant is the 16 bytes of its UUID. bbolt has no checksums. So each node, record, list of ids and block is sealed: it
// ends with the CRC-32C of its key and itself (4 bytes, big endian). In the bucket meta, all but "format" are sealed too,
// and the key of their seals begins with the format: a damaged version is distinguished from a newer one by that. Damage
// that hides a root record, or brings back an earlier one, is found by "roots" when the file is opened.
//
// A root record: next id, covered, root id, bytes of the root (uvarints), first key, counts of the root, number of series
// (uvarint), series (each length-prefixed). The root id is 0 when the tree has no events. Series are numbered from 1, in this
// order; the first in the record is empty. An overflow series has a tag and an empty name.
// A series of bots has a mark behind its name (codec.AppendSeries).
//
// A leaf: 0, number of entries, entries. An inner node: 1, number of children, children. The numbers are uvarints. Keys
// are differences to the previous key.
//
//	entry:   key, series (uvarint), size of the event (uvarint; codec.Event)
//	child:   key, id (uvarint), bytes: the sum of the sizes below (uvarint), counts
//	counts:  number of series (uvarint), for each: series as difference to the previous one (uvarint),
//	         events (uvarint)
//	key:     time (varint), seq (varint), index (uvarint, not a difference)
//
// A segments record: next id, number of segments, and for each its id, number of events, overflow series, 1, how many of its
// events are removed (all uvarints), and the time before which these are (varint). A segment of an earlier version whose
// overflow series is 0 has events of several tags, which are in other segments too. Queries do not read it.
//
// The blocks of a segment, by kind, each numbered from 0:
//
//	0    64 events (the last block may have fewer), sorted by name, time, seq and index. For each: how many bytes of the
//	     previous name it shares (uvarint), the rest of the name (length-prefixed), key, overflow series (uvarint).
//	     Names and keys are differences to the previous event of the block.
//	1    1,024 times, sorted: differences to the previous one of the block (varints)
//	2    1,300 ranks (3 bytes, little endian each), in the order of time
//	3    2,000 low bits of the wavelet matrix (wavelet.go): the lowest 11 bits of a rank (2 bytes, little endian each), in
//	     the order behind the last level
//	4+l  32,000 bits of level l of the wavelet matrix: the number of ones before the block (4 bytes), then the bits in words
//	     of 8 bytes, the first bit lowest; all little endian. There are 11 levels fewer than the number of events less one
//	     has bits.
package rank
