package kind

import (
	"encoding/json"
	"net/url"
	"strings"

	"mtagd/store"
)

// Product is a product of an event, from its field products or items.
type Product struct {
	ID, Name, Category, Coupon string
	Quantity, Price, Discount  json.Number // empty: not known
}

// Products returns the products of an event.
func (e *Event) Products() (all []Product) {
	list, ok := e.Fields["products"].([]any)
	if !ok {
		list, _ = e.Fields["items"].([]any)
	}
	for _, one := range list {
		fields, ok := one.(map[string]any)
		if !ok {
			continue
		}
		of := Event{Fields: fields}
		p := Product{ID: of.Text("id", "item_id", "sku"), Name: of.Text("name", "item_name"), Category: of.Text("category", "item_category"), Coupon: of.Text("coupon")}
		p.Quantity, _ = of.Number("quantity")
		p.Price, _ = of.Number("price")
		p.Discount, _ = of.Number("discount")
		all = append(all, p)
	}
	return all
}

// PutNumber sets a field unless the number is empty.
func PutNumber(in map[string]any, name string, n json.Number) {
	if n != "" {
		in[name] = n
	}
}

// OrderID returns the number of an order.
func (e *Event) OrderID() string { return e.Text("transaction_id", "order_id", "orderId") }

// UserAgent returns the visitor's browser, if the sender says it: the service does not store it.
func (e *Event) UserAgent() string { return e.Text("user_agent", "client_user_agent") }

// PageURL returns the address of the page without what follows #.
func (e *Event) PageURL() string {
	text := e.Text("pageUrl", "page_url", "event_source_url", "url")
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return ""
	}
	u.Fragment = ""
	return u.String()
}

// IsFromServer reports whether a backend has sent the event about something that did not happen on a page.
func (e *Event) IsFromServer() bool { return e.PageURL() == "" }

// Map returns the name of an event at a platform: that of the settings, of the platform's table, or its own. An empty name in the
// settings leaves the event out.
func Map(name string, settings, table map[string]string) string {
	if mapped, ok := settings[name]; ok {
		return mapped
	}
	if mapped, ok := table[name]; ok {
		return mapped
	}
	return name
}

// CheckEndpoint checks the address of a platform, which is another one only in tests, and with gateways of a merchant.
func CheckEndpoint(address *string, allowHTTP bool) error {
	u, err := url.Parse(*address)
	if err != nil || u.Host == "" || u.Scheme != "https" && !(allowHTTP && u.Scheme == "http") || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return store.Invalid("settings.endpoint", "must be an address such as https://example.com")
	}
	*address = strings.TrimRight(*address, "/")
	return nil
}
