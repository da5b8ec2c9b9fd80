package sdk_test

import (
	"strconv"
	"testing"
)

// countCosts counts what makes a tag expensive for its page, from when it runs.
const countCosts = `<script>
	window.cost = {};
	const count = (on, name) => {
		const original = on[name];
		on[name] = new Proxy(original, {
			apply(f, self, args) { cost[name] = (cost[name] || 0) + 1; return Reflect.apply(f, self, args) },
			construct(f, args) { cost[name] = (cost[name] || 0) + 1; return Reflect.construct(f, args) },
		});
	};
	count(window, 'Blob');
	count(Intl, 'DateTimeFormat');
	const jar = Object.getOwnPropertyDescriptor(Document.prototype, 'cookie');
	Object.defineProperty(document, 'cookie', {
		get() { cost.cookie = (cost.cookie || 0) + 1; return jar.get.call(document) },
		set(text) { jar.set.call(document, text) },
	});
	const kept = localStorage;
	const proxy = new Proxy(kept, {
		get(_, name) { cost.read = (cost.read || 0) + 1; return kept[name] },
		set(_, name, value) { cost.written = (cost.written || 0) + 1; kept[name] = value; return true },
	});
	Object.defineProperty(window, 'localStorage', { get() { cost.opened = (cost.opened || 0) + 1; return proxy } });
	document.addEventListener('load', (event) => { if (event.target.src) window.atLoad = Object.assign({}, cost) }, true); // right after the script
</script>`

// cost returns how often the page has made a call.
func (t *tab) cost(name string) int {
	t.Helper()
	n, err := strconv.Atoi(t.get(`cost.` + name + ` || 0`))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Events that are made together are stored together, and look at the cookie once. What waits is read once, when consent is
// known.
func TestWhatManyEventsCost(t *testing.T) {
	const calls = 1000
	w := newWorld(t)
	w.page("/", countCosts+w.snippet(true))
	w.page("/left", w.snippet(true))
	w.gate.setFault(refuse(503))
	left := w.visit("/left")
	left.do(`for (let i = 0; i < %d; i++) mtag('event', 'Left')`, calls)
	left.wait("the events to be stored", func() bool { return left.get(stored) == strconv.Itoa(calls+1) })
	left.close()
	w.gate.setFault(nil)

	tab := w.visit("/")
	if got := tab.get(`[atLoad.opened || 0, atLoad.cookie <= 10]`); got != "0,true" {
		t.Errorf("the task that loads the script: localStorage opened, which is slow, and few looks at the cookie: %s, want 0,true", got)
	}
	tab.do(`for (let i = 0; i < %d; i++) mtag('event', 'Many')`, calls)
	tab.wantNothingStored()
	w.wait("the events", func() bool { return len(w.events()) == 2*calls+2 })
	if read := tab.cost("read"); read > calls/20 {
		t.Errorf("%d events were left and %d made: %d reads of localStorage, want less than one for 20 that were left", calls, calls, read)
	}
	if written := tab.cost("written"); written > calls/20 {
		t.Errorf("%d events were made: %d writes to localStorage, want less than one for 20", calls, written)
	}
	if read := tab.cost("cookie"); read > calls/20 {
		t.Errorf("%d events were made: %d reads of the cookie, want less than one for 20", calls, read)
	}
	if tab.cost("Blob") > 0 || tab.cost("DateTimeFormat") > 0 {
		t.Errorf("%d Blobs and %d DateTimeFormats, want none", tab.cost("Blob"), tab.cost("DateTimeFormat"))
	}
}
