package openapi

import (
	"fmt"
	"strings"
)

// typeView is the type of a value in words: what it is, and the schema that it links to.
type typeView struct {
	Before string
	Schema string // the name of a component; may be empty
	After  string
}

// typeOf describes a schema without its description.
func typeOf(s schema) typeView {
	switch {
	case s.Ref != "":
		return typeView{Schema: nameOf(s.Ref)}
	case len(s.OneOf) == 2:
		first, second := typeOf(s.OneOf[0]), typeOf(s.OneOf[1])
		if second.Schema == "" { // null
			first.After += " or " + second.Before
			return first
		}
		second.Before = first.Schema + " or"
		return second
	case s.Items != nil:
		v := typeOf(*s.Items)
		v.Before = strings.TrimSpace("array of " + v.Before)
		v.After += count(s.MinItems, s.MaxItems, "of them")
		return v
	}
	name := strings.Join(s.Type, " or ")
	if name == "" {
		name = "any"
	}
	if s.Format != "" {
		name += " (" + s.Format + ")"
	}
	return typeView{Before: name, After: limits(s)}
}

// limits describes which values of a type are allowed.
func limits(s schema) string {
	var b strings.Builder
	switch {
	case s.Const != nil:
		fmt.Fprintf(&b, ", always %s", plain(s.Const))
	case s.Enum != nil:
		b.WriteString(", one of ")
		for i, value := range s.Enum {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(plain(value))
		}
	}
	switch {
	case s.Minimum != nil && s.Maximum != nil:
		fmt.Fprintf(&b, ", %s to %s", s.Minimum, s.Maximum)
	case s.Minimum != nil:
		fmt.Fprintf(&b, ", %s or more", s.Minimum)
	}
	b.WriteString(count(s.MinLength, s.MaxLength, "characters"))
	if s.Pattern != "" {
		b.WriteString(", pattern " + s.Pattern)
	}
	if s.Default != nil {
		fmt.Fprintf(&b, ", default %s", plain(s.Default))
	}
	return b.String()
}

// count describes how many of something there may be.
func count(least, most *int, what string) string {
	switch {
	case least != nil && most != nil:
		return fmt.Sprintf(", %d to %d %s", *least, *most, what)
	case most != nil:
		return fmt.Sprintf(", at most %d %s", *most, what)
	case least != nil && *least == 1:
		return ", not empty"
	case least != nil:
		return fmt.Sprintf(", at least %d %s", *least, what)
	}
	return ""
}
