package asset

import "testing"

func TestNegotiate(t *testing.T) {
	for accept, want := range map[string]string{
		"":                             "",
		"gzip":                         "gzip",
		"gzip, deflate, br, zstd":      "zstd",
		"zstd;q=0.5, gzip":             "gzip",
		"zstd;q=0, gzip;q=0":           "",
		"GZIP ; q=0.3":                 "gzip",
		"identity, br":                 "",
		"x-gzip":                       "gzip",
		"gzip;q=much":                  "",
		"gzip;q=0.8,zstd;q=0.8,br;q=1": "zstd",
	} {
		if got := Negotiate(accept, "zstd", "gzip"); got != want {
			t.Errorf("for %q the encoding is %q, want %q", accept, got, want)
		}
	}
}
