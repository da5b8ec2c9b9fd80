package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"mtagd/store"
)

// The demo partner has two more merchants, with three months of events that nobody has sent, so that the console has
// something to show. Their names say so, and each event has "demo": true.
var pasts = []struct {
	name     string
	sessions float64 // on the last day
}{
	{"Kiln & Clay (made-up history)", 90},
	{"Clay by Post (made-up history)", 30},
}

const (
	historyDays  = 91
	historyBatch = 1000 // events of one commit
)

// addHistory adds the merchants with made-up events until now. The same seed makes the same visitors each time.
func (s *Shop) addHistory(ctx context.Context, partner store.PartnerID, now time.Time) error {
	for i, past := range pasts {
		merchant, err := s.Engine.AddMerchant(ctx, partner, store.NewMerchant{Name: past.name})
		if err != nil {
			return err
		}
		tag, _, err := s.Engine.GenerateTag(ctx, merchant.ID, store.ClientSide, "")
		if err != nil {
			return err
		}
		h := &history{random: rand.New(rand.NewPCG(uint64(i), 0)), now: now, merchant: merchant.ID, tag: tag.ID}
		h.invent(past.sessions)
		store.Sort(h.marks, func(a, b store.Mark) int { return a.Time.Compare(b.Time) })
		for batch := range slices.Chunk(h.marks, historyBatch) {
			if err := s.Engine.Record(ctx, batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// history is being made up.
type history struct {
	random   *rand.Rand
	now      time.Time
	merchant store.MerchantID
	tag      store.TagID
	visitors []store.MUID
	marks    []store.Mark
}

// source is where a visitor has come from.
type source struct {
	name, medium, campaign string
	share                  float64
}

var sources = []source{
	{"google", "cpc", "autumn-glazes", 0.32}, {"instagram", "paid_social", "made-by-hand", 0.2}, {"newsletter", "email", "new-in-the-kiln", 0.14}, {share: 0.34},
}

// invent makes up the sessions of all days: more each week, fewer at the weekend, most in the evening, and a sale.
func (h *history) invent(sessions float64) {
	first := h.now.UTC().Truncate(24*time.Hour).AddDate(0, 0, 1-historyDays)
	for day := range historyDays {
		date := first.AddDate(0, 0, day)
		n := sessions * (0.45 + 0.55*float64(day)/historyDays) * (0.85 + 0.3*h.random.Float64())
		if weekday := date.Weekday(); weekday == time.Saturday || weekday == time.Sunday {
			n *= 0.7
		}
		if day >= 63 && day < 67 {
			n *= 1.9
		}
		for range int(n) {
			hour := math.Mod(20+4.5*h.random.NormFloat64()+48, 24)
			h.session(date.Add(time.Duration(hour * float64(time.Hour))))
		}
	}
}

// session makes up what one visitor does. Each step is taken by some of those who took the step before.
func (h *history) session(at time.Time) {
	v := h.visitor()
	from := h.source()
	bot := h.random.Float64() < 0.02
	event := func(name string, more map[string]any) {
		at = at.Add(time.Duration(5+h.random.IntN(80)) * time.Second)
		if at.After(h.now) {
			return
		}
		raw := map[string]any{"event": name, "muid": v, "event_time": at.Format(time.RFC3339), "demo": true}
		for key, value := range more {
			raw[key] = value
		}
		if from.name != "" {
			raw["utm_source"], raw["utm_medium"], raw["utm_campaign"] = from.name, from.medium, from.campaign
		}
		text, _ := json.Marshal(raw) // of strings and numbers: it cannot fail
		h.marks = append(h.marks, store.Mark{Merchant: h.merchant, Tag: h.tag, Identity: store.Identity{MUID: v}, Name: name, Time: at, Raw: text, Bot: bot})
	}
	visit := func(path string) { event("PageView", map[string]any{"pageUrl": "https://shop.example" + path}) }
	visit("/")
	var cart []map[string]any
	total := 0.0
	for range 1 + h.random.IntN(3) {
		p := products[h.random.IntN(len(products))]
		item := map[string]any{"id": p.ID, "name": p.Name, "category": p.Category, "price": p.Price, "quantity": 1}
		visit("/product/" + p.ID)
		event("ViewItem", map[string]any{"value": p.Price, "currency": "EUR", "products": []any{item}})
		if !bot && h.random.Float64() < 0.24 {
			event("AddToCart", map[string]any{"value": p.Price, "currency": "EUR", "products": []any{item}})
			cart, total = append(cart, item), total+p.Price
		}
	}
	if len(cart) == 0 || h.random.Float64() > 0.6 {
		return
	}
	order := map[string]any{"value": math.Round(total*100) / 100, "currency": "EUR", "products": cart}
	event("BeginCheckout", order)
	if h.random.Float64() > 0.65 {
		return
	}
	event("AddPaymentInfo", order)
	order["transaction_id"] = fmt.Sprintf("K-%06d", len(h.marks))
	event("Purchase", order)
	if h.random.Float64() < 0.04 {
		at = at.AddDate(0, 0, 3)
		event("Refund", order)
	}
}

// visitor returns one who was there before, or a new one.
func (h *history) visitor() store.MUID {
	if len(h.visitors) > 0 && h.random.Float64() < 0.35 {
		return h.visitors[h.random.IntN(len(h.visitors))]
	}
	v := store.MUID(fmt.Sprintf("demo-%016x", h.random.Uint64()))
	h.visitors = append(h.visitors, v)
	return v
}

func (h *history) source() source {
	at := h.random.Float64()
	for _, s := range sources {
		if at -= s.share; at < 0 {
			return s
		}
	}
	return sources[len(sources)-1]
}
