package store

import (
	"strings"
	"testing"
	"time"
)

// A text that is taken for an API key has only the characters of one. A client sends texts of its own making.
func FuzzAPIKey(f *testing.F) {
	_, key := NewKey("p", time.Time{}, KeyOptions{})
	odd := "aaaa\naaaaaa'" + strings.Repeat("\x00", secretLen)
	for _, text := range []string{string(key), "mtp_", string(key)[:len(key)-1] + "\n", "mtp_" + odd + checksum(odd)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := APIKey(text).ID()
		if err == nil && (len(id) != credentialIDLen || strings.Trim(text, "_"+credentialAlphabet) != "") {
			t.Errorf("%q is taken for the key %q", text, id)
		}
	})
}

// A text that is taken for a session, as in a cookie, or for a link of the console has only the characters of one. It opens
// nothing unless it is the right one.
func FuzzSessionText(f *testing.F) {
	now := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	link, ofLink := NewLink("p", now)
	session, ofSession := NewSession(Key{ID: "k", Partner: "p"}, now)
	odd := "aaaa\naaaaaa'" + strings.Repeat("\x00", secretLen)
	other := string(link.ID) + strings.Repeat("a", secretLen)
	for _, text := range []string{string(ofLink), string(ofSession), "mtl_", string(ofLink) + "\n", "mtc_" + string(ofLink)[len(linkPrefix):],
		"mtl_" + odd + checksum(odd), "mtl_" + other + checksum(other)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := SessionText(text).ID()
		if err == nil && (len(id) != credentialIDLen || strings.Trim(text, "_"+credentialAlphabet) != "") {
			t.Errorf("%q is taken for the session or link %q", text, id)
		}
		if got, want := SessionText(text).Opens(link, now), text == string(ofLink); got != want {
			t.Errorf("%q opens the link: %v", text, got)
		}
		if got, want := SessionText(text).Matches(session), text == string(ofSession); got != want {
			t.Errorf("%q is the session: %v", text, got)
		}
	})
}
