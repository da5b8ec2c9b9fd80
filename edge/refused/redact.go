package refused

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"mtagd/edge/check"
	"mtagd/store"
)

// An event may name a person anywhere: in a value, in the name of a field, even in its own name. So only this is kept:
//
//   - Values: their types, and the lengths of texts. In clear are only currency codes and the words in clearWords.
//   - Names of fields: those of the contract; at the top of the event also others that look like names that a programmer
//     gives.
//   - The event's name: a known one, one that is nearly known, or one in PascalCase.
//   - The origin: scheme, host and port.
//
// A name is not kept if it contains one of the event's identifiers, or more than maxDigits digits, as ids and phone
// numbers have.
const (
	maxDigits   = 4
	maxName     = 40       // bytes of a field's name
	maxObject   = 16 << 10 // bytes of an event; of a larger one no sample is made
	maxNodes    = 60       // values of a sample
	maxElements = 3        // of an array
	maxDepth    = 5        // of a sample
	leastPart   = 3        // bytes of an identifier that must not be in a name; everything has a shorter one in it

	// Of an event with longer or more identifiers, no name is kept but those of the contract: a stranger could
	// make comparing them slow.
	maxIdentifier = 256 // bytes
	maxParts      = 50  // of all identifiers
	maxNames      = 200 // of fields; the others are counted
)

// identifiers are the texts that must not be in a name, in lower case: an event's identifiers, and the words before an @.
type identifiers struct {
	parts   []string
	tooMany bool
}

func (ids *identifiers) add(id string) {
	if len(id) > maxIdentifier {
		ids.tooMany = true
		return
	}
	id = strings.ToLower(strings.TrimSpace(id))
	local, _, _ := strings.Cut(id, "@")
	for _, part := range append(strings.FieldsFunc(local, isSeparator), id) {
		if len(part) >= leastPart {
			ids.parts = append(ids.parts, part)
		}
	}
	ids.tooMany = ids.tooMany || len(ids.parts) > maxParts
}

// identifiersOf returns the identifiers of an event, and those in its object as far as their fields say so.
func identifiersOf(e *Event, object map[string]any) *identifiers {
	ids := &identifiers{}
	for _, id := range e.Identifiers {
		ids.add(id)
	}
	for name, value := range object {
		if !check.IsIdentifier(name) {
			continue
		}
		ids.add(fmt.Sprint(value))
	}
	return ids
}

// hidden stands for what is not kept.
const hidden = "…"

// clearWords are the texts that are kept in clear, by field.
var clearWords = map[string][]string{
	"event_source":  {"server", "web", "app", "browser", "backend", "pos", "crm"},
	"content_event": {"product", "image", "video", "blog"},
}

// newEntry returns an entry with what may be kept of an event. It aliases nothing of the event.
func newEntry(e *Event, k key) *Entry {
	object := decode(e.Object)
	ids := identifiersOf(e, object)
	n := &Entry{Tag: k.tag, Status: e.Status, Code: e.Code, Message: e.Message, Reason: e.Reason, Name: shownName(k.name, ids)}
	if object != nil {
		n.Sample = sample(object, n.Name, ids)
	}
	suggested := e.Suggests
	if suggested == "" {
		suggested = check.SuggestName(n.Name)
	}
	if check.IsNearName(suggested) {
		n.Suggestion = strings.Clone(suggested)
	}
	n.Path, n.Origin = shownPath(e.Path, ids), shownOrigin(e.Origin, ids)
	return n
}

// decode returns an event's object; nil when it is not an object, or larger than maxObject.
func decode(text []byte) map[string]any {
	var object map[string]any
	if len(text) == 0 || len(text) > maxObject || json.Unmarshal(text, &object) != nil {
		return nil
	}
	return object
}

// shownName returns an event's name, "" when it is not kept.
func shownName(name string, ids *identifiers) string {
	switch {
	case check.IsKnownName(name):
		return name
	case tellsOf(name, ids):
		return ""
	case store.IsEventName(name):
		return name
	case len(name) <= maxName && hasOnly(letters+"_- .", name) && check.IsNearName(name):
		return name
	}
	return ""
}

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	numbers = "0123456789"
)

// hasOnly reports whether a text has no other characters than some of ASCII.
func hasOnly(characters, text string) bool { return strings.Trim(text, characters) == "" }

// shownField reports whether the name of a field is kept.
func shownField(name string, atTop bool, ids *identifiers) bool {
	if check.IsField(name) {
		return true
	}
	return atTop && name != "" && len(name) <= maxName && !tellsOf(name, ids) && hasOnly(letters+numbers+"_-", name)
}

// tellsOf reports whether a name may identify a person: it has an identifier, a part of an email, or many digits.
func tellsOf(name string, ids *identifiers) bool {
	if digits(name) > maxDigits || ids.tooMany {
		return true
	}
	name = strings.ToLower(name)
	return slices.ContainsFunc(ids.parts, func(part string) bool { return strings.Contains(name, part) })
}

func isSeparator(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) }

func digits(text string) int {
	n := 0
	for i := range len(text) {
		if '0' <= text[i] && text[i] <= '9' {
			n++
		}
	}
	return n
}

// shownPath returns a JSON pointer with hidden in the place of names that are not kept.
func shownPath(path string, ids *identifiers) string {
	if path == "" {
		return ""
	}
	parts := strings.Split(path, "/")[1:]
	for i, part := range parts {
		if !isIndex(part) && !shownField(part, i == 0, ids) {
			parts[i] = hidden
		}
	}
	return "/" + strings.Join(parts, "/")
}

// isIndex reports whether a part of a JSON pointer is the index of an array.
func isIndex(part string) bool {
	return part != "" && len(part) <= maxDigits && hasOnly(numbers, part)
}

// place returns a JSON pointer in which * replaces indexes of arrays, and names that are not those of the contract. So there
// are few places.
func place(path string) string {
	if path == "" || strings.Count(path, "/") == 1 && check.IsField(path[1:]) { // the common cases
		return path
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if i > 0 && !check.IsField(part) {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, "/")
}

// shownOrigin returns an origin as it is kept, "" for a text that is no origin, and for one that may identify the visitor.
func shownOrigin(origin string, ids *identifiers) string {
	if len(origin) > 128 {
		return ""
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || origin != u.Scheme+"://"+u.Host {
		return ""
	}
	for label := range strings.SplitSeq(u.Hostname(), ".") {
		if tellsOf(label, ids) {
			return ""
		}
	}
	if tellsOf(strings.Map(dropDigits, u.Host), ids) || !hasOnly(letters+numbers+".-_", u.Hostname()) {
		return ""
	}
	return strings.Clone(origin)
}

func dropDigits(c rune) rune {
	if '0' <= c && c <= '9' {
		return -1
	}
	return c
}

func sample(object map[string]any, name string, ids *identifiers) []byte {
	s := sampler{name: name, ids: ids}
	text, err := json.Marshal(s.object(object, 0))
	if err != nil { // it has nothing that cannot be written
		return nil
	}
	return text
}

type sampler struct {
	name  string // of the event, as it is kept
	ids   *identifiers
	nodes int
}

func (s *sampler) object(object map[string]any, depth int) map[string]any {
	shown := map[string]any{}
	rest := 0
	for i, name := range slices.Sorted(maps.Keys(object)) {
		if s.nodes >= maxNodes || i >= maxNames || !shownField(name, depth == 0, s.ids) {
			rest++
			continue
		}
		s.nodes++
		shown[name] = s.value(name, object[name], depth+1)
	}
	if rest > 0 {
		shown[hidden] = fmt.Sprintf("%d more", rest)
	}
	return shown
}

// value returns what is kept of the value of a field. Elements of an array have the array's name.
func (s *sampler) value(name string, value any, depth int) any {
	switch v := value.(type) {
	case nil:
		return nil
	case bool:
		return "boolean"
	case float64:
		return "number"
	case string:
		return s.text(name, v, depth)
	case []any:
		if depth >= maxDepth {
			return "array"
		}
		shown := []any{}
		for _, element := range v[:min(len(v), maxElements)] {
			s.nodes++
			shown = append(shown, s.value(name, element, depth+1))
		}
		if rest := len(v) - len(shown); rest > 0 {
			shown = append(shown, fmt.Sprintf("%d more", rest))
		}
		return shown
	case map[string]any:
		if depth >= maxDepth {
			return "object"
		}
		return s.object(v, depth)
	}
	return hidden
}

func (s *sampler) text(name, value string, depth int) string {
	switch {
	case depth == 1 && (name == "event" || name == "type") && value == s.name,
		name == "currency" && check.IsCurrency(value) && !tellsOf(value, s.ids),
		slices.Contains(clearWords[name], value):
		return value
	case check.IsIdentifier(name):
		return hidden
	}
	return fmt.Sprintf("string of %d", utf8.RuneCountInString(value))
}
