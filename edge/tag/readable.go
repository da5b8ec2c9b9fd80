package tag

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"

	"mtagd/store"
)

// A partner's program reads a page of events with a strict JSON parser, and one event that it refuses spoils the page. Any
// stranger can send events. So an event is refused or repaired when some parser cannot read it although it is valid JSON:
//
//   - Nesting: parsers stop at a depth between 100 and 10,000.
//   - Numbers that no float64 holds, such as 1e999.
//   - Half of a surrogate pair, such as "\ud83d" without its second half. Browsers cut page titles there, so the
//     event is accepted and the half becomes U+FFFD, which is an escape of the same length.

// makeReadable returns the answer that refuses the event, or nil. object is valid JSON; makeReadable may change it.
func makeReadable(object []byte) *answer {
	// Brackets in strings count, too: few events have so many that their levels must be counted.
	brackets := bytes.Count(object, []byte("{")) + bytes.Count(object, []byte("["))
	if brackets > store.MaxEventDepth || mayHaveHugeNumber(object) {
		if refused := inspect(object); refused != nil {
			return refused
		}
	}
	repairSurrogates(object)
	return nil
}

// inspect returns the answer that refuses an event with more than store.MaxEventDepth levels, or with a number outside of
// the range of float64; else nil.
func inspect(object []byte) *answer {
	depth := 0
	for i := 0; i < len(object); i++ {
		switch c := object[i]; {
		case c == '"':
			for i++; object[i] != '"'; i++ {
				if object[i] == '\\' {
					i++ // what follows does not end the string
				}
			}
		case c == '{' || c == '[':
			if depth++; depth > store.MaxEventDepth {
				return eventTooDeep
			}
		case c == '}' || c == ']':
			depth--
		case c == '-' || isDigit(c):
			start := i
			for isNumberByte(object[i+1]) { // the last byte of an object is a bracket
				i++
			}
			// The only possible error is the range, and then the result is infinite.
			number := view(object[start : i+1])
			if f, _ := strconv.ParseFloat(number, 64); math.IsInf(f, 0) {
				return numberTooLarge
			}
		}
	}
	return nil
}

// mayHaveHugeNumber is a quick check, which hardly any event passes. A huge number has an exponent of three digits or more,
// or more than 200 digits in a row. The check does not tell numbers from text.
//
// It reads words of eight bytes. Events have many letters e, at places that a processor cannot foresee, so a branch for each
// of them costs more than all else.
func mayHaveHugeNumber(object []byte) bool {
	if len(object) < wordBytes {
		return false // too short for a huge number
	}
	digitBefore, words := uint64(0), 0
	for i := 0; i < len(object); i += wordBytes {
		i = min(i, len(object)-wordBytes) // the last word may overlap the one before
		w := binary.LittleEndian.Uint64(object[i:])
		digits := zeroBytes(w&(0xf0*eachByte) ^ '0'*eachByte) // and : ; < = > ?
		e := zeroBytes(w | 0x20*eachByte ^ 'e'*eachByte)      // and E
		hits := e & (digits<<8 | digitBefore)
		for ; hits != 0; hits &= hits - 1 {
			if hasLongExponent(object[i+bits.TrailingZeros64(hits)/8+1:]) {
				return true
			}
		}
		digitBefore = digits >> (64 - 8)
		if digits != highBit*eachByte {
			words = 0
		} else if words++; words == manyWords {
			return true
		}
	}
	return false
}

const (
	wordBytes = 8
	eachByte  = 0x0101010101010101
	highBit   = 0x80

	manyWords = 20 // of 200 digits in a row, more words have nothing else
)

// zeroBytes sets the highest bit of each byte of w that is zero, and perhaps of a 1 above it. The first byte is the lowest.
func zeroBytes(w uint64) uint64 { return (w - eachByte) &^ w & (highBit * eachByte) }

// hasLongExponent reports whether what follows an e is an exponent of three digits or more, and then ends as a number does.
func hasLongExponent(b []byte) bool {
	if len(b) > 0 && (b[0] == '+' || b[0] == '-') {
		b = b[1:]
	}
	n := 0
	for n < len(b) && isDigit(b[n]) {
		n++
	}
	return n >= 3 && n < len(b) && bytes.IndexByte([]byte(",]} \t\r\n"), b[n]) >= 0
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isNumberByte(c byte) bool {
	return isDigit(c) || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'
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
	unit, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return unit, err == nil
}

func isHighSurrogate(unit uint64) bool { return 0xd800 <= unit && unit < 0xdc00 }
func isLowSurrogate(unit uint64) bool  { return 0xdc00 <= unit && unit < 0xe000 }
