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
	Name     string         `json:"name"`
	Type     SettingType    `json:"type"`
	Hint     string         `json:"hint"` // what it must be, in words that follow "must be"
	Required bool           `json:"required"`
	Default  string         `json:"default"`
	Pattern  *regexp.Regexp `json:"-"` // of a text, and of each value of a table; nil: any
	Hidden   bool           `json:"-"` // no form asks for it
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
type Values map[string]value

// value is the value of a setting. Its type says which of these it is.
type value struct {
	text   string
	flag   bool
	table  map[string]string
	number int
}

// Text returns a setting; its default if it is not given.
func (v Values) Text(name string) string { return v[name].text }

// Flag returns a setting.
func (v Values) Flag(name string) bool { return v[name].flag }

// Table returns a setting.
func (v Values) Table(name string) map[string]string { return v[name].table }

// Number returns a setting; its default if it is not given.
func (v Values) Number(name string) int { return v[name].number }

// read reads settings from a JSON object, and checks them.
func read(object json.RawMessage, settings []Setting) (Values, error) {
	v, given, all := Values{}, map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if len(object) > 0 && json.Unmarshal(object, &all) != nil {
		return v, store.Invalid("settings", "must be an object")
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
		var of value
		of.number, _ = strconv.Atoi(s.Default) // 0 unless it has one
		into := map[SettingType]any{Text: &of.text, Flag: &of.flag, Table: &of.table, Number: &of.number}[s.Type]
		if raw, isGiven := given[s.Name]; isGiven && json.Unmarshal(raw, into) != nil {
			return v, store.Invalid("settings."+s.Name, "must be %s", s.Hint)
		}
		if s.Required && of.text == "" && len(of.table) == 0 {
			return v, store.Invalid("settings."+s.Name, "is required: %s", s.Hint)
		}
		for _, one := range slices.AppendSeq([]string{of.text}, maps.Values(of.table)) {
			if one != "" && s.Pattern != nil && !s.Pattern.MatchString(one) {
				return v, store.Invalid("settings."+s.Name, "must be %s", s.Hint)
			}
		}
		of.text = cmp.Or(of.text, s.Default)
		v[s.Name] = of
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
