package partnerapi

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/goccy/go-json/jsontext"
	"github.com/valyala/fasthttp"

	"mtagd/partnerapi/delivery"
	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// deliveryResources are the operations on destinations; none without a delivery service.
func (a *api) deliveryResources() map[string]resource {
	if a.Delivery == nil {
		return nil
	}
	const list, one = "/v1/partners/merchant/{merchantId}/destinations", "/v1/partners/merchant/{merchantId}/destinations/{destinationId}"
	return map[string]resource{
		"/v1/partners/destination-types": {"GET": op("list_destination_types", listDestinationTypes)},
		list:                             {"GET": op("list_destinations", a.listDestinations), "POST": op("create_destination", a.createDestination)},
		one: {"GET": op("read_destination", a.readDestination), "PATCH": op("change_destination", a.changeDestination),
			"DELETE": op("delete_destination", a.deleteDestination)},
		one + "/test":       {"POST": op("test_destination", a.testDestination)},
		one + "/replay":     {"POST": op("replay_events", a.replayEvents)},
		one + "/deliveries": {"GET": op("list_deliveries", a.listDeliveries, "state", "eventId", "limit"), "DELETE": op("discard_dead_letters", a.discardDeadLetters)},
	}
}

// listDestinationTypes answers with the types of destinations, and what each of them needs.
func listDestinationTypes(_ context.Context, r *fasthttp.RequestCtx, _ store.Partner) error {
	types := delivery.Kinds()
	for i, k := range types {
		types[i].Settings = slices.DeleteFunc(slices.Clone(k.Settings), func(s kind.Setting) bool { return s.Hidden })
	}
	return Reply(r, fasthttp.StatusOK, map[string]any{"types": types})
}

// destinationJSON is the JSON of a destination. It has no secrets but those that were just made.
type destinationJSON struct {
	DestinationID string            `json:"destinationId"`
	MerchantID    store.MerchantID  `json:"merchantId"`
	Type          string            `json:"type"`
	Name          string            `json:"name"`
	Settings      jsontext.Value    `json:"settings"`
	SecretNames   []string          `json:"secretNames"`
	Secrets       map[string]string `json:"secrets,omitempty"`
	Events        []string          `json:"events"` // null: all
	Filter        string            `json:"filter"`
	Mapping       jsontext.Value    `json:"mapping"`
	Consent       []string          `json:"consent"`
	Paused        bool              `json:"paused"`
	CreatedAt     time.Time         `json:"createdAt"`
	MaxAgeHours   int               `json:"maxAgeHours"`
	Status        delivery.Status   `json:"status"`
}

func (a *api) showDestination(ctx context.Context, d delivery.Destination, made map[string]string) (destinationJSON, error) {
	st, err := a.Delivery.Status(ctx, d)
	if err != nil {
		return destinationJSON{}, err
	}
	shown := destinationJSON{
		DestinationID: d.ID, MerchantID: d.Merchant, Type: d.Type, Name: d.Name, Settings: jsontext.Value(d.Settings),
		SecretNames: slices.Sorted(maps.Keys(d.Secrets)), Secrets: made, Events: d.Events, Filter: d.Filter, Mapping: jsontext.Value("{}"),
		Consent: d.Consent, Paused: d.Paused, CreatedAt: d.CreatedAt, MaxAgeHours: st.MaxAgeHours, Status: st,
	}
	if len(d.Settings) == 0 {
		shown.Settings = jsontext.Value("{}")
	}
	if d.Mapping != nil {
		shown.Mapping, err = json.Marshal(d.Mapping)
	}
	return shown, err
}

// destination returns the destination in the path, and its merchant.
func (a *api) destination(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) (m store.Merchant, d delivery.Destination, err error) {
	if m, err = a.merchantInPath(ctx, r, partner); err != nil {
		return m, d, err
	}
	d, err = a.Delivery.Get(ctx, m.ID, pathParam(r, "destinationId"))
	return m, d, err
}

// listDestinations answers with the destinations of a merchant, oldest first.
func (a *api) listDestinations(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, err := a.merchantInPath(ctx, r, partner)
	if err != nil {
		return err
	}
	all, err := a.Delivery.List(ctx, m.ID)
	if err != nil {
		return err
	}
	shown := make([]destinationJSON, len(all))
	for i, d := range all {
		if shown[i], err = a.showDestination(ctx, d, nil); err != nil {
			return err
		}
	}
	return Reply(r, fasthttp.StatusOK, map[string]any{"destinations": shown})
}

// createDestination creates a destination. Secrets that are made for it are only in this answer.
func (a *api) createDestination(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, absent := a.merchantInPath(ctx, r, partner)
	var c delivery.Change
	if err := first(absent, decodeChange(r, &c)); err != nil {
		return err
	}
	d, made, err := a.Delivery.Create(ctx, m, c)
	return a.replyDestination(ctx, r, fasthttp.StatusCreated, d, made, err)
}

func (a *api) replyDestination(ctx context.Context, r *fasthttp.RequestCtx, status int, d delivery.Destination, made map[string]string, err error) error {
	if err != nil {
		return err
	}
	shown, err := a.showDestination(ctx, d, made)
	if err != nil {
		return err
	}
	return Reply(r, status, shown)
}

func (a *api) readDestination(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	_, d, err := a.destination(ctx, r, partner)
	return a.replyDestination(ctx, r, fasthttp.StatusOK, d, nil, err)
}

// changeDestination changes the fields that the request has.
func (a *api) changeDestination(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, d, absent := a.destination(ctx, r, partner)
	var c delivery.Change
	if err := first(absent, decodeChange(r, &c)); err != nil {
		return err
	}
	d, made, err := a.Delivery.Update(ctx, m, d.ID, c)
	return a.replyDestination(ctx, r, fasthttp.StatusOK, d, made, err)
}

func (a *api) deleteDestination(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, d, err := a.destination(ctx, r, partner)
	if err == nil {
		err = a.Delivery.Delete(ctx, m, d.ID)
	}
	if err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, map[string]any{"destinationId": d.ID, "deleted": true})
}

// testDestination sends one event: the event of the request, or the newest that the destination takes, or an example. Without
// send, it only shows what would be sent, for the newest events.
func (a *api) testDestination(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	var in struct {
		Send    *bool         `json:"send"`
		EventID store.EventID `json:"eventId"`
	}
	_, d, absent := a.destination(ctx, r, partner)
	var err error
	if len(r.PostBody()) > 0 {
		err = decodeChange(r, &in)
	}
	if err := first(absent, err); err != nil {
		return err
	}
	release, err := a.trials.acquire(ctx, partner.ID)
	if err != nil {
		return err
	}
	defer release()
	all, err := a.Delivery.Preview(ctx, d, in.EventID, in.Send == nil || *in.Send)
	if err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, map[string]any{"events": all})
}

// replayEvents has events sent again: those of a range of time, of a delivery, or the dead letters.
func (a *api) replayEvents(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, d, absent := a.destination(ctx, r, partner)
	replay, err := readReplay(r)
	if err := first(absent, err); err != nil {
		return err
	}
	if replay != (delivery.Replay{}) {
		d, err = a.Delivery.Replay(ctx, m, d.ID, replay)
	}
	return a.replyDestination(ctx, r, fasthttp.StatusAccepted, d, nil, err)
}

// readReplay reads which events are sent again; the zero value for none.
func readReplay(r *fasthttp.RequestCtx) (replay delivery.Replay, err error) {
	var in struct {
		From        string `json:"from"`
		To          string `json:"to"`
		DeadLetters bool   `json:"deadLetters"`
		DeliveryID  string `json:"deliveryId"`
	}
	if err := decodeChange(r, &in); err != nil {
		return replay, err
	}
	replay.DeadLetters, replay.Delivery = in.DeadLetters, in.DeliveryID
	hasRange, hasID := in.From != "" || in.To != "", in.DeliveryID != ""
	if in.DeadLetters && (hasRange || hasID) || hasRange && hasID || in.From == "" && in.To != "" {
		return replay, store.Invalid("replay", "must have only one of from (with to or not), deadLetters and deliveryId")
	}
	p := params{args: new(fasthttp.Args)}
	for name, value := range map[string]string{"from": in.From, "to": in.To} {
		if value != "" {
			p.args.Set(name, value)
		}
	}
	replay.From, replay.To = p.timeRange("from", "to")
	return replay, p.err
}

// deliveryJSON is the JSON of an attempt to deliver events, or of a dead letter.
type deliveryJSON struct {
	DeliveryID string          `json:"deliveryId"`
	At         time.Time       `json:"at"`
	State      string          `json:"state"`
	Events     int             `json:"events"`
	EventIDs   []store.EventID `json:"eventIds"`
	Status     *int            `json:"status"`
	Millis     int64           `json:"durationMs"`
	Answer     string          `json:"answer"`
	Reason     *string         `json:"reason"`
}

const maxDeliveriesListed = 1000

// listDeliveries answers with the last deliveries of a destination and its dead letters, newest first.
func (a *api) listDeliveries(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	p := params{args: r.QueryArgs()}
	state := p.optional("state", string(delivery.Delivered), string(delivery.Failed), string(delivery.Dead))
	event := p.id("eventId")
	limit := p.number("limit", 100, maxDeliveriesListed)
	if p.err != nil {
		return p.err
	}
	_, d, err := a.destination(ctx, r, partner)
	if err != nil {
		return err
	}
	all, err := a.Delivery.Deliveries(ctx, d, delivery.DeliveryState(state), store.EventID(event))
	if err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, map[string]any{"deliveries": each(all[:min(limit, len(all))], func(of delivery.Delivery) deliveryJSON {
		shown := deliveryJSON{DeliveryID: of.ID, At: of.At, State: string(of.State), Events: of.Events, EventIDs: of.EventIDs,
			Millis: of.Took.Milliseconds(), Answer: of.Answer, Reason: unlessEmpty(of.Reason)}
		if of.Status != 0 {
			shown.Status = &of.Status
		}
		return shown
	})})
}

// discardDeadLetters drops the dead letters of a destination.
func (a *api) discardDeadLetters(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, d, err := a.destination(ctx, r, partner)
	if err != nil {
		return err
	}
	d, err = a.Delivery.Replay(ctx, m, d.ID, delivery.Replay{Discard: true})
	return a.replyDestination(ctx, r, fasthttp.StatusAccepted, d, nil, err)
}
