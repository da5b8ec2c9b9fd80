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
