package check

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// kindNames say what a field must be.
var kindNames = [...]string{
	text: "a string", number: "a number", boolean: "true or false", currency: "a currency code of 3 letters", object: "an object", list: "an array",
}

// fields compares the fields of an object with a schema. path is that of the object.
func (c *checker) fields(path string, values map[string]any, s schema) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		f, value := s[name], values[name]
		switch {
		case c.isFull():
			return
		case !isAbsent(value):
			c.field(pointer(path, name), value, f)
		case f.required:
			c.add(Warning, "missing", pointer(path, name), "is missing; reports need "+kindNames[f.kind])
		}
	}
}

// field compares a value with what it must be.
func (c *checker) field(path string, value any, f field) {
	const need = "reports need "
	switch f.kind {
	case list:
		elements, ok := value.([]any)
		if !ok {
			c.wrongType(path, value, need+kindNames[list])
		}
		for i, element := range elements {
			if c.isFull() {
				return
			}
			c.field(path+"/"+strconv.Itoa(i), element, field{kind: object, fields: f.fields})
		}
	case object:
		values, ok := value.(map[string]any)
		if !ok {
			c.wrongType(path, value, need+kindNames[object])
			return
		}
		c.fields(path, values, f.fields)
		if f.texts {
			for _, name := range sortedNames(values) {
				if c.isFull() {
					return
				}
				c.field(pointer(path, name), values[name], field{kind: text})
			}
		}
	case currency:
		s, ok := value.(string)
		switch {
		case !ok:
			c.wrongType(path, value, need+kindNames[currency])
		case !IsCurrency(s):
			c.suggest(Warning, "wrong_currency", path, "is not a currency code of 3 capital letters, such as EUR", short(value), "")
		}
	default:
		if kindOf(value) != f.kind {
			c.wrongType(path, value, need+kindNames[f.kind])
		}
	}
}

// wrongType adds a finding for a value of a wrong type. Its message is "is <type>; <why>".
func (c *checker) wrongType(path string, value any, why string) {
	is := "null"
	if value != nil {
		is = kindNames[kindOf(value)]
	}
	c.suggest(Warning, "wrong_type", path, "is "+is+"; "+why, short(value), "")
}

// kindOf returns the kind of a value that is not null.
func kindOf(value any) kind {
	switch value.(type) {
	case string:
		return text
	case float64:
		return number
	case bool:
		return boolean
	case []any:
		return list
	}
	return object
}

// IsCurrency reports whether a text has the form of a currency code: 3 capital letters.
func IsCurrency(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// maxShort is how long a value may be to be shown in a finding, in bytes.
const maxShort = 40

// short returns a text, number or truth value as JSON, "" when it is long.
func short(value any) string {
	switch value.(type) {
	case string, float64, bool:
		if b, err := json.Marshal(value); err == nil && len(b) <= maxShort {
			return string(b)
		}
	}
	return ""
}

func isAbsent(value any) bool { return value == nil }

// pointer returns the JSON pointer of a member of the object at a path.
func pointer(path, name string) string { return path + "/" + escape.Replace(name) }

var escape = strings.NewReplacer("~", "~0", "/", "~1")

func sortedNames(object map[string]any) []string { return slices.Sorted(maps.Keys(object)) }
