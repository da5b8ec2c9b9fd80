package tag

import (
	"bytes"
	"math"
	"strconv"

	"mtagd/store"
)

// A partner's program reads a page of events with a strict JSON parser, and one event that the parser refuses spoils the
// whole page. Any stranger who knows a tag id can send events. So an event is refused or repaired when some parser
// cannot read it although it is valid JSON:
//
//   - Nesting: parsers stop at a depth between 100 and 10,000.
//   - Numbers that no float64 holds, such as 1e999.
//   - Half of a surrogate pair, such as "\ud83d" without its second half. Browsers cut page titles there, so the
//     event is accepted and the half becomes U+FFFD, which is an escape of the same length.

// makeReadable returns the answer that refuses the event, or nil. object is valid JSON; makeReadable may change it.
func makeReadable(object []byte) *answer {
	if isTooDeep(object) {
		return eventTooDeep
	}
	if hasHugeNumber(object) {
		return numberTooLarge
	}
	repairSurrogates(object)
	return nil
}

// isTooDeep reports whether an event has more than store.MaxEventDepth levels. It counts brackets first, those in strings
// too: few events have so many that their levels must be counted.
func isTooDeep(object []byte) bool {
	if bytes.Count(object, []byte("{"))+bytes.Count(object, []byte("[")) <= store.MaxEventDepth {
		return false
	}
	depth, deepest := 0, 0
	for plain, rest := nextPlain(object); ; plain, rest = nextPlain(rest) {
		for _, c := range plain {
			switch c {
			case '{', '[':
				depth++
				deepest = max(deepest, depth)
			case '}', ']':
				depth--
			}
		}
		if rest == nil {
			return deepest > store.MaxEventDepth
		}
	}
}

// maxSafeDigits is how many bytes a number may have before its exponent and still be in a float64's range: with an
// exponent of up to two digits it is below 1e300.
const maxSafeDigits = 200

// hasHugeNumber reports whether a number is outside the range of float64. A number with fewer than three digits in its
// exponent and at most maxSafeDigits digits cannot be, so only the others are parsed.
func hasHugeNumber(object []byte) bool {
	for plain, rest := nextPlain(object); ; plain, rest = nextPlain(rest) {
		for i := 0; i < len(plain); i++ {
			if c := plain[i]; c != '-' && (c < '0' || c > '9') {
				continue
			}
			end := i + 1
			for end < len(plain) && isNumberByte(plain[end]) {
				end++
			}
			if number := plain[i:end]; mayBeHuge(number) {
				// The only possible error is the range, and then the result is infinite.
				f, _ := strconv.ParseFloat(view(number), 64)
				if math.IsInf(f, 0) {
					return true
				}
			}
			i = end
		}
		if rest == nil {
			return false
		}
	}
}

func mayBeHuge(number []byte) bool {
	if len(number) < len("1e300") {
		return false
	}
	exponent := bytes.IndexAny(number, "eE")
	return exponent >= 0 && len(number)-exponent > len("e99") || len(number) > maxSafeDigits
}

func isNumberByte(c byte) bool {
	return '0' <= c && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'
}

// nextPlain splits JSON after its next string: plain is what comes before the string, rest what comes after it. rest is
// nil when there is no further string.
func nextPlain(json []byte) (plain, rest []byte) {
	start := bytes.IndexByte(json, '"')
	if start < 0 {
		return json, nil
	}
	plain, rest = json[:start], json[start+1:]
	for {
		end := bytes.IndexByte(rest, '"')
		i := end
		for i > 0 && rest[i-1] == '\\' {
			i--
		}
		if (end-i)%2 == 0 { // backslashes in pairs escape each other, not the quote
			return plain, rest[end+1:]
		}
		rest = rest[end+1:]
	}
}

// repairSurrogates replaces each half of a surrogate pair that stands alone by U+FFFD, in place.
func repairSurrogates(object []byte) {
	for rest := object; ; {
		escape := bytes.IndexByte(rest, '\\') // valid JSON has backslashes in strings only
		if escape < 0 {
			return
		}
		rest = rest[escape:]
		high, ok := escapedUnit(rest)
		switch {
		case !ok: // not \uXXXX
			rest = rest[len(`\n`):]
			continue
		case isHighSurrogate(high):
			if low, ok := escapedUnit(rest[len(`\uXXXX`):]); ok && isLowSurrogate(low) {
				rest = rest[2*len(`\uXXXX`):]
				continue
			}
			copy(rest, `\ufffd`)
		case isLowSurrogate(high):
			copy(rest, `\ufffd`)
		}
		rest = rest[len(`\uXXXX`):]
	}
}

// escapedUnit reads the UTF-16 code unit of an escape such as \ud83d at the start of b, false when there is none.
func escapedUnit(b []byte) (unit uint64, ok bool) {
	if len(b) < len(`\uXXXX`) || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(view(b[2:6]), 16, 16)
	return unit, err == nil
}

func isHighSurrogate(unit uint64) bool { return 0xd800 <= unit && unit < 0xdc00 }
func isLowSurrogate(unit uint64) bool  { return 0xdc00 <= unit && unit < 0xe000 }
