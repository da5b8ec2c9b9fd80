package check

import (
	"maps"
	"slices"
	"strings"
)

// kind is what a field must be.
type kind uint8

const (
	text kind = iota
	number
	boolean
	currency
	object
	list
)

// field is a field of an object.
type field struct {
	kind     kind
	required bool
	fields   schema // of an object, or of each element of a list
	texts    bool   // all fields of the object must be strings, whatever their names
}

// schema is the fields of an object by name. Other fields may be there too, and are not checked.
type schema map[string]field

// price, variant and product are the parts of the field products (spec, Product object).
var (
	price = schema{
		"original":   {kind: number, required: true},
		"discounted": {kind: number},
		"currency":   {kind: currency, required: true},
	}
	variant = schema{
		"attributes":  {kind: object, required: true, texts: true},
		"price":       {kind: object, required: true, fields: price},
		"isAvailable": {kind: boolean, required: true},
	}
	product = schema{
		"id":          {kind: text, required: true},
		"name":        {kind: text},
		"category":    {kind: text},
		"variants":    {kind: list, fields: variant},
		"quantity":    {kind: number},
		"price":       {kind: number},
		"description": {kind: text},
		"coupon":      {kind: text},
		"discount":    {kind: number},
	}
)

// The fields of several events.
var (
	nothing = schema{}
	amount  = schema{"value": {kind: number}, "currency": {kind: currency}}
	cart    = with(amount, schema{"products": {kind: list, fields: product}})
	costs   = schema{"shipping_cost": {kind: number}, "tax": {kind: number}}
	order   = schema{"transaction_id": {kind: text}}
	item    = schema{"item_id": {kind: text}}
)

// events are the pre-defined events and their own fields (spec, Pre-defined events).
var events = map[string]schema{
	"ViewContent":          nothing,
	"ViewItem":             with(cart, schema{"content_event": {kind: text}}),
	"Login":                nothing,
	"Signup":               nothing,
	"CompleteRegistration": nothing,
	"StartTrial":           cart,
	"AddPaymentInfo":       with(cart, schema{"payment_event": {kind: text}}),
	"AddShippingInfo":      with(cart, schema{"shipping_tier": {kind: text}}),
	"ViewCart":             cart,
	"AddToCart":            cart,
	"AddToWishlist":        cart,
	"RemoveFromCart":       cart,
	"BeginCheckout":        with(cart, costs),
	"Purchase":             with(cart, costs, order),
	"Refund":               with(cart, order),
	"Search":               with(item, schema{"search_term": {kind: text}}),
	"Share":                with(item, schema{"share_method": {kind: text}}),
	"Subscribe":            cart,
	"Lead":                 amount,
	"SubmitApplication":    {"application_id": {kind: text}},
	"Contact":              nothing,
	"Donate":               nothing,
	"Schedule":             nothing,
}

// others are names that the browser tag and many shops send, although they are not pre-defined. The spec lists SignUp, too.
var others = []string{"PageView", "Logout", "SignUp", "Click", "FileDownload", "FormStart", "FormSubmit", "Scroll"}

var (
	knownNames  = slices.Concat(slices.Sorted(maps.Keys(events)), others)
	foldedNames = strings.Fields(strings.ToLower(strings.Join(knownNames, " "))) // as fold returns them: they have only letters
)

// common are the fields that the service itself reads in any event, and those that the browser tag adds.
var common = []string{
	"muid", "email", "phone", "deviceId", "event", "event_time", "event_id", "event_source", "user_agent",
	"type", "pageUrl", "pageTitle", "referrer", "language", "screen", "timezone", "session_id", "first_referrer",
}

// known are the names of all fields, at any depth.
var known = allNames()

// IsField reports whether the contract gives a meaning to a field of this name, at any depth of an event.
func IsField(name string) bool { return known[name] }

func with(all ...schema) schema {
	sum := schema{}
	for _, s := range all {
		maps.Copy(sum, s)
	}
	return sum
}

func allNames() map[string]bool {
	names := map[string]bool{}
	var add func(s schema)
	add = func(s schema) {
		for name, f := range s {
			names[name] = true
			add(f.fields)
		}
	}
	for _, name := range common {
		names[name] = true
	}
	for _, s := range events {
		add(s)
	}
	return names
}
