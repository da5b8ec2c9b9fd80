package tag

import (
	"fmt"
	"strings"
	"testing"
)

func TestUserAgentsThatCallThemselvesBots(t *testing.T) {
	b := new(bots)
	for userAgent, want := range map[string]bool{
		"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)":                                                       true,
		"Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm) Chrome/120.0.0.0": true,
		"Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; +https://openai.com/gptbot)":                         true,
		"Mozilla/5.0 (compatible; AhrefsBot/7.0; +http://ahrefs.com/robot/)":                                                             true,
		"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/120.0.0.0 Safari/537.36":                  true,
		"facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)":                                                      true,
		"SomeShopBot/1.0": true,
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36":                         false,
		"Mozilla/5.0 (iPhone; CPU iPhone OS 17_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.1 Mobile/15E148 Safari/604.1": false,
		"Mozilla/5.0 (Linux; Android 10; CUBOT_X18_Plus) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/96.0.4664.45 Mobile Safari/537.36":         false,
		"curl/8.5.0": false, "python-requests/2.31.0": false, "Go-http-client/1.1": false, "node": false, "": false,
		strings.Repeat("a/1 ", 64) + "Googlebot/2.1": false, // behind the first 256 bytes
	} {
		for range 2 { // the second time it is remembered
			if got := b.isBot(userAgent); got != want {
				t.Errorf("%q: %v, want %v", userAgent, got, want)
			}
		}
	}
}

func TestUserAgentsTakeBoundedMemory(t *testing.T) {
	b := new(bots)
	for i := range 5 * maxUserAgents {
		if userAgent := fmt.Sprintf("Visitor%d/1.0", i); b.isBot(userAgent) {
			t.Fatalf("%s is a bot", userAgent)
		}
		if !b.isBot("Googlebot/2.1") {
			t.Fatal("Googlebot/2.1 is no bot")
		}
	}
	n := 0
	for range b.known.Range {
		n++
	}
	if n > maxUserAgents {
		t.Errorf("%d user agents are remembered", n)
	}
}

func TestEventsOfBotsAreMarked(t *testing.T) {
	const googlebot, browser = "Googlebot/2.1", "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36"
	for _, tt := range []struct {
		sentence, header, body string
		want                   []bool
	}{
		{"the User-Agent is a bot's", googlebot, `{"muid":"m","event":"A"}`, []bool{true}},
		{"the User-Agent is a browser's", browser, `{"muid":"m","event":"A"}`, []bool{false}},
		{"there is no User-Agent", "", `{"muid":"m","event":"A"}`, []bool{false}},
		{"a backend's User-Agent is no bot's", "Go-http-client/1.1", `{"muid":"m","event":"A"}`, []bool{false}},
		{"a backend passes on a bot's", "Go-http-client/1.1", `{"muid":"m","event":"A","user_agent":"Googlebot/2.1"}`, []bool{true}},
		{"a backend that looks like a bot passes on a browser's", googlebot, `{"muid":"m","event":"A","user_agent":"` + browser + `"}`, []bool{false}},
		{"a user_agent that is no string does not count", googlebot, `{"muid":"m","event":"A","user_agent":7}`, []bool{true}},
		{"an empty user_agent does not count", googlebot, `{"muid":"m","event":"A","user_agent":""}`, []bool{true}},
		{"events of a batch", googlebot, `[{"muid":"m","event":"A","user_agent":"node"},{"muid":"m","event":"A"}]`, []bool{false, true}},
	} {
		w := newWorld(t)
		path := "/mark/" + string(w.Client.ID)
		w.do("POST", clientHost, path, tt.body, "User-Agent", tt.header)
		events := w.Events(t)
		if len(events) != len(tt.want) {
			t.Fatalf("%s: %d events, want %d", tt.sentence, len(events), len(tt.want))
		}
		for i, e := range events {
			if e.Bot != tt.want[i] {
				t.Errorf("%s: event %d: bot %v, want %v", tt.sentence, i, e.Bot, tt.want[i])
			}
		}
	}
}

func TestARequestHasOnlySomeUserAgentsParsed(t *testing.T) {
	w := newWorld(t)
	w.server.bots.isBot("KnownBot/1.0")
	var body strings.Builder
	for i := range maxParsed + 2 {
		fmt.Fprintf(&body, `,{"muid":"m","event":"A","user_agent":"Bot%d/1.0"}`, i)
	}
	w.mark("[" + body.String()[1:] + `,{"muid":"m","event":"A","user_agent":"KnownBot/1.0"}]`)
	for i, e := range w.Events(t) {
		if want := i != maxParsed && i != maxParsed+1; e.Bot != want {
			t.Errorf("event %d: bot %v, want %v", i, e.Bot, want)
		}
	}
}
