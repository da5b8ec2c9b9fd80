package kind

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mtagd/store"
)

// Setting is a setting of a kind.
type Setting struct {
	Name     string
	Type     SettingType
	Hint     string // what it must be, in words that follow "must be"
	Required bool
	Default  string
	Pattern  *regexp.Regexp // of a text, and of each value of a table; nil: any
	Hidden   bool           // no form asks for it
}

// SettingType is the type of a setting's JSON value.
type SettingType string

// The types of settings.
const (
	Text   SettingType = "text"
	Flag   SettingType = "flag"   // true or false
	Table  SettingType = "table"  // an object of strings
	Number SettingType = "number" // a whole number; only hidden settings
)

// Values are the settings of a destination, by name.
type Values struct {
	texts   map[string]string
	flags   map[string]bool
	tables  map[string]map[string]string
	numbers map[string]int
}

// Text returns a setting; its default if it is not given.
func (v Values) Text(name string) string { return v.texts[name] }

// Flag returns a setting.
func (v Values) Flag(name string) bool { return v.flags[name] }

// Table returns a setting.
func (v Values) Table(name string) map[string]string { return v.tables[name] }

// Number returns a setting; its default if it is not given.
func (v Values) Number(name string) int { return v.numbers[name] }

// Read reads settings, and checks them.
func (o Options) Read(settings []Setting) (Values, error) {
	v := Values{map[string]string{}, map[string]bool{}, map[string]map[string]string{}, map[string]int{}}
	given, all := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if len(o.Settings) > 0 {
		if err := json.Unmarshal(o.Settings, &all); err != nil {
			return v, store.Invalid("settings", "must be an object")
		}
	}
	for name, raw := range all {
		// Names that older versions stored may be in another case. Receiver reads them in any case, too.
		i := slices.IndexFunc(settings, func(s Setting) bool { return strings.EqualFold(s.Name, name) })
		if i < 0 {
			return v, store.Invalid("settings."+name, "is not a setting of this type of destination")
		}
		if name = settings[i].Name; given[name] != nil {
			return v, store.Invalid("settings."+name, "must be given once: another name differs in case alone")
		}
		given[name] = raw
	}
	for _, s := range settings {
		raw, isGiven := given[s.Name]
		var text string
		var flag bool
		var table map[string]string
		number, _ := strconv.Atoi(s.Default) // 0 unless it has one
		into := map[SettingType]any{Text: &text, Flag: &flag, Table: &table, Number: &number}[s.Type]
		if isGiven && json.Unmarshal(raw, into) != nil {
			return v, store.Invalid("settings."+s.Name, "must be %s", s.Hint)
		}
		if s.Required && text == "" && len(table) == 0 {
			return v, store.Invalid("settings."+s.Name, "is required: %s", s.Hint)
		}
		for _, one := range slices.AppendSeq([]string{text}, maps.Values(table)) {
			if one != "" && s.Pattern != nil && !s.Pattern.MatchString(one) {
				return v, store.Invalid("settings."+s.Name, "must be %s", s.Hint)
			}
		}
		if text == "" {
			text = s.Default
		}
		v.texts[s.Name], v.flags[s.Name], v.tables[s.Name], v.numbers[s.Name] = text, flag, table, number
	}
	return v, nil
}

// CheckURL checks the address of a server: of a merchant's own system, or of a platform's API. The latter differs from the
// default only in tests, and when the merchant has a gateway.
func (o Options) CheckURL(setting, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && !(o.AllowHTTP && u.Scheme == "http") || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return store.Invalid("settings."+setting, "must be an address such as https://example.com")
	}
	return nil
}

// Receiver returns the server that gets the destination's secrets: what url, endpoint, host or brokers in its settings name;
// "" when there is none of these.
func Receiver(settings json.RawMessage) string {
	var s struct{ URL, Endpoint, Host, Brokers string }
	if json.Unmarshal(settings, &s) != nil { // kinds refuse them
		return ""
	}
	text := strings.ToLower(cmp.Or(s.URL, s.Endpoint, s.Host, s.Brokers))
	if u, err := url.Parse(text); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	return text
}
