package codec

import "mtagd/store"

// A series is a tag and an event name, each length-prefixed. A merchant has at most so many series of its own that
// the index can count them; further names of a tag are counted together, in the tag's overflow series. The
// overflow series has an empty name, which no event has.

// AppendSeries appends the series of a tag and a name.
func AppendSeries(b []byte, tag store.TagID, name string) []byte {
	return AppendPrefixed(AppendPrefixed(b, string(tag)), name)
}

// SplitSeries returns the tag and the name of a series.
func SplitSeries(series []byte) (tag store.TagID, name string) {
	d := Decoder{B: series}
	tag = store.TagID(d.Prefixed())
	return tag, string(d.Prefixed())
}

// OverflowSeries returns the overflow series of a series' tag.
func OverflowSeries(series []byte) string {
	tag, _ := SplitSeries(series)
	return string(AppendSeries(nil, tag, ""))
}
