package kind

import "testing"

// As util/test/formatter.test.ts of github.com/googleads/data-manager-node has it.
func TestGoogleEmail(t *testing.T) {
	for address, want := range map[string]string{
		" QuinnY@example.com ": "quinny@example.com", "Jefferson.Loves.hiking@gmail.com": "jeffersonloveshiking@gmail.com",
		"j.e.f+promo@GoogleMail.com": "jef@googlemail.com", "a.b+c@example.com": "a.b+c@example.com", "gmail.com": "gmail.com",
	} {
		if got := GoogleEmail(address); got != want {
			t.Errorf("%q is %q, want %q", address, got, want)
		}
	}
}
