// Package codec has what the packages of the embedded engine share: byte forms that their files have in common, and the
// values that they pass to each other. All byte forms are part of the data format: a change needs a new format version.
//
//	codec.go     Event: what the journal passes to the index about an event
//	series.go    a series: the tag and name of an event, as bytes
//	entry.go     Entry: an entry of the journal, as backups have it
//	seal.go      values with a checksum
//	decoder.go   varints and length-prefixed strings; the errors of corrupt values and unknown formats
package codec

import "mtagd/store"

// Event is what the index needs to know about an event.
type Event struct {
	Merchant store.MerchantKey
	store.Position
	Time   int64  // µs since 1970
	Series []byte // as AppendSeries appends it
	Size   uint32 // bytes of the event in its chunk, before compression
}
