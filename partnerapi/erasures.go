package partnerapi

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi/delivery"
	"mtagd/partnerapi/delivery/kind"
	"mtagd/partnerapi/export"
	"mtagd/store"
)

func (a *api) personResources() map[string]resource {
	return map[string]resource{
		"/v1/partners/erasures":             {"GET": op("list_erasures", a.listErasures, "page", "limit", "merchantId"), "POST": op("erase_person", a.erase)},
		"/v1/partners/erasures/{erasureId}": {"GET": op("read_erasure", a.readErasure)},
		"/v1/partners/personal-data":        {"POST": op(personalOperation, a.personalData)},
	}
}

// personRequest is the body of a request about a person, who is named by one of the four.
type personRequest struct {
	MerchantID string `json:"merchantId"`
	MUID       string `json:"muid"`
	Email      string `json:"email"`
	Phone      string `json:"phone"`
	DeviceID   string `json:"deviceId"`
	Claimed    bool   `json:"claimed"`  // also what only claimed links lead to
	Suppress   *bool  `json:"suppress"` // of an erasure
}

// readPerson reads a request about a person, and checks that the merchant is the partner's.
func (a *api) readPerson(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) (in personRequest, m store.Merchant, id store.Identity, err error) {
	if err := decodeChange(r, &in); err != nil {
		return in, m, id, err
	}
	if in.MerchantID == "" {
		return in, m, id, store.Invalid("merchantId", "is required")
	}
	named := 0
	for _, by := range []struct {
		field, value string
		add          func(value string) bool
	}{
		{"muid", in.MUID, func(v string) bool { id.MUID = store.MUID(v); return len(v) <= store.MaxMUIDLength }},
		{"email", in.Email, func(v string) bool { return id.Add(store.Email, v) }},
		{"phone", in.Phone, func(v string) bool { return id.Add(store.Phone, v) }},
		{"deviceId", in.DeviceID, func(v string) bool { return id.Add(store.DeviceID, v) }},
	} {
		if by.value == "" {
			continue
		}
		named++
		if !by.add(by.value) {
			return in, m, id, store.Invalid(by.field, "is not valid: no event can have it")
		}
	}
	if named != 1 {
		return in, m, id, store.Invalid("person", "must be named by exactly one of muid, email, phone, deviceId")
	}
	m, err = a.merchant(ctx, partner, in.MerchantID)
	return in, m, id, err
}

// erasureJSON is the receipt of an erasure. It does not name the person.
type erasureJSON struct {
	ErasureID   store.ErasureID    `json:"erasureId"`
	MerchantID  store.MerchantID   `json:"merchantId"`
	State       store.ErasureState `json:"state"`
	Suppress    bool               `json:"suppress"`
	Claimed     bool               `json:"claimed"`
	Events      *int               `json:"events"`        // null until they are counted
	Claimable   *int               `json:"claimedEvents"` // that stay, because only claimed links lead to them
	Links       *int               `json:"links"`
	RequestedAt time.Time          `json:"requestedAt"`
	FinishedAt  time.Time          `json:"finishedAt"` // null until then
	Attempts    int                `json:"attempts"`   // that have failed
	LastError   *string            `json:"lastError"`  // of the last one, while the erasure is not done

	Destinations []delivery.Ask `json:"destinations"`
}

// showErasures returns the receipts of erasures of a merchant.
func (a *api) showErasures(ctx context.Context, m store.MerchantID, erasures ...store.Erasure) ([]erasureJSON, error) {
	shown := each(erasures, showErasure)
	if a.Delivery == nil {
		return shown, nil
	}
	asks, err := a.Delivery.Asks(ctx, m, erasures)
	for i := range asks {
		shown[i].Destinations = asks[i]
	}
	return shown, err
}

// replyErasure answers with the receipt of an erasure.
func (a *api) replyErasure(ctx context.Context, r *fasthttp.RequestCtx, status int, e store.Erasure) error {
	shown, err := a.showErasures(ctx, e.Merchant, e)
	if err != nil {
		return err
	}
	return Reply(r, status, shown[0])
}

func showErasure(e store.Erasure) erasureJSON {
	shown := erasureJSON{
		ErasureID: e.ID, MerchantID: e.Merchant, State: e.State, Suppress: e.Suppress, Claimed: e.Person.WithClaimed, RequestedAt: e.At,
		Attempts: e.Attempts, LastError: unlessEmpty(e.LastError), Destinations: []delivery.Ask{},
	}
	if e.UpTo != 0 {
		shown.Events, shown.Claimable, shown.Links = &e.Events, &e.Claimed, &e.Links
	}
	if e.State == store.ErasureDone {
		shown.FinishedAt = e.FinishedAt
	}
	return shown
}

// erase begins the erasure of a person.
func (a *api) erase(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	in, m, id, err := a.readPerson(ctx, r, partner)
	if err != nil {
		return err
	}
	e, err := a.Engine.Erase(ctx, m.ID, id, store.ErasureOptions{Suppress: in.Suppress != nil && *in.Suppress, Claimed: in.Claimed})
	if err != nil {
		return err
	}
	return a.replyErasure(ctx, r, fasthttp.StatusAccepted, e)
}

// readErasure answers with the receipt of an erasure.
func (a *api) readErasure(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	e, err := a.Engine.Erasure(ctx, store.ErasureID(pathParam(r, "erasureId")))
	if e, err = owned(partner, e, err, errNoErasure); err != nil {
		return hide(err, errNoErasure)
	}
	return a.replyErasure(ctx, r, fasthttp.StatusOK, e)
}

// listErasures answers with one page of a merchant's erasures, newest first.
func (a *api) listErasures(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	p := params{args: r.QueryArgs()}
	merchantID := p.required("merchantId")
	w := p.window(merchantsPerPage)
	if p.err != nil {
		return p.err
	}
	m, err := a.merchant(ctx, partner, merchantID)
	if err != nil {
		return err
	}
	erasures, total, err := a.Engine.Erasures(ctx, m.ID, w.offset(), w.limit)
	if err != nil {
		return err
	}
	shown, err := a.showErasures(ctx, m.ID, erasures...)
	if err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, map[string]any{"erasures": shown, "pagination": w.of(total)})
}

// personalData streams everything that is held of a person, one JSON object a line: {"type":"link",…}, {"type":"event",…},
// and at the end {"type":"end",…} with the numbers of both, and of the events that were left out because only claimed links
// lead to them. An answer without the last line is not complete. It ends early when the key is revoked, when the client has
// gone, and when the service stops.
func (a *api) personalData(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	in, m, id, err := a.readPerson(ctx, r, partner)
	if err != nil {
		return err
	}
	if in.Suppress != nil {
		return store.Invalid("suppress", "is not a field that this request can have")
	}
	release, err := a.readings.acquire(ctx, partner.ID)
	if err != nil {
		return err
	}
	if err := a.stream(r, func(ctx context.Context, w io.Writer) error {
		return a.writePersonalData(ctx, w, m.ID, id, in.Claimed)
	}, release); err != nil {
		return err
	}
	r.SetStatusCode(fasthttp.StatusOK)
	r.SetContentType(export.NDJSON.ContentType())
	return nil
}

// personalDataBytes is about how many bytes of personal data are written at once.
const personalDataBytes = 64 << 10

func (a *api) writePersonalData(ctx context.Context, w io.Writer, m store.MerchantID, person store.Identity, withClaimed bool) error {
	out := bufio.NewWriterSize(w, personalDataBytes)
	var line []byte
	events, links := 0, 0
	claimed, err := a.Engine.PersonalData(ctx, m, person, withClaimed, func(p *store.PersonalRecord) error {
		if p.Event == nil {
			links++
		} else {
			events++
		}
		line = a.appendPersonal(line[:0], m, p)
		_, err := out.Write(line)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, `{"type":"end","events":%d,"links":%d,"claimedEvents":%d}`+"\n", events, links, claimed) // Flush returns the error
	return out.Flush()
}

// appendPersonal appends a line of personal data.
func (a *api) appendPersonal(b []byte, m store.MerchantID, p *store.PersonalRecord) []byte {
	if p.Event == nil {
		b = append(b, `{"type":"link","identifierSha256":"`+hex.EncodeToString(p.Identifier[:])+`","muid":`...)
		return append(export.AppendString(b, string(p.MUID)), "}\n"...)
	}
	b = append(b, `{"type":"event",`...)
	if a.Delivery != nil {
		if browser := a.Delivery.Browser(m, p.Event.Client); browser != (kind.Browser{}) {
			text, _ := json.Marshal(browser) // cannot fail: strings
			b = append(append(append(b, `"client":`...), text...), ',')
		}
	}
	b = export.AppendMembers(b, &store.Received{Event: *p.Event, Tag: p.Tag}, export.Personal)
	return append(export.AppendRaw(b, p.Event.Raw), "}\n"...)
}
