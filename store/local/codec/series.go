package codec

import "mtagd/store"

// A series is all events of one tag and one name. Its byte form is the tag and the name, each length-prefixed. The index
// counts the events of each series, but only of so many series per merchant (package rank). It counts the events of
// all further series of a tag together, in the tag's overflow series. That has an empty name, which no event has.

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

// OverflowSeries returns the overflow series of the tag of a series.
func OverflowSeries(series []byte) string {
	tag, _ := SplitSeries(series)
	return string(AppendSeries(nil, tag, ""))
}
