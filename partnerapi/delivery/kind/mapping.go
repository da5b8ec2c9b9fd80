package kind

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"mtagd/store"
)

// Mapping says which fields of what is sent come from which fields of the event. Both are paths such as "user.name".
type Mapping map[string]Source

// UnmarshalJSON implements json.Unmarshaler. Its error says what a mapping must be.
func (m *Mapping) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, (*map[string]Source)(m)) != nil {
		return store.Invalid("mapping", "must be an object whose values are paths, or objects with from, default or both")
	}
	return nil
}

// Source is where a field comes from: a text is the path of a field of the event.
type Source struct {
	From    string `json:"from,omitempty"`
	Default any    `json:"default,omitempty"` // when the event does not have it
}

// UnmarshalJSON also reads a text.
func (s *Source) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &s.From)
	}
	type plain Source
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode((*plain)(s))
}

// Bounds of a mapping: what it makes of an event is not many times as large.
const (
	maxMapped   = 100     // fields
	maxSame     = 5       // fields from the same path
	maxDefaults = 4 << 10 // bytes of JSON
)

// Check returns an error unless all paths can be used.
func (m Mapping) Check() error {
	if len(m) > maxMapped {
		return store.Invalid("mapping", "must have at most %d fields", maxMapped)
	}
	from, defaults := map[string]int{}, 0
	for to, source := range m {
		text, _ := json.Marshal(source.Default) // it was read from JSON
		defaults += len(text)
		if from[source.From]++; source.From != "" && from[source.From] > maxSame || defaults > maxDefaults+len("null")*len(m) {
			return store.Invalid("mapping", "must take a field of the event at most %d times, and have at most %d bytes of defaults", maxSame, maxDefaults)
		}
		if !isPath(to) || source.From != "" && !isPath(source.From) || source.From == "" && source.Default == nil {
			return store.Invalid("mapping", "must have, for each path such as user.name, the path of a field of the event, or an object with from, default or both")
		}
	}
	return nil
}

func isPath(path string) bool {
	parts := strings.Split(path, ".")
	for _, part := range parts {
		if part == "" {
			return false
		}
	}
	return len(path) <= 256 && len(parts) <= 8
}

// Apply sets the fields of what is sent: user before user.name.
func (m Mapping) Apply(event, to map[string]any) {
	for _, path := range slices.Sorted(maps.Keys(m)) {
		source := m[path]
		v := source.Default
		if source.From != "" {
			if of := At(event, source.From); of != nil {
				v = of
			}
		}
		if v != nil {
			Set(to, path, v)
		}
	}
}

// At returns what is at a path; nil when there is nothing.
func At(of map[string]any, path string) any {
	for {
		name, rest, deeper := strings.Cut(path, ".")
		v := of[name]
		if !deeper {
			return v
		}
		inner, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		of, path = inner, rest
	}
}

// Set puts a value at a path, and replaces what is in its way. It copies the objects along the path before it changes them:
// they may belong to the event, or to the default of a mapping, which all events share.
func Set(in map[string]any, path string, v any) {
	for {
		name, rest, deeper := strings.Cut(path, ".")
		if !deeper {
			in[name] = v
			return
		}
		inner := map[string]any{}
		if old, ok := in[name].(map[string]any); ok {
			maps.Copy(inner, old)
		}
		in[name] = inner
		in, path = inner, rest
	}
}
