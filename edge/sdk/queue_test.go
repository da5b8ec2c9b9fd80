package sdk_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// JavaScript expressions: the keys of the records in localStorage, and the number of their events.
const (
	recordKeys = `Object.keys(localStorage).filter((key) => key.startsWith('_mtag.cs_'))`
	stored     = recordKeys + `.reduce((n, key) => n + localStorage[key].split('\n').length, 0)`
)

// wantNothingStored waits until the tag host has answered every event. What has no answer is stored 99 ms after it was made,
// not at once.
func (t *tab) wantNothingStored() {
	t.Helper()
	began := time.Now()
	t.wait("an empty queue", func() bool { return t.get(recordKeys+`.length`) == "0" && time.Since(began) > 150*time.Millisecond })
}

func TestLocalStorageThatIsFull(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		for (let size = 5e6; size >= 1; size = Math.floor(size / 2)) {
			try { for (let i = 0; ; i++) localStorage.setItem(size + 'of' + i, 'x'.repeat(size)) } catch {}
		}
	</script>`+w.snippet(true))
	w.gate.setFault(refuse(503))
	tab := w.visit("/")
	tab.do(`mtag('event', 'InMemory')`)
	w.wait("a second try", func() bool { return len(w.gate.seen()) > 1 })
	if got := tab.get(stored); got != "0" {
		t.Errorf("%s events are stored, so this has tested nothing", got)
	}
	w.gate.setFault(nil)
	w.want("PageView", "InMemory")
}

// A page in a sandbox has no localStorage, no cookies and no locks.
func TestLocalStorageThatIsDenied(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(true)+`<script>mtag('event', 'InTheSandbox')</script>`, "Content-Security-Policy", "sandbox allow-scripts")
	w.gate.setFault(refuse(503))
	tab := w.visit("/")
	if got := tab.get(`(() => { try { return localStorage.length } catch (error) { return error.name } })()`); got != "SecurityError" {
		t.Errorf("localStorage: %s, so this has tested nothing", got)
	}
	w.wait("a second try", func() bool { return len(w.gate.seen()) > 1 })
	w.gate.setFault(nil)
	events := w.want("PageView", "InTheSandbox")
	if events[0].MUID != events[1].MUID || events[0].MUID == "" {
		t.Errorf("muids %q and %q, want the same one", events[0].MUID, events[1].MUID)
	}
}

// Each tab sends by itself. What two of them send is recorded once.
func TestThreeTabsDuringAnOutage(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(refuse(503))
	wanted, tabs := w.threeTabs(shopHost)
	w.gate.setFault(nil)
	w.want(wanted...)
	for _, tab := range tabs {
		tab.wantNothingStored()
	}
}

// threeTabs makes 6 events in each of three tabs, and returns their names.
func (w *world) threeTabs(host string) (names []string, tabs []*tab) {
	w.Helper()
	for range 3 {
		tab := w.tab()
		tab.goTo(w.gate.url(host) + "/")
		tabs, names = append(tabs, tab), append(names, "PageView")
	}
	for i, tab := range tabs {
		tab.do(`for (let i = 0; i < 5; i++) mtag('event', 'InTab%d')`, i)
		names = append(names, repeat(5, fmt.Sprint("InTab", i))...)
	}
	return names, tabs
}

func TestAnEventThatIsTooLarge(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.do(`
		mtag('event', 'Before');
		mtag('event', 'TooLarge', { text: 'ä'.repeat(33000) });
		mtag('event', 'JustFits', { text: 'ä'.repeat(32300) });
		mtag('event', 'After');
	`)
	w.want("PageView", "Before", "JustFits", "After")
	w.wait("a warning", func() bool { return tab.warned("TooLarge") })
	tab.wantNothingStored()
}

// An event that is more than 6 days old may already be recorded, and the tag host forgets an event_id after 7 days.
func TestAnEventThatIsTooOldIsNotSent(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		document.cookie = '_muid=m;path=/;domain=shop.localhost';
		const days = 24 * 60 * 60 * 1000;
		const put = (age, text, visitor = ',m') => localStorage.setItem('_mtag.`+w.tag+`.' + Math.floor(Date.now() - age) + 'mark0.5' + visitor, text);
		put(6.1 * days, '{"event":"TooOld","muid":"m"}');
		put(5.9 * days, '{"event":"OldEnough","muid":"m"}');
		put(4000, '{"event":"OfVersion1","muid":"m"}', '');
		put(1000, 'broken');
		put(2000, ''); // the first step of a removal
		put(3000, '{"event":"OfAnotherVisitor","muid":"m"}', ',n'); // who has withdrawn consent
		localStorage.setItem('_mtag.cs_other.' + Date.now() + 'mark0.5', '{"event":"OfAnotherTag"}');
		localStorage.setItem('cart', '{"event":"OfTheShop"}');
	</script>`+w.snippet(true))
	tab := w.visit("/")
	w.want("PageView", "OldEnough", "OfVersion1")
	w.wait("the removal of the others", func() bool { return tab.get(`Object.keys(localStorage).length`) == "2" })
	w.wait("a line for each", func() bool { return strings.Count(fmt.Sprint(tab.lines()), "not sent, broken or too old") == 4 })
}

func TestTheQueueIsBounded(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(cut)
	tab := w.visit("/")
	tab.do(`for (let i = 0; i < 100; i++) mtag('event', 'Big' + i, { text: 'x'.repeat(30000) })`)
	bounded := `Object.entries(localStorage).join('').length < 2.1e6`
	if tab.get(bounded) != "true" || !tab.warned("not sent: Big99") {
		t.Errorf("bounded: %s; console: %v", tab.get(bounded), tab.lines())
	}
	w.gate.setFault(nil)
	tab.do(`dispatchEvent(new Event('online'))`) // by now the delay may be long
	tab.wantNothingStored()
	events := w.events()
	recorded := map[string]bool{}
	for _, e := range events {
		recorded[e.EventName] = true
	}
	if last := fmt.Sprint("Big", len(events)-2); len(events) < 50 || len(recorded) != len(events) || !recorded[last] {
		t.Errorf("%d events; want at least 50, the first ones until %s: %v", len(events), last, recorded)
	}
}
