// Package codec holds the byte forms that the files of the embedded engine share, and the ids that its parts
// pass to each other. Everything here is part of the data format: a change needs a new format version.
//
//	codec.go     Event: what the journal tells the index about an event
//	merchant.go  MerchantKey: a merchant's id in 16 bytes
//	position.go  Position: where an event is stored; the public event id
//	series.go    a series: the tag and name of an event as one string of bytes
//	seal.go      values with a checksum
//	decoder.go   varints and length-prefixed strings; the errors of corrupt values and unknown formats
package codec

// Event is what the index needs to know about an event.
type Event struct {
	Merchant MerchantKey
	Position
	Time   int64  // µs since 1970
	Series []byte // tag and name, see AppendSeries
}
