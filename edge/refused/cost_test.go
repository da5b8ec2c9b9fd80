package refused

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Of an event with very many words in its identifiers no name is kept but those of the contract, so comparing names costs
// little.
func TestAnEventThatIsMadeToBeSlow(t *testing.T) {
	for what, mail := range map[string]string{"a long identifier": strings.Repeat("q9z.", 2000), "one of many words": strings.Repeat("abc.", 60)} {
		text := fmt.Sprintf(`{"event":"Abca","email":%q`, mail)
		for i := range 400 {
			text += fmt.Sprintf(`,"field%d":0`, i)
		}
		e := &Event{Name: "Abca", Object: []byte(text + "}"), Status: 400}
		ids := identifiersOf(e, decode(e.Object))
		if len(ids.parts) > 2*maxParts || !ids.tooMany {
			t.Errorf("%s: %d parts are compared with each name", what, len(ids.parts))
		}
		if entry := newEntry(e, keyOf(e)); strings.Contains(string(entry.Sample), "field1") || entry.Name != "" {
			t.Errorf("%s: kept %q %s", what, entry.Name, entry.Sample)
		}
	}
}

// A stranger who sends many names, each often, does not push out what a shop sends, from wherever in a network.
func TestAStrangersNamesGiveWayToAShops(t *testing.T) {
	w := newWorld(t)
	w.refuse("a", "Shops", from("192.0.2.1"))
	for i := range 3 * maxOthers {
		w.now = w.now.Add(2 * time.Minute)
		name, address := fmt.Sprintf("Junk%c%c", 'A'+i/26, 'a'+i%26), from(fmt.Sprintf("2001:db8:1:%x::1", i))
		for range 3 {
			w.refuse("a", name, address)
		}
		if w.count("a", name) == 0 {
			t.Fatal("an entry of the stranger is missing: the test shows nothing")
		}
	}
	if w.count("a", "Shops") != 1 {
		t.Error("the shop's entry was pushed out")
	}
	w.check()
}
