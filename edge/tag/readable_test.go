package tag

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/goccy/go-json/jsontext"

	"mtagd/edge/tag/eventjson"
	"mtagd/store"
)

// nested is an event of so many levels, its own included.
func nested(levels int) string {
	return `{"a":` + strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1) + `}`
}

func TestAnEventThatAParserCannotReadIsRefusedOrRepaired(t *testing.T) {
	for _, c := range []struct {
		name, event string
		refused     *answer
		becomes     string // "": stays as it is
	}{
		{"an ordinary event", `{"a":1,"b":"x","c":[true,null,{"d":-1.5e3}]}`, nil, ""},
		{"an empty one", `{}`, nil, ""},
		{"64 levels", nested(64), nil, ""},
		{"65 levels", nested(65), eventTooDeep, ""},
		{"9,990 levels", nested(9990), eventTooDeep, ""},
		{"65 levels of objects", strings.Repeat(`{"a":`, 64) + `{}` + strings.Repeat("}", 64), eventTooDeep, ""},
		{"many brackets side by side", `{"a":[` + strings.Repeat("[],", 100) + `{}]}`, nil, ""},
		{"many brackets in strings", `{"a":"` + strings.Repeat("[", 100) + `","` + strings.Repeat("{", 100) + `":"\"{"}`, nil, ""},
		{"deep behind an escaped quote", `{"b":"\\\"","a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, eventTooDeep, ""},

		{"the largest float64", `{"a":1.7976931348623157e308}`, nil, ""},
		{"more than that", `{"a":1.8e308}`, numberTooLarge, ""},
		{"1e999", `{"a":[1e999]}`, numberTooLarge, ""},
		{"less than the least", `{"a":-1E+999}`, numberTooLarge, ""},
		{"close to zero", `{"a":1e-999}`, nil, ""},
		{"309 digits", `{"a":` + strings.Repeat("9", 309) + `}`, numberTooLarge, ""},
		{"300 digits", `{"a":` + strings.Repeat("9", 300) + `}`, nil, ""},
		{"250 digits and an exponent of two digits", `{"a":` + strings.Repeat("9", 250) + `e99}`, numberTooLarge, ""},
		{"300 zeros behind the point", `{"a":0.` + strings.Repeat("0", 300) + `1e99}`, nil, ""},
		{"a number in a string", `{"a":"1e999","1e999":"\"1e999"}`, nil, ""},
		{"a number at the end of an array", `{"a":[1,2,1e400]}`, numberTooLarge, ""},

		{"a pair", `{"a":"\ud83d\ude00"}`, nil, ""},
		{"a first half", `{"a":"x\ud83d"}`, nil, `{"a":"x\ufffd"}`},
		{"a first half in capitals", `{"a":"\uD83Dx"}`, nil, `{"a":"\ufffdx"}`},
		{"a second half", `{"a":"\ude00"}`, nil, `{"a":"\ufffd"}`},
		{"a first half before a pair", `{"a":"\ud83d\ud83d\ude00"}`, nil, `{"a":"\ufffd\ud83d\ude00"}`},
		{"a pair the wrong way round", `{"a":"\ude00\ud83d"}`, nil, `{"a":"\ufffd\ufffd"}`},
		{"a half in a name", `{"\ud83d":1}`, nil, `{"\ufffd":1}`},
		{"a first half and another escape", `{"a":"\ud83d\n\u0041"}`, nil, `{"a":"\ufffd\n\u0041"}`},
		{"an escaped backslash", `{"a":"\\ud83d"}`, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			object := []byte(c.event)
			if got := makeReadable(object); got != c.refused {
				t.Fatalf("the answer is %v, want %v", got, c.refused)
			}
			want := c.becomes
			if want == "" {
				want = c.event
			}
			if c.refused == nil && string(object) != want {
				t.Errorf("it is %s, want %s", object, want)
			}
		})
	}
}

// A huge number is found wherever it is in an event, and the numbers beside it do not matter.
func TestHugeNumberAnywhere(t *testing.T) {
	nines := strings.Repeat("9", 210)
	for n := range 40 {
		pad := strings.Repeat("e", n)
		for _, number := range []string{"1e999", "1E+999", "1.5e0400", "12345678e309", nines + "e99", nines + nines} {
			for _, end := range []string{"}", `,"b":"no number"}`} {
				if makeReadable([]byte(`{"`+pad+`":`+number+end)) != numberTooLarge {
					t.Errorf("behind %d bytes, %s%s is not found", n, number, end)
				}
			}
		}
		for _, number := range []string{"1e99", "-1E-99", "12345678", "1." + nines + "e99", `"1e999"`, nines + ",1e99"} {
			if makeReadable([]byte(`{"`+pad+`":[`+number+`]}`)) != nil {
				t.Errorf("behind %d bytes, %s counts as huge", n, number)
			}
		}
	}
}

// Whatever is accepted can be read by a parser with the limits of the rule.
func FuzzReadable(f *testing.F) {
	for _, seed := range []string{`{"a":1e308}`, nested(64), nested(65), `{"a":"\ud83d\\\"","b":[1e999]}`, `{"\ude00":{}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, object []byte) {
		if len(object) == 0 || object[0] != '{' || !utf8.Valid(object) || !json.Valid(object) || !jsontext.Value(object).IsValid(eventjson.Lenient) {
			return
		}
		before := string(object)
		if makeReadable(object) != nil {
			return
		}
		if len(object) != len(before) {
			t.Errorf("%q has another length than %q", object, before)
		}
		var v any
		if err := json.Unmarshal(object, &v); err != nil {
			t.Errorf("%q: %v", object, err)
		}
		if strings.Count(before, "{")+strings.Count(before, "[") > store.MaxEventDepth && depthOf(v) > store.MaxEventDepth {
			t.Errorf("%q has %d levels", object, depthOf(v))
		}
		// Strict: without AllowInvalidUTF8, half of a surrogate pair is an error.
		if !jsontext.Value(object).IsValid(jsontext.AllowDuplicateNames(true)) {
			t.Errorf("%q cannot be read by a strict parser", object)
		}
	})
}

func depthOf(v any) (deepest int) {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			deepest = max(deepest, depthOf(e))
		}
		return deepest + 1
	case []any:
		for _, e := range v {
			deepest = max(deepest, depthOf(e))
		}
		return deepest + 1
	}
	return 0
}
