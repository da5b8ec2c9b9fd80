package filter

import (
	"encoding/json"
	"strings"
	"testing"
)

func fields(t testing.TB, text string) (f map[string]any) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&f); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFilter(t *testing.T) {
	event := fields(t, `{"event":"Purchase","value":89.5,"currency":"EUR","items":[{"id":"a"},{"id":"b"}],"user":{"vip":true},"note":null,"large":9007199254740993}`)
	for text, want := range map[string]bool{
		`event == "Purchase"`:                       true,
		`event == 'Purchase' && value >= 50`:        true,
		`value < 50 || currency in ["EUR", "USD"]`:  true,
		`!(currency in ['GBP'])`:                    true,
		`missing == 1`:                              false,
		`missing == 1 || true`:                      true,
		`true || missing == 1`:                      true,
		`missing == 1 && false`:                     false,
		`!(missing == 1)`:                           false,
		`has(missing)`:                              false,
		`!has(missing) && has(user.vip)`:            true,
		`user.vip`:                                  true,
		`user["vip"] == true`:                       true,
		`size(items) == 2 && items[1].id == "b"`:    true,
		`items[2].id == "c"`:                        false,
		`event.startsWith("Pur")`:                   true,
		`event.lowerAscii().endsWith("chase")`:      true,
		`event.contains('x')`:                       false,
		`"vip" in user`:                             true,
		`value + 10.5 == 100.0`:                     true,
		`value > -1`:                                true,
		`event + "!" == "Purchase!"`:                true,
		`value == "89.5"`:                           false,
		`value < "9"`:                               false,
		`note == null`:                              true,
		`event`:                                     false,
		`'it\'s' == "it's"`:                         true,
		`large > 1`:                                 true,
		`false && false || true`:                    true,
		`value`:                                     false,
		`(value > 1) == true`:                       true,
		`event != "Refund" && value != 0 && !false`: true,
	} {
		f, err := Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := f.Matches(event); got != want {
			t.Errorf("%s is %v, want %v", text, got, want)
		}
	}
}

func TestWrongFilters(t *testing.T) {
	for _, text := range []string{
		``, `a ==`, `a = 1`, `"a`, `'a`, `a b`, `(a`, `[1`, `a.b(`, `a.matches("x")`, `f(x)`, `a & b`, `a | b`, `1 +`, `has(`, `.a`, `a.1`, `a[`,
		strings.Repeat("(", 60) + "a" + strings.Repeat(")", 60), strings.Repeat("!", 60) + "a", strings.Repeat("a", maxLength+1), "a == \"\xff\"",
	} {
		if _, err := Compile(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add(`event == "Purchase" && (value > 1 || 'a' in [b.c, d[1]])`)
	f.Fuzz(func(t *testing.T, text string) {
		if filter, err := Compile(text); err == nil {
			filter.Matches(map[string]any{"event": "a", "value": json.Number("1"), "b": map[string]any{"c": []any{}}})
		}
	})
}
