package codec

import (
	"encoding/binary"

	"mtagd/store"
)

// A series is all events of one tag and one name that bots have sent, or all that others have sent. Its byte form is the tag
// and the name, each length-prefixed. A series of bots has a botMark at the end of its name. The index counts the events of
// each series, up to a number of series per merchant (package rank). It counts the events of all further series of a tag
// together, in the tag's overflow series: one for bots, and one for others. These have an empty name, which no event has.

// botMark is in no event's name (store.IsEventName).
const botMark = 1

// AppendSeries appends the series of a tag and a name. bot says that it is the one of bots.
func AppendSeries(b []byte, tag store.TagID, name string, bot bool) []byte {
	b = AppendPrefixed(b, string(tag))
	if !bot {
		return AppendPrefixed(b, name)
	}
	b = binary.AppendUvarint(b, uint64(len(name)+1))
	return append(append(b, name...), botMark)
}

// SplitSeries returns the tag and the name of a series. They alias it.
func SplitSeries[T string | []byte](series T) (tag, name T) {
	tag, rest := cutPrefixed(series)
	name, _ = cutPrefixed(rest)
	if n := len(name); n > 0 && name[n-1] == botMark {
		name = name[:n-1]
	}
	return tag, name
}

// IsBot reports whether a series is one of bots.
func IsBot[T string | []byte](series T) bool {
	return len(series) > 0 && series[len(series)-1] == botMark
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

// OverflowSeries returns the overflow series of the tag of a series, that of bots if it is a series of bots.
func OverflowSeries[T string | []byte](series T) string {
	tag, _ := SplitSeries(series)
	return string(AppendSeries(nil, store.TagID(tag), "", IsBot(series)))
}
