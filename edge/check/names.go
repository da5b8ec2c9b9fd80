package check

import (
	"slices"
	"strings"
	"unicode"

	"mtagd/store"
)

// SuggestName returns the event name that a sender may have meant: a known name that is close to it, or else, when the name
// is not PascalCase, the same words in PascalCase. It returns "" when there is no such name, and for a known name.
func SuggestName(name string) string {
	if known := nearestName(name); known != "" || store.IsEventName(name) {
		return known
	}
	if pascal := pascalCase(name); store.IsEventName(pascal) {
		return pascal
	}
	return ""
}

// nearestName returns the known name that is closest to a name: the same letters and digits in another case or with other
// separators, or else at most a few typing errors away. It is "" when none is close or when the name is known.
func nearestName(name string) (best string) {
	folded, least := fold(name), 0
	if folded == "" || len(name) > store.MaxEventNameLength || IsKnownName(name) {
		return ""
	}
	for i, known := range foldedNames {
		most := typingErrors(known)
		if d := distance(folded, known, most); d <= most && (best == "" || d < least) {
			best, least = knownNames[i], d
		}
	}
	return best
}

// typingErrors is how many typing errors a misspelling of a name may have: Lead none, Login one, Purchase two.
func typingErrors(folded string) int {
	if len(folded) <= 4 {
		return 0
	}
	return min(len(folded)/4, 2)
}

// IsKnownName reports whether a name is that of a pre-defined event, or one that the browser tag sends.
func IsKnownName(name string) bool { return slices.Contains(knownNames, name) }

// IsNearName reports whether a name is a known one or close to one.
func IsNearName(name string) bool { return IsKnownName(name) || nearestName(name) != "" }

// pascalCase joins the words of a name. Words are separated by anything that is neither a letter nor a digit.
func pascalCase(name string) string {
	if len(name) > 2*store.MaxEventNameLength {
		return ""
	}
	var b strings.Builder
	for _, word := range strings.FieldsFunc(name, func(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// fold keeps the ASCII letters and digits of a text, in lower case.
func fold(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'A' <= c && c <= 'Z':
			return c | 0x20
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			return c
		}
		return -1
	}, text)
}

// distance returns the edit distance of two texts: how many bytes must be inserted, deleted, replaced or swapped with their
// neighbour to get from one to the other. If that is more than most, the result is any number above most. Both have at most
// store.MaxEventNameLength bytes.
func distance(a, b string, most int) int {
	if len(a)-len(b) > most || len(b)-len(a) > most {
		return most + 1
	}
	var rows [3][store.MaxEventNameLength + 1]uint8
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = uint8(j)
	}
	for i := 1; i <= len(a); i++ {
		row[0] = uint8(i)
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return int(last[len(b)])
}
