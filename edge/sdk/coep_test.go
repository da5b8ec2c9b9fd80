package sdk_test

import (
	"strings"
	"testing"
)

// A page with a Cross-Origin-Embedder-Policy loads only what allows it. The tag works there, from a tag host of another
// site, also when the page closes.
func TestPagesThatAreCrossOriginIsolated(t *testing.T) {
	for _, policy := range []string{"require-corp", "credentialless"} {
		t.Run(policy, func(t *testing.T) {
			w := newWorld(t)
			w.page("/", strings.ReplaceAll(w.snippet(true), w.gate.url(tagHost), w.gate.url("tls "+tagHost)),
				"Cross-Origin-Embedder-Policy", policy, "Cross-Origin-Opener-Policy", "same-origin")
			tab := w.tab()
			tab.goTo(w.gate.url("tls "+otherHost) + "/")
			w.want("PageView")
			tab.wantNothingStored()
			if tab.get(`crossOriginIsolated`) != "true" {
				t.Fatal("the page is not isolated")
			}
			tab.do(`addEventListener('pagehide', () => mtag('event', 'Leaving'))`)
			tab.goTo("about:blank")
			w.want("PageView", "Leaving")
			for _, line := range tab.lines() {
				if strings.Contains(line, "BLOCKED") {
					t.Error(line)
				}
			}
		})
	}
}
