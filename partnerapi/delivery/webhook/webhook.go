// Package webhook sends events to an address of the merchant, signed by the Standard Webhooks scheme
// (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md, read 2026-11): the headers
// webhook-id, webhook-timestamp and webhook-signature, the last one with a signature "v1,…" for each valid secret.
//
// The body is {"type":"event.recorded","timestamp":…,"data":{…}}. With a batch larger than 1 the type is "event.batch", and
// data has the list "events". Each event has "id", by which the receiver drops repeats; without a batch, webhook-id is the
// same. With the setting erasures, each erasure is sent with the type "person.erased": see Erasure.
package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/partnerapi/export"
	"mtagd/store"
)

// Kind is the kind "webhook".
var Kind = kind.Kind{
	Name:    "webhook",
	Secrets: []kind.Secret{{Name: signing, Signs: true, New: NewSecret, Check: checkSecret}, {Name: authorization, Check: checkAuthorization}},
	Settings: []kind.Setting{
		{Name: "url", Type: kind.Text, Required: true, Hint: "an address such as https://example.com/events"},
		{Name: "headers", Type: kind.Table, Hint: "headers to send, by their names"},
		{Name: "erasures", Type: kind.Flag, Hint: "true to be told which persons were erased"},
		{Name: "batchSize", Type: kind.Number, Default: "1", Hint: "a whole number", Hidden: true},
	},
	New: open,
}

const (
	signing       = "signing"
	authorization = "authorization" // sent as the header of this name
	prefix        = "whsec_"
	maxAge        = 72 * time.Hour
)

// NewSecret returns a random secret.
func NewSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + base64.StdEncoding.EncodeToString(b[:])
}

func keyOf(secret string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, prefix))
	if err != nil || !strings.HasPrefix(secret, prefix) || len(key) < 24 || len(key) > 64 {
		return nil, errors.New("must be whsec_ and 24 to 64 random bytes in base64")
	}
	return key, nil
}

func checkSecret(secret string) error {
	_, err := keyOf(secret)
	return err
}

func checkAuthorization(s string) error {
	if !isHeader("x", s) {
		return errors.New("must be printable ASCII, at most 1,000 characters")
	}
	return nil
}

type target struct {
	url           string
	headers       map[string]string
	batchSize     int
	erasures      bool
	mapping       kind.Mapping
	keys          [][]byte
	authorization string
}

const maxBatch, maxHeaders, maxHeaderValue = 1000, 20, 1000

func open(o kind.Options, v kind.Values) (kind.Target, error) {
	t := &target{url: v.Text("url"), headers: v.Table("headers"), batchSize: v.Number("batchSize"), erasures: v.Flag("erasures"),
		mapping: o.Mapping, authorization: o.Secret(authorization)}
	u, err := url.Parse(t.url)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || len(t.url) > 2000:
		return nil, store.Invalid("settings.url", "must be an address such as https://example.com/events")
	case u.Scheme == "http" && !o.AllowHTTP:
		return nil, store.Invalid("settings.url", "must begin with https://")
	case u.User != nil || u.Fragment != "":
		return nil, store.Invalid("settings.url", "must have no user, password or fragment: signatures say who sends")
	case t.batchSize < 1 || t.batchSize > maxBatch:
		return nil, store.Invalid("settings.batchSize", "must be from 1 to %d", maxBatch)
	case len(o.Secrets[signing]) == 0: // nothing goes out unsigned
		return nil, store.Invalid("secrets."+signing, "is required")
	case len(t.headers) > maxHeaders:
		return nil, store.Invalid("settings.headers", "must be at most %d", maxHeaders)
	}
	for name, value := range t.headers {
		if !isHeader(name, value) {
			return nil, store.Invalid("settings.headers", "must be names and texts; names that HTTP or the signature uses are not allowed")
		}
	}
	for _, secret := range o.Secrets[signing] {
		key, err := keyOf(secret)
		if err != nil {
			return nil, store.Invalid("secrets."+signing, "%v", err)
		}
		t.keys = append(t.keys, key)
	}
	return t, nil
}

var (
	headerName  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)
	headerValue = regexp.MustCompile(`^[ -~]*$`)
	// The names that HTTP or the signature uses, or that are secrets.
	reserved = regexp.MustCompile(`(?i)^(webhook-.*|host|content-length|content-type|transfer-encoding|connection|upgrade|te|trailer|expect|` +
		`authorization|proxy-authorization|cookie)$`)
)

func isHeader(name, value string) bool {
	return headerName.MatchString(name) && len(value) <= maxHeaderValue && headerValue.MatchString(value) && !reserved.MatchString(name)
}

func (t *target) Limits() kind.Limits {
	l := kind.Limits{Events: t.batchSize, Lanes: 1, MaxAge: maxAge, Raw: len(t.mapping) == 0, Erasures: t.erasures}
	if t.batchSize == 1 {
		l.Lanes = 16
	}
	return l
}

// appendEvent appends an event as the feed returns it, except that its id is the one at this destination and eventId its
// own. With a mapping, it appends only the mapped fields.
func (t *target) appendEvent(b []byte, e *kind.Event) []byte {
	if len(t.mapping) > 0 {
		mapped := map[string]any{}
		t.mapping.Apply(e.Fields, mapped)
		mapped["id"] = e.Delivery
		return appendJSON(b, mapped)
	}
	b = append(append(append(b, `{"eventId":"`...), e.ID...), `",`...)
	sent := e.Received
	sent.ID = store.EventID(e.Delivery)
	b = export.AppendMembers(b, &sent, export.Feed)
	return append(append(b, e.Raw...), '}')
}

func appendJSON(b []byte, v any) []byte {
	text, _ := json.Marshal(v) // cannot fail: v was read from JSON
	return append(b, text...)
}

func (t *target) Requests(events []*kind.Event, now time.Time) ([]kind.Request, []kind.Refusal) {
	var requests []kind.Request
	for part := range slices.Chunk(events, t.batchSize) {
		id, kindOfBody, open, end := part[0].Delivery, "event.recorded", "", ""
		if t.batchSize > 1 {
			kindOfBody, open, end = "event.batch", `{"events":[`, "]}"
		}
		size, sum := 0, sha256.New()
		for _, e := range part {
			size += len(e.Raw) + 500
			_, _ = sum.Write([]byte(e.Delivery)) // never fails
		}
		if t.batchSize > 1 {
			id = "batch_" + base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:18])
		}
		body := append(make([]byte, 0, size), `{"type":"`+kindOfBody+`","timestamp":"`...)
		body = append(store.AppendTime(body, part[0].ReceivedAt), `","data":`+open...)
		for i, e := range part {
			if i > 0 {
				body = append(body, ',')
			}
			body = t.appendEvent(body, e)
		}
		body = append(body, end+"}"...)
		requests = append(requests, kind.Request{URL: t.url, Header: t.header(id, body, now), Body: body, Events: part})
	}
	return requests, nil
}

func (t *target) header(id string, body []byte, now time.Time) http.Header {
	timestamp := strconv.FormatInt(now.Unix(), 10)
	var signatures []string
	for _, key := range t.keys {
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(id + "." + timestamp + ".")) // never fails
		_, _ = mac.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	h := http.Header{}
	for name, value := range t.headers {
		h.Set(name, value)
	}
	if t.authorization != "" {
		h.Set("Authorization", t.authorization)
	}
	h.Set("Content-Type", "application/json")
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", timestamp)
	h.Set("webhook-signature", strings.Join(signatures, " "))
	return h
}

var _ kind.Eraser = (*target)(nil) // Limits says whether it is asked

// Erasure implements kind.Eraser. A person is named only by SHA-256 hashes, in hexadecimal. For a muid, the hash is of a
// byte 255 and the muid (store.MUIDKey). For an identifier, it is of a byte for the kind (0: email, 1: phone, 2: deviceId)
// and the normalised value (store.IdentityKey).
func (t *target) Erasure(e store.Erasure, id string, now time.Time) kind.Request {
	var data struct {
		ID          string              `json:"id"`
		Erasure     store.ErasureID     `json:"erasureId"`
		Merchant    store.MerchantID    `json:"merchantId"`
		RequestedAt string              `json:"requestedAt"`
		MUIDs       []store.IdentityKey `json:"muidHashes"`
		Identifiers []store.IdentityKey `json:"identifierHashes"`
	}
	data.ID, data.Erasure, data.Merchant, data.RequestedAt = id, e.ID, e.Merchant, store.FormatTime(e.At)
	data.MUIDs, data.Identifiers = append([]store.IdentityKey{}, e.Person.MUIDs...), append([]store.IdentityKey{}, e.Person.Identifiers...)
	body := append([]byte(`{"type":"person.erased","timestamp":"`+data.RequestedAt+`","data":`), appendJSON(nil, data)...)
	body = append(body, '}')
	return kind.Request{URL: t.url, Header: t.header(id, body, now), Body: body}
}

// Read implements kind.Target. Whatever is not 2xx or 410 is tried again, as the scheme has it. Only a batch that is refused
// as it is may have one event that is the reason.
func (t *target) Read(r kind.Request, a kind.Answer) kind.Verdict {
	v := kind.Standard(a)
	switch {
	case a.Status == http.StatusGone:
		return kind.Verdict{Outcome: kind.Gone, Reason: "410 Gone"}
	case v.Outcome == kind.Refused && len(r.Events) == 1:
		v.Outcome = kind.Again
	}
	return v
}
