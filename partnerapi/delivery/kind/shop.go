package kind

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
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

// PutNumber sets a field unless the name or the number is empty.
func PutNumber(in map[string]any, name string, n json.Number) {
	if name != "" && n != "" {
		in[name] = n
	}
}

// ShopNames are a platform's names for products and values. An empty name means that the platform has no such field.
type ShopNames struct {
	Value, Currency, Order, Search   string
	IDs, Items                       string   // of all products
	Type                             string   // says that Items are products
	ID, Name, Category, Count, Price string   // of each
	Texts                            []string // numbers that are sent as strings
}

// Shop returns the products and values of an event.
func (e *Event) Shop(n ShopNames) map[string]any {
	in := map[string]any{}
	number := func(in map[string]any, name string, value json.Number) {
		if slices.Contains(n.Texts, name) {
			Put(in, name, value.String())
		} else {
			PutNumber(in, name, value)
		}
	}
	value, _ := e.Number("value")
	number(in, n.Value, value)
	Put(in, n.Currency, strings.ToUpper(e.Text("currency")))
	Put(in, n.Order, e.OrderID())
	Put(in, n.Search, e.Text("search_term"))
	var items []any
	var ids []string
	for _, p := range e.Products() {
		item := map[string]any{}
		Put(item, n.ID, p.ID)
		Put(item, n.Name, p.Name)
		Put(item, n.Category, p.Category)
		if len(item) == 0 {
			continue
		}
		number(item, n.Count, p.Quantity)
		number(item, n.Price, p.Price)
		if items = append(items, item); p.ID != "" {
			ids = append(ids, p.ID)
		}
	}
	if len(items) > 0 && n.Items != "" {
		in[n.Items] = items
		Put(in, n.Type, "product")
	}
	if len(ids) > 0 && n.IDs != "" {
		in[n.IDs] = ids
	}
	return in
}

// OrderID returns the number of an order.
func (e *Event) OrderID() string { return e.Text("transaction_id", "order_id", "orderId") }

// UserAgent returns the visitor's user agent: from the event's fields, or else from Browser.
func (e *Event) UserAgent() string {
	return cmp.Or(e.Text("user_agent", "client_user_agent"), e.Browser.UserAgent)
}

// Address returns the visitor's address: from the event's fields, or else from Browser.
func (e *Event) Address() string { return cmp.Or(e.Text("client_ip_address"), e.Browser.Address) }

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
