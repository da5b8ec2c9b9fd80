package sdk_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// ga4Fields are the fields of events that come from GA4's.
const ga4Fields = "value currency products transaction_id coupon shipping_cost tax shipping_tier payment_event item_id " +
	"search_term method share_method item_list_id item_list_name promotion_id promotion_name creative_name creative_slot " +
	"items ecommerce email user_data plan ok step user_id"

// Each line is a GA4 event, its parameters, and the pre-defined event with its fields.
const conversions = `
view_item {value: 5, items: [{item_id: 'p1'}]} ViewItem {"products":[{"id":"p1"}],"value":5}
view_cart {} ViewCart {}
add_to_cart {value: '12.50', currency: 'EUR', items: [{item_name: 'Shoe'}]} AddToCart {"currency":"EUR","products":[{"id":"Shoe","name":"Shoe"}],"value":12.5}
remove_from_cart {items: [{item_id: 7, quantity: '2', currency: 'USD'}, null]} RemoveFromCart {"currency":"USD","products":[{"id":"7","quantity":2}]}
add_to_wishlist {items: []} AddToWishlist {"products":[]}
begin_checkout {value: 'unknown', coupon: 'TEN'} BeginCheckout {"coupon":"TEN"}
add_payment_info {payment_type: 'card'} AddPaymentInfo {"payment_event":"card"}
add_shipping_info {shipping_tier: 'Ground'} AddShippingInfo {"shipping_tier":"Ground"}
purchase {transaction_id: 1001, value: 0, tax: 1, shipping: '2'} Purchase {"shipping_cost":2,"tax":1,"transaction_id":"1001","value":0}
refund {transaction_id: '1001', value: ''} Refund {"transaction_id":"1001"}
search {search_term: 'shoes', email: 'ann@example.com'} Search {"search_term":"shoes"}
share {method: 'mail', item_id: 'p1'} Share {"item_id":"p1","share_method":"mail"}
login {method: 'Google'} Login {"method":"Google"}
sign_up {method: 'Google', user_data: {email: 'ann@example.com'}} Signup {"method":"Google"}
generate_lead {value: 3, currency: 'EUR'} Lead {"currency":"EUR","value":3}
view_item_list {item_list_id: 'l1', item_list_name: 'Home', items: [{item_id: 'p1'}]} ViewItemList {"item_list_id":"l1","item_list_name":"Home","products":[{"id":"p1"}]}
select_item {item_list_id: 'l1', items: [{item_id: 'p1'}]} SelectItem {"item_list_id":"l1","products":[{"id":"p1"}]}
view_promotion {promotion_id: 'a', promotion_name: 'b', creative_name: 'c', creative_slot: 'd'} ViewPromotion {"creative_name":"c","creative_slot":"d","promotion_id":"a","promotion_name":"b"}
select_promotion {promotion_id: 'a'} SelectPromotion {"promotion_id":"a"}
quiz_finished {plan: 'gold', step: 3, ok: true, user_data: {email: 'ann@example.com'}, items: [1]} QuizFinished {"ok":true,"plan":"gold","step":3}
`

// gtagFunction is what pages define for gtag.js.
const gtagFunction = `window.dataLayer = window.dataLayer || []; function gtag() { dataLayer.push(arguments) }`

// visitGA4 opens a page that has the ga4 extra and runs a script before it.
func (w *world) visitGA4(script string) *tab {
	w.Helper()
	w.page("/", "<script>"+script+"</script>"+w.snippetWith("ga4"))
	return w.visit("/")
}

func TestGA4EventsBecomeThePredefinedOnes(t *testing.T) {
	w := newWorld(t)
	tab := w.visitGA4(gtagFunction)
	wanted := []string{"PageView"}
	fields := map[string]string{}
	for i, tt := range []struct{ name, push string }{
		{"calls of gtag", "gtag('event', NAME, PARAMS)"},
		{"pushes without ecommerce", "dataLayer.push(Object.assign({ event: NAME }, PARAMS))"},
		{"pushes of ecommerce", "dataLayer.push({ ecommerce: null }); dataLayer.push(Object.assign({ event: NAME }, PARAMS, { ecommerce: PARAMS }))"},
	} {
		tab.do("mtag('set', { test: %q })", tt.name)
		// A transaction is recorded once.
		for line := range strings.Lines(strings.ReplaceAll(strings.TrimSpace(conversions), "1001", fmt.Sprint(1001+i))) {
			from, to := line[:strings.Index(line, "} ")+1], line[strings.Index(line, "} ")+2:]
			name, params, _ := strings.Cut(from, " ")
			event, want, _ := strings.Cut(strings.TrimSpace(to), " ")
			wanted, fields[tt.name+event] = append(wanted, event), want
			tab.do("%s", strings.NewReplacer("NAME", "'"+name+"'", "PARAMS", params).Replace(tt.push))
		}
	}
	for _, e := range w.want(wanted...) {
		test, _ := e.RawData["test"].(string)
		if got, want := e.fields(ga4Fields), cmp.Or(fields[test+e.EventName], "{}"); got != want {
			t.Errorf("%s: %s has %s\nwant %s", test, e.EventName, got, want)
		}
	}
}

func TestAGA4ItemIsAProduct(t *testing.T) {
	w := newWorld(t)
	tab := w.visitGA4(gtagFunction)
	wanted, products := []string{"PageView"}, map[string]string{}
	for _, tt := range []struct{ name, item, want string }{
		{"all fields", `{item_id: 'p1', item_name: 'Shoe', item_category: 'Sport', item_category2: 'Shoes', item_category5: 'Red', item_brand: 'Acme',
			item_variant: 'red 42', price: '89.90', quantity: 2, coupon: 'TEN', discount: 10, index: 3, item_list_name: 'Home'}`,
			`{"brand":"Acme","category":"Sport,Shoes,Red","coupon":"TEN","discount":10,"id":"p1","name":"Shoe","price":89.9,"quantity":2,"variant":"red 42"}`},
		{"the names of older pages", `{id: 'p1', name: 'Shoe', category: 'Sport/Shoes', brand: 'Acme', variant: 'red'}`,
			`{"brand":"Acme","category":"Sport/Shoes","id":"p1","name":"Shoe","variant":"red"}`},
		{"a price that is no number", `{item_id: 'p1', price: '89,90', quantity: null, discount: ''}`, `{"id":"p1"}`},
		{"no id", `{price: 1}`, `{"price":1}`},
	} {
		tab.do("mtag('set', { test: %q }); gtag('event', 'view_item', { items: [%s] })", tt.name, tt.item)
		wanted, products[tt.name] = append(wanted, "ViewItem"), `{"products":[`+tt.want+`]}`
	}
	for _, e := range w.want(wanted...) {
		name, _ := e.RawData["test"].(string)
		if got := e.fields("products"); e.EventName == "ViewItem" && got != products[name] {
			t.Errorf("%s: got  %s\nwant %s", name, got, products[name])
		}
	}
}

// Each case is a script that runs before the tag, one that runs after it, and the events besides the page view, each with
// its value. The cases without the first script, which come first, share a page.
func TestWhichEntriesOfDataLayerAreEvents(t *testing.T) {
	// gtm replaces push as GTM does: it keeps the entry, handles it, and returns a boolean.
	const gtm = `
		window.handled = [];
		const before = dataLayer.push;
		dataLayer.push = function (...entries) {
			before.apply(dataLayer, entries);
			handled.push(...entries);
			return true;
		};`
	const push = `dataLayer.push({ event: 'view_cart', ecommerce: { value: 1 } });`
	w := newWorld(t)
	tab := w.tab()
	path := ""
	for i, tt := range []struct {
		name, before, after string
		want                string
	}{
		{"pushed after the tag", ``, push, `ViewCart{"value":1}`},
		{"the same object pushed twice", ``, `const entry = { event: 'login' }; dataLayer.push(entry); dataLayer.push(entry)`, `Login{} Login{}`},
		{"ecommerce pushed alone, and cleared", ``, `
			dataLayer.push({ ecommerce: { value: 2 } });
			dataLayer.push({ event: 'view_cart' }, { event: 'login' });
			dataLayer.push({ ecommerce: null });
			dataLayer.push({ event: 'view_cart' });`, `Login{} ViewCart{"value":2} ViewCart{}`},
		{"one ecommerce replaces the other", ``, push + `dataLayer.push({ event: 'view_item', ecommerce: { tax: 2 } })`,
			`ViewCart{"value":1} ViewItem{"tax":2}`},
		{"events that are not pre-defined", ``, `
			for (const event of ['gtm.js', 'page_view', 'user_engagement', 'Purchase', 'gtm.click', '_x', 1, null, {}, ['login']]) dataLayer.push({ event })`, ``},
		{"pushed before the tag", `window.dataLayer = [{ event: 'login' }];` + push, ``, `Login{} ViewCart{"value":1}`},
		{"GTM is there first", `window.dataLayer = [];` + gtm + push, push + `if (dataLayer.push({}) !== true) throw 1`,
			`ViewCart{"value":1} ViewCart{"value":1}`},
		{"GTM comes later", `window.dataLayer = [];` + push, gtm + push + `if (handled.length != 1) throw 1`,
			`ViewCart{"value":1} ViewCart{"value":1}`},
		{"push returns the length", `window.dataLayer = [1];`, `if (dataLayer.push(2, 3) != 3 || dataLayer.join() != '1,2,3') throw 1`, ``},
		{"a call for Google Ads", gtagFunction, `
			gtag('event', 'view_cart', { value: 1, send_to: 'AW-123/abc' });
			gtag('event', 'view_cart', { value: 2, send_to: ['AW-123', 'DC-4'] });
			gtag('event', 'view_cart', { value: 3, send_to: ['AW-123', 'G-ABC'] });
			gtag('event', 'view_cart', { value: 4, send_to: 'default' });
			gtag('event', 'conversion', { value: 5, send_to: 'AW-123/abc' });
			gtag('config', 'G-ABC'); gtag('js', new Date()); gtag('event');`, `ViewCart{"value":3} ViewCart{"value":4}`},
		{"entries of all kinds", `window.dataLayer = [null, undefined, 'login', 7, () => {}, [], Object.create(null)];`, `
			dataLayer.push(null, undefined, 'login', 7, () => {}, [], Object.freeze({ event: 'login' }));
			dataLayer.push({ event: 'purchase', items: [{ price: Symbol() }] });
			dataLayer.push({ get event() { throw new Error('on purpose'); } });
			if (dataLayer.length != 16) throw 1`, `Login{}`},
		{"dataLayer is no array", `window.dataLayer = { event: 'login' };`, `mtag('event', 'Lead')`, `Lead{}`},
	} {
		if i == 0 || tt.before != "" {
			path = fmt.Sprint("/case", i)
			w.page(path, "<script>"+tt.before+"</script>"+w.snippetWith("ga4"))
			tab.goTo(w.gate.url(shopHost) + path)
		} else {
			tab.do(`dataLayer.push({ ecommerce: null })`)
		}
		tab.do("mtag('set', { test: %q }); %s", tt.name, tt.after)
		tab.do(`mtag('event', 'End')`)
		var got []string
		w.wait("the end of "+tt.name, func() bool {
			got = nil
			ended := false
			for _, e := range w.at(path, false) {
				if test := e.RawData["test"]; test != nil && test != tt.name {
					continue // of an earlier case
				}
				if ended = ended || e.EventName == "End"; e.EventName != "End" {
					got = append(got, e.EventName+e.fields(ga4Fields))
				}
			}
			return ended && len(got) >= strings.Count(tt.want, "{") // the last event may be recorded first
		})
		slices.Sort(got)
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s: got  %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// Older templates assign dataLayer. With a tag from the cache, that may come after the tag.
func TestAPageThatReplacesDataLayerWhileItLoads(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>window.dataLayer = [{ event: 'login' }]</script>`+
		strings.Replace(w.snippetWith("ga4"), " async", "", 1)+
		`<script>dataLayer = dataLayer.concat([{ event: 'search' }])</script>`)
	w.visit("/").do(`dataLayer.push({ event: 'share' })`)
	w.want("PageView", "Login", "Search", "Share")
}

// GA4 counts a transaction once.
func TestAPurchaseWhosePageIsLoadedAgainIsRecordedOnce(t *testing.T) {
	w := newWorld(t)
	const script = `window.dataLayer = [{ event: 'purchase', ecommerce: { transaction_id: 'order-1001' } },
		{ event: 'refund', ecommerce: { transaction_id: 'order-1001' } }];`
	w.visitGA4(script)
	w.want("PageView", "Purchase", "Refund")
	tab := w.visitGA4(script + `mtrem = [['event', 'End']];`)
	w.want("PageView", "PageView", "Purchase", "Refund", "Refund", "End")
	tab.wantNothingStored()
}

func TestTheEventIDThatAPageGivesGA4(t *testing.T) {
	w := newWorld(t)
	tab := w.visitGA4(gtagFunction)
	tab.do(`
		gtag('event', 'login', { event_id: 'login-7' });
		gtag('event', 'search', { event_id: 'x'.repeat(200) });
		gtag('event', 'purchase', { event_id: 'p7', transaction_id: 'order-1001' });
	`)
	wanted := map[string]string{"Login": "login-7", "Purchase": "p7"}
	for _, e := range w.want("PageView", "Login", "Search", "Purchase") {
		if want := wanted[e.EventName]; want != "" && e.RawData["event_id"] != want {
			t.Errorf("%s has event_id %v, want %s", e.EventName, e.RawData["event_id"], want)
		}
	}
}

func TestGA4EventsAreNotSentWithoutConsent(t *testing.T) {
	w := newWorld(t)
	w.page("/", strings.Replace(w.snippetWith("ga4"), "consent: true", "consent: false", 1))
	tab := w.visit("/")
	tab.do(`dataLayer.push({ event: 'login' })`)
	tab.wantNothingStored()
	if seen := w.gate.seen(); len(seen) > 0 {
		t.Errorf("sent without consent: %v", seen)
	}
	tab.do(`mtag('consent', true)`)
	w.want("PageView", "Login")
}

// The tag understands GA4's words in its own calls too.
func TestGA4sWordsInCallsOfTheTag(t *testing.T) {
	for _, head := range []string{"with", "without"} {
		t.Run(head+" the part names in the page", func(t *testing.T) {
			w := newWorld(t)
			if head == "with" {
				w.page("/", w.snippetWith("names"))
			}
			tab := w.visit("/")
			tab.do(`
				mtag('event', 'purchase', { transaction_id: 1001, shipping: 2, value: '89', items: [{ item_id: 'p1', price: '89' }], plan: 'gold' });
				mtag('event', { type: 'add_to_cart', items: [{ item_name: 'Shoe' }] });
				mtag('event', 'quiz_finished', { step: 3 }, () => (window.told = true));
				mtag('event', 'Search', { search_term: 'x' });
			`)
			wanted := map[string]string{
				"Purchase":     `{"plan":"gold","products":[{"id":"p1","price":89}],"shipping_cost":2,"transaction_id":"1001","value":89}`,
				"AddToCart":    `{"products":[{"id":"Shoe","name":"Shoe"}]}`,
				"QuizFinished": `{"step":3}`, "Search": `{"search_term":"x"}`, "PageView": `{}`,
			}
			for _, e := range w.want("PageView", "Purchase", "AddToCart", "QuizFinished", "Search") {
				if got := e.fields(ga4Fields + " shipping type"); got != wanted[e.EventName] {
					t.Errorf("%s has %s\nwant %s", e.EventName, got, wanted[e.EventName])
				}
			}
			w.wait("the callback", func() bool { return tab.get(`window.told`) == "true" })
		})
	}
}

// The page tells GA4 who its user is: a field of later events, and identifiers.
func TestTheUserThatThePageTellsGA4(t *testing.T) {
	w := newWorld(t)
	tab := w.visitGA4(gtagFunction)
	tab.do(`
		gtag('config', 'G-ABC', { user_id: 7 });
		gtag('event', 'login', {});
		gtag('set', 'user_data', { email: 'ann@example.com' });
		dataLayer.push({ user_id: 'u8', user_data: { phone_number: ['+4312345'] } });
		dataLayer.push({ event: 'search', search_term: 'x' });
		gtag('set', { user_id: null });
		gtag('event', 'share', {});
	`)
	muid := ""
	wanted := map[string]any{"Login": "7", "Search": "u8", "Share": nil, "PageView": nil}
	for _, e := range w.want("PageView", "Login", "Search", "Share") {
		muid = e.MUID
		if e.RawData["user_id"] != wanted[e.EventName] || e.RawData["user_data"] != nil {
			t.Errorf("%s: %v", e.EventName, e.RawData)
		}
	}
	for _, identifier := range []string{`"email":"ann@example.com"`, `"phone":"+4312345"`} {
		w.wait(identifier, func() bool { return w.backend(`{`+identifier+`,"event":"Refund"}`) == 201 })
	}
	for _, e := range w.want("PageView", "Login", "Search", "Share", "Refund", "Refund") {
		if e.MUID != muid {
			t.Errorf("%s is of %s, want %s", e.EventName, e.MUID, muid)
		}
	}
}
