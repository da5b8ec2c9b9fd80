package kind

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
)

// Hash returns the SHA-256 of a text in hexadecimal; "" of an empty text, and a text that is such a hash already as it is.
func Hash(s string) string {
	if s == "" || isHash(s) {
		return strings.ToLower(s)
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func isHash(s string) bool {
	_, err := hex.DecodeString(s)
	return len(s) == 2*sha256.Size && err == nil
}

// Email returns an address in lower case, without surrounding space.
func Email(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// GoogleEmail returns an address as Google hashes it: for Gmail, without dots and without the part after +.
func GoogleEmail(s string) string {
	s = Email(s)
	if _, domain, _ := strings.Cut(s, "@"); domain == "gmail.com" || domain == "googlemail.com" {
		return WithoutAlias(s)
	}
	return s
}

// WithoutAlias returns an address without dots and without the part after + before its @.
func WithoutAlias(s string) string {
	user, domain, ok := strings.Cut(s, "@")
	if !ok {
		return s
	}
	user, _, _ = strings.Cut(user, "+")
	return strings.ReplaceAll(user, ".", "") + "@" + domain
}

// Postcode are the names of the field with a postal code.
var Postcode = []string{"zip", "postal_code", "postcode"}

// postcode returns a postal code in lower case without punctuation, and one of the United States without its last four
// digits.
func postcode(s string) string {
	if short, _, ok := strings.Cut(s, "-"); ok && len(short) == 5 && len(s) == 10 {
		s = short
	}
	return Letters(s)
}

// Digits returns the digits of a phone number with its country code, without leading zeros; "" when there are too few.
func Digits(s string) string {
	if s = strings.TrimSpace(s); isHash(s) {
		return s
	}
	digits := strings.TrimLeft(strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, s), "0")
	if len(digits) < 7 {
		return ""
	}
	return digits
}

// Letters returns a name in lower case, without space and punctuation.
func Letters(s string) string {
	if isHash(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsPunct(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, s)
}

// E164 returns a phone number as + and digits. A hash stays as it is. "" means that the text is neither.
func E164(s string) string {
	digits := Digits(s)
	if digits == "" || isHash(digits) {
		return digits
	}
	return "+" + digits
}

// HashedPerson returns the visitor's identifiers as lists of hashes, under the names that Meta, Pinterest and Snap share.
func (e *Event) HashedPerson() map[string]any {
	user := map[string]any{}
	country := strings.ToLower(e.Text("country"))
	if len(country) != 2 {
		country = ""
	}
	for name, value := range map[string]string{
		"em": Email(e.Text("email")), "ph": Digits(e.Text("phone")), "country": country,
		"fn": Letters(e.Text("first_name", "firstName")), "ln": Letters(e.Text("last_name", "lastName")),
		"ct": Letters(e.Text("city")), "st": Letters(e.Text("state", "region")), "zp": postcode(strings.TrimSpace(e.Text(Postcode...))),
	} {
		if value != "" {
			user[name] = []string{Hash(value)}
		}
	}
	Put(user, "client_ip_address", e.Address())
	Put(user, "client_user_agent", e.UserAgent())
	return user
}

// Put sets a field unless the name or the value is empty.
func Put(in map[string]any, name, value string) {
	if name != "" && value != "" {
		in[name] = value
	}
}

// AdConsent is what ad platforms need.
var AdConsent = []string{"ad_storage", "ad_user_data"}

// HasConsent reports whether an event says that its visitor has agreed to all of some categories: its field consent is true,
// or an object in which each of them is true or "granted". What is not stated is not granted.
func HasConsent(fields map[string]any, categories []string) bool {
	switch consent := fields["consent"].(type) {
	case bool:
		return consent || len(categories) == 0
	case map[string]any:
		for _, category := range categories {
			if v := consent[category]; v != true && v != "granted" {
				return false
			}
		}
		return true
	}
	return len(categories) == 0
}
