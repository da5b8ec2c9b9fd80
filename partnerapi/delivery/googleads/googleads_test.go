package googleads

import (
	"testing"

	"mtagd/partnerapi/delivery/kind"
)

// As util/test/formatter.test.ts of github.com/googleads/data-manager-node has it.
func TestNames(t *testing.T) {
	for _, of := range []struct{ given, family, wantGiven, wantFamily string }{
		{" Alex   ", " Quinn   ", "alex", "quinn"}, {" Mr. Alex   ", " Quinn,Jr.   ", "alex", "quinn"}, {" Dr. Alex   ", "quinn, jr., dds", "alex", "quinn"},
		{" Alex Dr.", "Quinn-Alex", "alex dr.", "quinn-alex"}, {" Mralex   ", "Boardds", "mralex", "boardds"},
	} {
		e := kind.Event{Fields: map[string]any{"first_name": of.given, "last_name": of.family, "country": "GB", "zip": "SW1"}}
		address := identifiers(&e)[0].(map[string]any)["address"].(map[string]any)
		if address["givenName"] != kind.Hash(of.wantGiven) || address["familyName"] != kind.Hash(of.wantFamily) {
			t.Errorf("%q %q is not hashed as %q %q", of.given, of.family, of.wantGiven, of.wantFamily)
		}
	}
}
