package codec

import "mtagd/store"

// A series is all events of one tag and one name. Its byte form is the tag and the name, each length-prefixed. The index
// counts the events of each series, but only of so many series per merchant (package rank). It counts the events of
// all further series of a tag together, in the tag's overflow series. That has an empty name, which no event has.

// AppendSeries appends the series of a tag and a name.
func AppendSeries(b []byte, tag store.TagID, name string) []byte {
	return AppendPrefixed(AppendPrefixed(b, string(tag)), name)
}

// SplitSeries returns the tag and the name of a series. They alias it.
func SplitSeries[T string | []byte](series T) (tag, name T) {
	tag, rest := cutPrefixed(series)
	name, _ = cutPrefixed(rest)
	return tag, name
}

// cutPrefixed returns what AppendPrefixed has appended, and the rest.
func cutPrefixed[T string | []byte](b T) (v, rest T) {
	n, at := 0, 0
	for shift := 0; at < len(b) && shift < 21; shift += 7 {
		c := b[at]
		at++
		n |= int(c&0x7f) << shift
		if c < 0x80 {
			break
		}
	}
	n = min(n, len(b)-at)
	return b[at : at+n], b[at+n:]
}

// OverflowSeries returns the overflow series of a tag.
func OverflowSeries[T string | []byte](tag T) string {
	return string(AppendPrefixed(AppendPrefixed(nil, tag), ""))
}
