// Code generated from the OpenAPI document. DO NOT EDIT: make clients.

package client

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/url"
	"time"
)

// Accepted: The event is recorded.
type Accepted struct {
	// For people.
	Message string `json:"message"`
}

// BatchResults: The results of a batch.
type BatchResults struct {
	// How many events were recorded.
	Accepted int64 `json:"accepted"`
	// One for each event, in the same order: the `status` and the fields of the answer that the event would have got alone.
	Results []BatchResultsResults `json:"results"`
}

// BatchResultsResults:
type BatchResultsResults struct {
	// A sentence that says more than `message`.
	Detail string `json:"detail,omitzero"`
	// For people.
	Message string `json:"message"`
	// The status that the event would have got alone.
	Status int64 `json:"status"`
	// Always `false`.
	Success *bool `json:"success,omitzero"`
}

// Certificate: The state of a TLS certificate.
type Certificate struct {
	// Why the last order or renewal failed, in the CA's words, or how many orders go before a waiting one. May be empty.
	Detail string `json:"detail"`
	// When a failed order is retried. Null while that waits for its turn or is in progress.
	NextTry *time.Time `json:"nextTry"`
	// When it expires. Null without one.
	NotAfter *time.Time `json:"notAfter"`
	// `none`: not ordered. `pending`: being ordered. `failed`: none is valid, and the order is retried.
	Status string `json:"status"`
}

// Config: What is enabled for a partner.
type Config struct {
	// Which types of tags you can generate.
	Features ConfigFeatures `json:"features"`
	// Your id.
	PartnerID string `json:"partnerId"`
	// Your tracking domain. Empty until the operator has set it up with you.
	PreverifiedDomain string `json:"preverifiedDomain"`
	// You can generate preverified tags.
	PreverifiedEnabled bool `json:"preverifiedEnabled"`
}

// ConfigFeatures: Which types of tags you can generate.
type ConfigFeatures struct {
	// Tags on the shared host.
	ClientSide bool `json:"clientSide"`
	// Tags on your tracking domain.
	Preverified bool `json:"preverified"`
	// Tags on a host of the merchant.
	ServerSide bool `json:"serverSide"`
}

// CreatedMerchant: A merchant that was created.
type CreatedMerchant struct {
	// When it was created.
	CreatedAt time.Time `json:"createdAt"`
	// Absent when you sent none.
	Domain string `json:"domain,omitzero"`
	// Only requests with one of the merchant's secrets use identifiers of persons on the tag hosts. By default (`false`), whoever
	// knows a tag id and somebody's email can ask for that person's muid, and link identifiers of his own to it.
	IdentityRequiresSecret *bool `json:"identityRequiresSecret,omitzero"`
	// The id of the merchant.
	MerchantID string `json:"merchantId"`
	// Its name.
	Name string `json:"name"`
}

// DNSFinding: What a check of DNS has found.
type DNSFinding struct {
	// When DNS was checked.
	CheckedAt time.Time `json:"checkedAt"`
	// The cause for programs.
	Code string `json:"code"`
	// The cause as a sentence for the merchant.
	Detail string `json:"detail"`
	// `pending`: not all servers have the record yet. `unreachable`: no resolver could be asked.
	Verdict string `json:"verdict"`
}

// DNSRecord: The DNS record of a server-side or preverified tag. The merchant creates it for a server-side tag.
type DNSRecord struct {
	// The subdomain.
	Name string `json:"name"`
	// Seconds.
	TTL int64 `json:"ttl"`
	// The type of the record.
	Type string `json:"type"`
	// What the record points to.
	Value string `json:"value"`
}

// DeletedDestination: A destination that was deleted.
type DeletedDestination struct {
	// Always `true`.
	Deleted bool `json:"deleted"`
	// Its id.
	DestinationID string `json:"destinationId"`
}

// DeletedMerchant: A merchant that was deleted.
type DeletedMerchant struct {
	// Always `true`.
	Deleted bool `json:"deleted"`
	// The id of the merchant.
	MerchantID string `json:"merchantId"`
}

// DeliveryList: Deliveries of a destination.
type DeliveryList struct {
	// The newest first.
	Deliveries []DeliveryListDeliveries `json:"deliveries"`
}

// DeliveryListDeliveries:
type DeliveryListDeliveries struct {
	// The first KiB of the answer.
	Answer string `json:"answer"`
	// When it was.
	At time.Time `json:"at"`
	// Its id.
	DeliveryID string `json:"deliveryId"`
	// How long it took.
	DurationMs int64 `json:"durationMs"`
	// The first of their ids.
	EventIds []string `json:"eventIds"`
	// How many events it had.
	Events int64 `json:"events"`
	// Why it was not taken.
	Reason *string `json:"reason"`
	// `failed` is tried again; `dead` is not, until a replay.
	State string `json:"state"`
	// The status of the answer; null without one.
	Status *int64 `json:"status"`
}

// Destination: Where events of a merchant are delivered to.
type Destination struct {
	// Categories that must be granted.
	Consent []string `json:"consent"`
	// When it was created.
	CreatedAt time.Time `json:"createdAt"`
	// Its id.
	DestinationID string `json:"destinationId"`
	// The names of the events that are sent; null: all.
	Events []string `json:"events"`
	// An expression that must be true; empty for none.
	Filter string `json:"filter"`
	// What is sent from which field.
	Mapping map[string]any `json:"mapping"`
	// How old events may be that an ad platform takes; for how long a webhook is tried again.
	MaxAgeHours int64 `json:"maxAgeHours"`
	// Whose it is.
	MerchantID string `json:"merchantId"`
	// Its name.
	Name string `json:"name"`
	// Nothing is sent now.
	Paused bool `json:"paused"`
	// The secrets that are set.
	SecretNames []string `json:"secretNames"`
	// The secrets that were made by this request.
	Secrets map[string]string `json:"secrets,omitzero"`
	// What its type needs.
	Settings map[string]any `json:"settings"`
	// How far it is, as of a second ago at most.
	Status DestinationStatus `json:"status"`
	// Its type.
	Type string `json:"type"`
}

// DestinationStatus: How far it is, as of a second ago at most.
type DestinationStatus struct {
	// Events that were refused, or not taken in time.
	Dead int64 `json:"dead"`
	// Dead letters, each of one event or several. With 1,000 of them the destination pauses.
	DeadLetters int64 `json:"deadLetters"`
	// Events that were taken.
	Delivered int64 `json:"delivered"`
	// Events that were erased while they waited.
	Erased int64 `json:"erased"`
	// Since when nothing was taken.
	FailingSince *time.Time `json:"failingSince"`
	// Events that the filter has left out, or that the platform does not know.
	Filtered int64 `json:"filtered"`
	// Why it fails, or was paused by the service.
	LastError *string `json:"lastError"`
	// When something was taken.
	LastSuccess *time.Time `json:"lastSuccess"`
	// When it is tried again.
	NextTry *time.Time `json:"nextTry"`
	// Events without the consent that is needed.
	NoConsent int64 `json:"noConsent"`
	// Ranges that are still to be sent again.
	Replays int64 `json:"replays"`
	// Events that are tried again while others are sent.
	Retries int64 `json:"retries"`
	// `failing`: nothing was taken at the last attempt, and it is tried again. `broken`: the settings or secrets cannot be used.
	State string `json:"state"`
}

// DestinationInput: A destination as it is created or changed.
type DestinationInput struct {
	// Categories of Consent Mode that the event must have granted in its field `consent`. Ad platforms always need `ad_storage`
	// and `ad_user_data`, `ga4` needs `analytics_storage`. `consent: true` in an event grants all.
	Consent []string `json:"consent,omitzero"`
	// The names of the events that are sent. Empty or absent: all.
	Events []string `json:"events,omitzero"`
	// Only events for which this expression is true are sent, such as `value > 10 && currency in ["EUR", "USD"]`. It is a part of
	// the Common Expression Language on the fields of the event: `! && || == != < <= > >= in +`, `has()`, `size()`, `contains()`,
	// `startsWith()`, `endsWith()`, `lowerAscii()`. At most 2,000 bytes.
	Filter string `json:"filter,omitzero"`
	// What is sent from which field of the event: `{"order.id": "order_id", "shop": {"from": "store", "default": "main"}}`. At
	// most 100 fields, at most 5 of them from the same path, and 4 KiB of defaults as JSON. For webhooks it makes up all of
	// `data`, besides `id`; for ad platforms it adds to what is sent of each event.
	Mapping map[string]any `json:"mapping,omitzero"`
	// 1 to 256 characters. Without it, it is the type.
	Name string `json:"name,omitzero"`
	// While it is true nothing is sent, and nothing is lost.
	Paused *bool `json:"paused,omitzero"`
	// Never shown again. Of `webhook`: `signing`, which begins with `whsec_` and is made if you do not send it, or send null; and
	// `authorization`, which is sent as the header of that name. Those of ad platforms: see `settings`. `serviceAccountKey` is
	// the JSON that Google Cloud makes; the service account must be a user of the Google Ads account.
	Secrets map[string]string `json:"secrets,omitzero"`
	// Of `webhook`: `url` (required), `batchSize` (1 to 1,000 events in a request; 1 by default) and `headers`. Requests are
	// signed by the Standard Webhooks scheme. Any 2xx means that the events are taken, 410 pauses the destination, anything else
	// is tried again for 72 hours. With `erasures: true`, it is told of each erasure: `{"type": "person.erased", "timestamp":
	// …, "data": {"id", "erasureId", "merchantId", "requestedAt", "muidHashes", "identifierHashes"}}`. The hashes are SHA-256
	// in hexadecimal: of a byte 255 and the muid; of a byte 0 and the email in lower case, of a byte 1 and the digits of the
	// phone number without leading `00`, of a byte 2 and the device id.
	//
	// A secret that is sent must be given again with settings that name another server.
	//
	// Of the ad platforms:
	//
	// | Type | Sends to | Settings besides `eventNames` and `endpoint` | Secret |
	// |---|---|---|---|
	// | `meta` | Conversions API | `pixelId`, `apiVersion`, `testEventCode` | `accessToken` |
	// | `ga4` | Google Analytics, Measurement Protocol | `measurementId`, `debug` | `apiSecret` |
	// | `tiktok` | Events API | `pixelCode`, `testEventCode` | `accessToken` |
	// | `googleads` | Google Ads, Data Manager API | `customerId`, `conversions`, `loginCustomerId`, `validateOnly` |
	// `serviceAccountKey` |
	// | `microsoft` | Microsoft Advertising, Conversions API | `tagId` | `accessToken` |
	// | `pinterest` | Conversions API | `adAccountId`, `test` | `accessToken` |
	// | `snap` | Conversions API | `pixelId`, `test` | `accessToken` |
	// | `linkedin` | Conversions API | `conversions`, `apiVersion` | `accessToken` |
	//
	// `eventNames` gives an event another name there (`{"Booking": "Schedule"}`; an empty name leaves it out). `googleads` and
	// `linkedin` have `conversions` instead: the number of the conversion action or conversion rule by the name of the event.
	// They, `pinterest` and `snap` leave out other events, and those without anything by which they know a visitor: see a
	// destination's preview. `endpoint` is another address than the platform's, for tests. `GET /v1/partners/destination-types`
	// has all of it.
	//
	// Meta needs the user agent of a website's visitor: set `deliverClientDetails` of the merchant, or let the page send it, as
	// by `mtag('set', {user_agent: navigator.userAgent})`. `client_ip_address` is passed on in the same way.
	//
	// Your own stores get up to 1,000 events at once, in the columns of an export (as JSON in `nats` and `kafka`). `postgresql`:
	// `host` (with a port unless it is 5432), `database`, `user` (all required), `table` (`events` by default; it is made if it
	// is not there). It has each event exactly once, by its primary key. An event that PostgreSQL does not take, such as one with
	// `\u0000`, becomes a dead letter. `clickhouse`, over HTTP: `url` (required), `database`, `table`, `user`. The table needs
	// columns of these names, of which `raw_data` is a String. A request that is repeated as it was is dropped by its token,
	// where the table keeps tokens (`non_replicated_deduplication_window`). `s3`, in Parquet with a partition for each hour of
	// receipt (`PREFIX/date=2026-11-26/hour=03/….parquet`): `endpoint`, `bucket`, `accessKeyId` (all required), `region`,
	// `prefix`; there is a file a minute or more. `nats`: `host` (required, with a port unless it is 4222), `subject`, `user`.
	// Each event is a message on the subject, which a JetStream stream must store; the stream drops repeats within its duplicate
	// window, by `Nats-Msg-Id`. Without a `user`, the password is a token, or the content of a `.creds` file. `kafka`: `brokers`
	// (with commas between them), `user` (both required), `topic`, `mechanism` (`SCRAM-SHA-512` by default, `SCRAM-SHA-256` or
	// `PLAIN`). The key of a record is the `muid`, so events of a visitor are in order, and its header `id` is that of the event.
	// Each record has all replicas in sync (`acks=all`) before it counts as delivered. After a failure or a kill, Kafka may get
	// events again: read each `id` once. After a kill of the service, ClickHouse and S3 may get events again: read each `id`
	// once, as by a ReplacingMergeTree. `batchSize` and mappings are not for them. What was delivered, an erasure does not reach.
	// They are tried for 30 days. Their secrets are `password`, and `secretAccessKey` of `s3`.
	Settings map[string]any `json:"settings,omitzero"`
	// `webhook`, or an ad platform: see `settings`. It is required to create, and cannot be changed.
	Type string `json:"type,omitzero"`
}

// DestinationList: The destinations of a merchant.
type DestinationList struct {
	// The oldest first.
	Destinations []Destination `json:"destinations"`
}

// DestinationTypes: The types of destinations.
type DestinationTypes struct {
	// Each type.
	Types []DestinationTypesTypes `json:"types"`
}

// DestinationTypesTypes:
type DestinationTypesTypes struct {
	// What an event's visitor must have agreed to.
	Consent []string `json:"consent"`
	// Its secrets.
	Secrets []DestinationTypesTypesSecrets `json:"secrets"`
	// Its settings.
	Settings []DestinationTypesTypesSettings `json:"settings"`
	// Its name.
	Type string `json:"type"`
}

// DestinationTypesTypesSecrets:
type DestinationTypesTypesSecrets struct {
	// The name in `secrets`.
	Name string `json:"name"`
	// You must send it.
	Required bool `json:"required"`
}

// DestinationTypesTypesSettings:
type DestinationTypesTypesSettings struct {
	// What a text is without it.
	Default string `json:"default"`
	// What it must be.
	Hint string `json:"hint"`
	// The name in `settings`.
	Name string `json:"name"`
	// You must send it.
	Required bool `json:"required"`
	// A string, a boolean, or an object of strings.
	Type string `json:"type"`
}

// Erasure: The receipt of an erasure. It does not name the person.
type Erasure struct {
	// How many attempts have failed. It is tried again until it is done.
	Attempts int64 `json:"attempts"`
	// Events that only claimed links lead to are erased as well.
	Claimed bool `json:"claimed"`
	// How many events stay because only claimed links lead to them (`claimed`). Null until they are counted.
	ClaimedEvents *int64 `json:"claimedEvents"`
	// What became of asking the merchant's destinations to erase the person too. Those that were created later are not asked.
	Destinations []ErasureDestinations `json:"destinations"`
	// Its id.
	ErasureID string `json:"erasureId"`
	// How many events are erased. Null until they are counted.
	Events *int64 `json:"events"`
	// When it was done.
	FinishedAt *time.Time `json:"finishedAt"`
	// Why the last attempt has failed; null when none has, or a later one has succeeded.
	LastError *string `json:"lastError"`
	// How many links between identifiers and muids are erased. Null until they are counted.
	Links *int64 `json:"links"`
	// Whose person.
	MerchantID string `json:"merchantId"`
	// When it was requested.
	RequestedAt time.Time `json:"requestedAt"`
	// `pending`: nothing was removed yet. `removing`: events are being removed. `purging`: no answer has them, and their bytes
	// are being removed from the files. `done`: nothing of them is in any file.
	State string `json:"state"`
	// Later events of the person are refused.
	Suppress bool `json:"suppress"`
}

// ErasureDestinations:
type ErasureDestinations struct {
	// When it was last asked.
	At *time.Time `json:"at"`
	// Its id.
	DestinationID string `json:"destinationId"`
	// Why it did not take it.
	Reason *string `json:"reason"`
	// `asked`: it has taken the request. `pending`: it is tried again. `failed`: it did not take it for 72 hours. `notPossible`:
	// it cannot be asked, as ad platforms and stores, or does not want to be (`erasures`).
	State string `json:"state"`
	// Its type.
	Type string `json:"type"`
}

// ErasureInput: Whose events are to be erased. The person is named by exactly one of `muid`, `email`, `phone` and `deviceId`.
type ErasureInput struct {
	// Also take the events that only claimed links lead to. A link between an identifier and a muid is claimed when anyone who
	// knows the tag id could have sent it: it came neither with the merchant's secret, nor with the cookie of a visitor to whom
	// nothing was linked yet. Look at these events first: they may be another person's.
	Claimed *bool `json:"claimed,omitzero"`
	// The id of a device.
	DeviceID string `json:"deviceId,omitzero"`
	// Compared in lower case and without surrounding space.
	Email string `json:"email,omitzero"`
	// The id of a merchant, in any case.
	MerchantID string `json:"merchantId"`
	// At most 256 bytes.
	MUID string `json:"muid,omitzero"`
	// Compared by its digits without a leading `00`.
	Phone string `json:"phone,omitzero"`
	// Later events of the person get 403 `Events of this person are not accepted` on the tag hosts, and nothing of them is kept:
	// those with one of the muids, with the identifier, or with one that a link with the merchant's secret led to them.
	Suppress *bool `json:"suppress,omitzero"`
}

// ErasureList: One page of erasures.
type ErasureList struct {
	// The newest first.
	Erasures   []Erasure  `json:"erasures"`
	Pagination Pagination `json:"pagination"`
}

// Event: An event.
type Event struct {
	// Its name.
	EventName string `json:"event_name"`
	// When it happened: the time of the event itself, or else of its receipt.
	EventTime time.Time `json:"event_time"`
	// The id of the event.
	ID string `json:"id"`
	// It was sent by a program that calls itself a bot.
	IsBot bool `json:"isBot"`
	// The user.
	MUID string `json:"muid"`
	// The event as it was sent.
	RawData map[string]any `json:"raw_data"`
}

// EventFinding: Something that is wrong in an event, or could be better.
type EventFinding struct {
	// What it is for programs, such as `wrong_type`. There will be new ones.
	Code string `json:"code"`
	// `error`: the event is refused. `warning`: it is recorded, but reports miss it or get it wrong. `info`: it could be better.
	Level string `json:"level"`
	// For people. It is about the value at the path.
	Message string `json:"message"`
	// The place in the body as a JSON pointer. Empty: the whole body.
	Path string `json:"path"`
	// The name to send instead.
	Suggestion *string `json:"suggestion"`
}

// EventList: One page of events.
type EventList struct {
	// In the order that the request asked for.
	Events []Event `json:"events"`
	// Where a page is in its list.
	Pagination EventListPagination `json:"pagination"`
}

// EventListPagination: Where a page is in its list.
type EventListPagination struct {
	// The number of this page.
	CurrentPage int64 `json:"currentPage"`
	// There is a page after this one.
	HasNextPage bool `json:"hasNextPage"`
	// There is a page before this one.
	HasPreviousPage bool `json:"hasPreviousPage"`
	// The `limit` of the request.
	ItemsPerPage int64 `json:"itemsPerPage"`
	// The same as `totalItems`.
	Total int64 `json:"total"`
	// How many items the list has.
	TotalItems int64 `json:"totalItems"`
	// How many pages the list has.
	TotalPages int64 `json:"totalPages"`
}

// FeedPage: Events in the order of receipt.
type FeedPage struct {
	// The next `after`. Do not rely on its form.
	Cursor string `json:"cursor"`
	// In the order of receipt.
	Events []ReceivedEvent `json:"events"`
	// There may be more events now. It can be true without events.
	HasMore bool `json:"hasMore"`
}

// Health: Events can be accepted.
type Health struct {
	// Always `ok`.
	Status string `json:"status"`
}

// Identifiers: One of these is required. Other fields are ignored.
type Identifiers struct {
	// The id of a device.
	DeviceID string `json:"deviceId,omitzero"`
	// Compared in lower case and without surrounding space.
	Email string `json:"email,omitzero"`
	// It is linked to the others, and returned. At most 256 bytes.
	MUID string `json:"muid,omitzero"`
	// Compared by its digits without a leading `00`.
	Phone string `json:"phone,omitzero"`
	// Fields are all others.
	Fields map[string]any `json:"-"`
}

// MarshalJSON implements json.Marshaler.
func (o Identifiers) MarshalJSON() ([]byte, error) {
	type known Identifiers
	return withFields(known(o), o.Fields)
}

// IssuedKey: An API key with its text.
type IssuedKey struct {
	// Its text. Keep it on servers.
	APIKey string `json:"apiKey"`
	// When it was created.
	CreatedAt time.Time `json:"createdAt"`
	// It is the key of the request.
	Current bool `json:"current"`
	// When it expires. Null for a key that does not.
	ExpiresAt *time.Time `json:"expiresAt"`
	// The id of the key.
	KeyID string `json:"keyId"`
	// It is right within a minute.
	LastUsedAt *time.Time `json:"lastUsedAt"`
	// Empty for a key that the operator has issued without a name.
	Name string `json:"name"`
	// A key of scope `read` that may also read what is held of a person. Absent otherwise.
	PersonalData *bool `json:"personalData,omitzero"`
	// When it was revoked.
	RevokedAt *time.Time `json:"revokedAt"`
	// `read`: only for requests that change nothing.
	Scope string `json:"scope"`
}

// Key: An API key, without its text.
type Key struct {
	// When it was created.
	CreatedAt time.Time `json:"createdAt"`
	// It is the key of the request.
	Current bool `json:"current"`
	// When it expires. Null for a key that does not.
	ExpiresAt *time.Time `json:"expiresAt"`
	// The id of the key.
	KeyID string `json:"keyId"`
	// It is right within a minute.
	LastUsedAt *time.Time `json:"lastUsedAt"`
	// Empty for a key that the operator has issued without a name.
	Name string `json:"name"`
	// A key of scope `read` that may also read what is held of a person. Absent otherwise.
	PersonalData *bool `json:"personalData,omitzero"`
	// When it was revoked.
	RevokedAt *time.Time `json:"revokedAt"`
	// `read`: only for requests that change nothing.
	Scope string `json:"scope"`
}

// KeyInput: A new API key.
type KeyInput struct {
	// A time in the future, at most 292 years ahead. Without it the key does not expire.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// What the key is for. Space at both ends is removed.
	Name string `json:"name"`
	// With the scope `read`: the key may also read what is held of a person.
	PersonalData *bool `json:"personalData,omitzero"`
	// `read`: the key gets 403 for every request that changes something.
	Scope string `json:"scope,omitzero"`
}

// KeyList: API keys.
type KeyList struct {
	// The oldest first.
	Keys []Key `json:"keys"`
}

// Merchant: A shop.
type Merchant struct {
	// When it was created.
	CreatedAt time.Time `json:"createdAt"`
	// Ad platforms get the address and the user agent of the visitor's browser with its events, where the event's `consent`
	// grants `ad_storage` and `ad_user_data`. Off by default. They are taken from requests of browsers alone (those with an
	// `Origin`), while an active destination takes them, and kept encrypted beside the event until an hour or two after all
	// destinations have it, for at most 72 hours: an event that is delivered later goes without. Only ad platforms and
	// `personal-data` get them; an erasure takes them with the event. After a crash they may be missing.
	DeliverClientDetails *bool `json:"deliverClientDetails,omitzero"`
	// Absent without one.
	Domain string `json:"domain,omitzero"`
	// Only requests with one of the merchant's secrets use identifiers of persons on the tag hosts. By default (`false`), whoever
	// knows a tag id and somebody's email can ask for that person's muid, and link identifiers of his own to it.
	IdentityRequiresSecret *bool `json:"identityRequiresSecret,omitzero"`
	// The id of the merchant.
	MerchantID string `json:"merchantId"`
	// Its name.
	Name string `json:"name"`
	// For how many days events are kept, by their `event_time`. What is past it is in no answer from that moment on, and is
	// removed. Removal takes up to half an hour. A longer retention does not bring back what was removed. Null is for ever.
	// Absent from a merchant while the operator's default is in force.
	RetentionDays Nullable[int64] `json:"retentionDays,omitzero"`
	// Its secrets, without their texts. Absent without any.
	Secrets []Secret `json:"secrets,omitzero"`
	// The operator has suspended it or you: no events are accepted. Absent otherwise.
	Suspended *bool `json:"suspended,omitzero"`
	// The id of its oldest tag. Absent without tags.
	TagID string `json:"tagId,omitzero"`
	// Its tags by type. Only those that exist are there.
	Tracktags MerchantTracktags `json:"tracktags"`
	// What its events take. Only where merchants are read and listed, and absent while the service cannot tell.
	Usage *MerchantUsage `json:"usage,omitzero"`
}

// MerchantTracktags: Its tags by type. Only those that exist are there.
type MerchantTracktags struct {
	ClientSide  *TagOfMerchant `json:"client-side,omitzero"`
	Preverified *TagOfMerchant `json:"preverified,omitzero"`
	ServerSide  *TagOfMerchant `json:"server-side,omitzero"`
}

// MerchantUsage: What its events take. Only where merchants are read and listed, and absent while the service cannot tell.
type MerchantUsage struct {
	// Before compression.
	Bytes int64 `json:"bytes"`
	// How many there are.
	Events int64 `json:"events"`
}

// MerchantChange: The fields of a merchant that change.
type MerchantChange struct {
	// Ad platforms get the address and the user agent of the visitor's browser with its events, where the event's `consent`
	// grants `ad_storage` and `ad_user_data`. Off by default. They are taken from requests of browsers alone (those with an
	// `Origin`), while an active destination takes them, and kept encrypted beside the event until an hour or two after all
	// destinations have it, for at most 72 hours: an event that is delivered later goes without. Only ad platforms and
	// `personal-data` get them; an erasure takes them with the event. After a crash they may be missing.
	DeliverClientDetails *bool `json:"deliverClientDetails,omitzero"`
	// A root domain, or null for none. It is information only.
	Domain Nullable[string] `json:"domain,omitzero"`
	// Only requests with one of the merchant's secrets use identifiers of persons on the tag hosts. By default (`false`), whoever
	// knows a tag id and somebody's email can ask for that person's muid, and link identifiers of his own to it.
	IdentityRequiresSecret *bool `json:"identityRequiresSecret,omitzero"`
	// Space at both ends is removed.
	Name string `json:"name,omitzero"`
	// For how many days events are kept, by their `event_time`. What is past it is in no answer from that moment on, and is
	// removed. Removal takes up to half an hour. A longer retention does not bring back what was removed. Null is for ever.
	// Absent from a merchant while the operator's default is in force.
	RetentionDays Nullable[int64] `json:"retentionDays,omitzero"`
}

// MerchantInput: A new merchant.
type MerchantInput struct {
	// The merchant's root domain, such as `example.com` or `example.co.uk`: without protocol, `www.` and subdomain. Here it is
	// information only: it registers nothing.
	Domain string `json:"domain,omitzero"`
	// Only requests with one of the merchant's secrets use identifiers of persons on the tag hosts. By default (`false`), whoever
	// knows a tag id and somebody's email can ask for that person's muid, and link identifiers of his own to it.
	IdentityRequiresSecret *bool `json:"identityRequiresSecret,omitzero"`
	// Space at both ends is removed.
	Name string `json:"name"`
}

// MerchantList: One page of merchants.
type MerchantList struct {
	// The oldest first.
	Merchants  []Merchant `json:"merchants"`
	Pagination Pagination `json:"pagination"`
}

// NewEvent: An event that is sent, as one flat object of at most 64 KiB, with at most 64 levels of nesting and numbers that
// fit a 64-bit float. One of `muid`, `email`, `phone`, `deviceId` and the cookie `_muid` is required, and `event`.
// Identifiers that are not strings are ignored. All other fields are stored with it.
type NewEvent struct {
	// The id of a device.
	DeviceID string `json:"deviceId,omitzero"`
	// Compared in lower case and without surrounding space.
	Email string `json:"email,omitzero"`
	// Its name in PascalCase. The pre-defined ones are ViewContent, ViewItem, Login, Signup, CompleteRegistration, StartTrial,
	// AddPaymentInfo, AddShippingInfo, ViewCart, AddToCart, AddToWishlist, RemoveFromCart, BeginCheckout, Purchase, Refund,
	// Search, Share, Subscribe, Lead, SubmitApplication, Contact, Donate and Schedule.
	Event string `json:"event,omitzero"`
	// At most 128 characters. Events of a merchant with the same name and the same `event_id` are recorded once within 7 days.
	EventID string `json:"event_id,omitzero"`
	// Such as `server`, so that events of a backend can be told apart.
	EventSource string `json:"event_source,omitzero"`
	// When it happened, as in RFC 3339, at most 5 minutes in the future. For any other value, the time of receipt counts.
	EventTime string `json:"event_time,omitzero"`
	// The user. At most 256 bytes. An empty one counts as absent.
	MUID string `json:"muid,omitzero"`
	// Compared by its digits without a leading `00`.
	Phone string `json:"phone,omitzero"`
	// The name when `event` is absent.
	Type string `json:"type,omitzero"`
	// The visitor's browser, as in its header `User-Agent`; without it that header of the request counts, of a batch also when
	// more than 16 are new to the service. It decides whether the event is a bot's (its first 256 bytes do): one with a bot's
	// name, or with an address such as `+https://example.com`. `curl`, `python-requests` and other HTTP libraries are not bots.
	UserAgent string `json:"user_agent,omitzero"`
	// Fields are all others.
	Fields map[string]any `json:"-"`
}

// MarshalJSON implements json.Marshaler.
func (o NewEvent) MarshalJSON() ([]byte, error) {
	type known NewEvent
	return withFields(known(o), o.Fields)
}

// NewSecret: A secret with its text.
type NewSecret struct {
	// When it was created.
	CreatedAt time.Time `json:"createdAt"`
	// Its text. Keep it on servers.
	Secret string `json:"secret"`
	// The id of the secret.
	SecretID string `json:"secretId"`
}

// Pagination: Where a page is in its list.
type Pagination struct {
	// The number of this page.
	CurrentPage int64 `json:"currentPage"`
	// There is a page after this one.
	HasNextPage bool `json:"hasNextPage"`
	// There is a page before this one.
	HasPreviousPage bool `json:"hasPreviousPage"`
	// The `limit` of the request.
	ItemsPerPage int64 `json:"itemsPerPage"`
	// How many items the list has.
	TotalItems int64 `json:"totalItems"`
	// How many pages the list has.
	TotalPages int64 `json:"totalPages"`
}

// Person: A person, who is named by exactly one of `muid`, `email`, `phone` and `deviceId`.
type Person struct {
	// Also take the events that only claimed links lead to. A link between an identifier and a muid is claimed when anyone who
	// knows the tag id could have sent it: it came neither with the merchant's secret, nor with the cookie of a visitor to whom
	// nothing was linked yet. Look at these events first: they may be another person's.
	Claimed *bool `json:"claimed,omitzero"`
	// The id of a device.
	DeviceID string `json:"deviceId,omitzero"`
	// Compared in lower case and without surrounding space.
	Email string `json:"email,omitzero"`
	// The id of a merchant, in any case.
	MerchantID string `json:"merchantId"`
	// At most 256 bytes.
	MUID string `json:"muid,omitzero"`
	// Compared by its digits without a leading `00`.
	Phone string `json:"phone,omitzero"`
}

// ReceivedEvent: An event in the feed.
type ReceivedEvent struct {
	// Its name.
	EventName string `json:"event_name"`
	// When it happened: the time of the event itself, or else of its receipt.
	EventTime time.Time `json:"event_time"`
	// The id of the event.
	ID string `json:"id"`
	// It was sent by a program that calls itself a bot.
	IsBot bool `json:"isBot"`
	// The id of the merchant.
	MerchantID string `json:"merchantId"`
	// The user.
	MUID string `json:"muid"`
	// The event as it was sent.
	RawData map[string]any `json:"raw_data"`
	// When the service has received it.
	ReceivedAt time.Time `json:"receivedAt"`
	// The id of the tag.
	TagID string `json:"tagId"`
}

// Refused: Events that were refused for the same reason, or recorded although they are odd.
type Refused struct {
	// When the first of them was received.
	At time.Time `json:"at"`
	// The reason for programs, such as `event_malformed` or `no_muid_found`. There will be new ones.
	Code string `json:"code"`
	// How many they are. Of odd ones only those that were checked.
	Count int64 `json:"count"`
	// The event's name. Null when it has none, or one that might be a person's.
	Event *string `json:"event"`
	// When the last of them was received.
	LastAt time.Time `json:"lastAt"`
	// The id of the merchant.
	MerchantID string `json:"merchantId"`
	// The message that the sender got.
	Message string `json:"message"`
	// The origin of the page that has sent the first of them.
	Origin *string `json:"origin"`
	// The place in the event of the first of them, as a JSON pointer. Empty: the whole event.
	Path string `json:"path"`
	// What is wrong or what to do. For people.
	Reason string `json:"reason"`
	// The fields of the first of them, with the types of their values. Null when it was not read or is larger than 16 KiB.
	Sample map[string]any `json:"sample"`
	// The status that the sender got. 201: the event is recorded, but odd.
	Status int64 `json:"status"`
	// The name that the sender may have meant.
	Suggestion *string `json:"suggestion"`
	// The id of the tag.
	TagID string `json:"tagId"`
}

// RefusedList: Refused and odd events of a merchant.
type RefusedList struct {
	// How many events since then are in no entry. There were too many different ones.
	Dropped int64 `json:"dropped"`
	// The entry with the latest event first.
	Refused []Refused `json:"refused"`
	// The time since which events are remembered: 24 hours ago, or the start of the service.
	Since time.Time `json:"since"`
}

// ReplayInput: What to send again.
type ReplayInput struct {
	// All dead letters, which are no longer listed then.
	DeadLetters *bool `json:"deadLetters,omitzero"`
	// The events of this delivery.
	DeliveryID string `json:"deliveryId,omitzero"`
	// Events of this `event_time` or later: a date, or a time as in RFC 3339.
	From string `json:"from,omitzero"`
	// And not after this one; a date means its end.
	To string `json:"to,omitzero"`
}

// Resolved: The user.
type Resolved struct {
	// Null for an unknown user.
	MUID *string `json:"muid"`
	// Always `true`.
	Success bool `json:"success"`
}

// Secret: A secret of a merchant, without its text.
type Secret struct {
	// When it was created.
	CreatedAt time.Time `json:"createdAt"`
	// The id of the secret.
	SecretID string `json:"secretId"`
}

// Summary: Numbers of events.
type Summary struct {
	// That of the request.
	Bucket string `json:"bucket,omitzero"`
	// When each bucket begins.
	Buckets []time.Time `json:"buckets,omitzero"`
	// That of the request.
	By string `json:"by,omitzero"`
	// One number for each bucket.
	Counts []int64 `json:"counts,omitzero"`
	// The 100 largest names or tags, the largest first.
	Groups []SummaryGroups `json:"groups,omitzero"`
	// The events that are in no group.
	Other *SummaryOther `json:"other,omitzero"`
	// That of the request.
	Timezone string `json:"timezone"`
	// How many events there are.
	Total int64 `json:"total"`
}

// SummaryGroups:
type SummaryGroups struct {
	// One number for each bucket.
	Counts []int64 `json:"counts,omitzero"`
	// Of groups by `event_name`.
	EventName string `json:"event_name,omitzero"`
	// Of groups by `tag`.
	TagID string `json:"tagId,omitzero"`
	// How many events there are.
	Total int64 `json:"total"`
}

// SummaryOther: The events that are in no group.
type SummaryOther struct {
	// One number for each bucket.
	Counts []int64 `json:"counts,omitzero"`
	// How many events there are.
	Total int64 `json:"total"`
}

// Tag: A tag that was generated.
type Tag struct {
	// What the request did.
	Message string     `json:"message"`
	Record  *DNSRecord `json:"record,omitzero"`
	// `active`: events are accepted. `inactive`: a server-side tag that was not verified yet, or has lost its domain.
	Status string `json:"status"`
	// The id of the tag.
	TagID string `json:"tagId"`
	// Which host serves it.
	Type string `json:"type"`
}

// TagDetails: Everything about a tag.
type TagDetails struct {
	// The TLS certificate of the host. Null when the operator's own proxy ends TLS.
	Certificate *Certificate `json:"certificate"`
	// When it was created.
	CreatedAt time.Time `json:"createdAt"`
	// The last verification, or a later hourly check that changed `isConnected`. Null before the first, and after the tag has
	// lost its domain.
	DNS *DNSFinding `json:"dns"`
	// A server-side tag has lost its domain.
	DomainLost bool `json:"domainLost"`
	// The host that serves the tag.
	Host string `json:"host"`
	// What the last check of DNS with a definite result found: by verify, or by the service's own check every hour.
	IsConnected bool `json:"isConnected"`
	// DNS was correct at least once since the tag got its domain.
	IsVerified bool `json:"isVerified"`
	// The latest `event_time` of its events. Null before the first event.
	LastEventAt *time.Time `json:"lastEventAt"`
	// The progress of the installation.
	Lifecycle string `json:"lifecycle"`
	// The id of the merchant.
	MerchantID string     `json:"merchantId"`
	Record     *DNSRecord `json:"record,omitzero"`
	// The HTML that installs the tag. It says `consent: false`: replace that with the visitor's choice.
	Snippet string `json:"snippet"`
	// `active`: events are accepted. `inactive`: a server-side tag that was not verified yet, or has lost its domain.
	Status string `json:"status"`
	// The operator has suspended it or you: no events are accepted. Absent otherwise.
	Suspended *bool `json:"suspended,omitzero"`
	// The id of the tag.
	TagID string `json:"tagId"`
	// Which host serves it.
	Type string `json:"type"`
}

// TagInput: Which tag to generate.
type TagInput struct {
	// The merchant's root domain: one label under a public suffix, such as `example.com` or `example.co.uk`, without protocol,
	// `www.`, subdomain, port and final dot. Its case does not matter; names outside ASCII are in Punycode (`xn--…`). Required
	// for a new server-side tag, which registers it. Ignored for the other types. Refused are the root domains of the service's
	// own hosts, domains with a partner's tracking domain on them, and names without a public top-level domain, such as
	// `shop.test`, unless the operator allows these.
	Domain string `json:"domain,omitzero"`
	// The id of the merchant.
	MerchantID string `json:"merchantId"`
	// `client-side`: one host, shared by all merchants. `server-side`, or `server_side`: a host under the merchant's domain,
	// which needs a DNS record. `preverified`: your tracking domain.
	Type string `json:"type"`
}

// TagOfMerchant: A tag, in brief.
type TagOfMerchant struct {
	// When it was created.
	CreatedAt time.Time `json:"createdAt"`
	// `active`: events are accepted. `inactive`: a server-side tag that was not verified yet, or has lost its domain.
	Status string `json:"status"`
	// The host of the tag.
	Subdomain string `json:"subdomain"`
	// The id of the tag.
	TagID string `json:"tagId"`
}

// TestInput: Whether to send.
type TestInput struct {
	// The id of an event to show or send. Absent for the newest.
	EventID string `json:"eventId,omitzero"`
	// `false`: only show what would be sent.
	Send *bool `json:"send,omitzero"`
}

// TestResult: Requests.
type TestResult struct {
	// The newest event first.
	Events []TestResultEvents `json:"events"`
}

// TestResultEvents:
type TestResultEvents struct {
	// The first KiB of the answer.
	Answer string `json:"answer,omitzero"`
	// The body of the request.
	Body any `json:"body,omitzero"`
	// Its name.
	Event string `json:"event"`
	// The id of the event.
	EventID string `json:"eventId,omitzero"`
	// The headers of the request.
	Headers map[string]string `json:"headers,omitzero"`
	// `send`, `delivered`, or why not.
	Result string `json:"result"`
	// The status of the answer.
	Status *int64 `json:"status,omitzero"`
	// Where it is sent.
	URL string `json:"url,omitzero"`
}

// Trial: What a tag host would answer, and what is wrong with the events.
type Trial struct {
	// The body that the tag host would answer with.
	Answer json.RawMessage `json:"answer"`
	// In the order of the events. If the events were refused because of the tag or the body, this comes first.
	Findings []EventFinding `json:"findings"`
	// The status that the tag host would answer with.
	Status int64 `json:"status"`
}

// Verification: Which tag to verify. One of `merchantId` and `tagId` is required. If both are given, the tag must be one of
// the merchant's.
type Verification struct {
	// A merchant.
	MerchantID string `json:"merchantId,omitzero"`
	// The tag's full host. For a preverified tag your tracking domain.
	Subdomain string `json:"subdomain"`
	// A tag.
	TagID string `json:"tagId,omitzero"`
}

// Verified: DNS is correct.
type Verified struct {
	// Always `true`.
	Verified bool `json:"verified"`
}

// ChangeDestination: Change a destination.
//
// Only the fields that you send change. A new value of a secret that signs is valid at once, and the one before signs too for
// 24 hours. An unknown field is an error.
func (c *Client) ChangeDestination(ctx context.Context, merchantID string, destinationID string, body DestinationInput) (*Destination, error) {
	return call[Destination](ctx, c, request{method: "PATCH", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/destinations/" + url.PathEscape(destinationID), repeat: safe, body: body})
}

// ChangeMerchant: Change a merchant.
//
// A field that is absent stays as it is. An unknown field is an error.
func (c *Client) ChangeMerchant(ctx context.Context, merchantID string, body MerchantChange) (*Merchant, error) {
	return call[Merchant](ctx, c, request{method: "PATCH", path: "/v1/partners/merchant/" + url.PathEscape(merchantID), repeat: safe, body: body})
}

// CreateDestination: Create a destination.
//
// It gets the events that come in from now on; replay those before. A merchant has at most 50 destinations. An unknown field
// is an error.
func (c *Client) CreateDestination(ctx context.Context, merchantID string, body DestinationInput) (*Destination, error) {
	return call[Destination](ctx, c, request{method: "POST", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/destinations", repeat: once, body: body})
}

// CreateMerchant: Create a merchant.
//
// Each call creates a merchant, unless it has an `Idempotency-Key` that was sent before.
func (c *Client) CreateMerchant(ctx context.Context, body MerchantInput) (*CreatedMerchant, error) {
	return call[CreatedMerchant](ctx, c, request{method: "POST", path: "/v1/partners/merchant", repeat: keyed, body: body})
}

// CreateSecret: Create a secret.
//
// With a secret the merchant's backend may use identifiers of persons on the tag host. A merchant has at most two secrets, so
// that its backend can change to a new one without a gap. A third is refused with 403. Tag hosts check a secret even without
// `identityRequiresSecret`, so you can try it first. When the answer got lost, read the merchant and delete the secret that
// you do not know.
func (c *Client) CreateSecret(ctx context.Context, merchantID string) (*NewSecret, error) {
	return call[NewSecret](ctx, c, request{method: "POST", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/secret", repeat: once})
}

// DeleteDestination: Delete a destination.
//
// With its secrets and the list of its deliveries.
func (c *Client) DeleteDestination(ctx context.Context, merchantID string, destinationID string) (*DeletedDestination, error) {
	return call[DeletedDestination](ctx, c, request{method: "DELETE", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/destinations/" + url.PathEscape(destinationID), repeat: safe})
}

// DeleteMerchant: Delete a merchant.
//
// This cannot be undone. From the next request on, the tags of the merchant are unknown, its domain and the names of its
// hosts are free, and its events are in no answer. They are removed from the disk in the background; backups keep theirs
// until they expire. Deleting a merchant again is 404.
func (c *Client) DeleteMerchant(ctx context.Context, merchantID string) (*DeletedMerchant, error) {
	return call[DeletedMerchant](ctx, c, request{method: "DELETE", path: "/v1/partners/merchant/" + url.PathEscape(merchantID), repeat: safe})
}

// DeleteSecret: Delete a secret.
//
// The secret ends with the next request. `identityRequiresSecret` stays as it is: then without any secret nobody uses
// identifiers.
func (c *Client) DeleteSecret(ctx context.Context, merchantID string, secretID string) (*Merchant, error) {
	return call[Merchant](ctx, c, request{method: "DELETE", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/secret/" + url.PathEscape(secretID), repeat: safe})
}

// DiscardDeadLetters: Discard the dead letters.
//
// They are not listed any more, and cannot be replayed as dead letters.
func (c *Client) DiscardDeadLetters(ctx context.Context, merchantID string, destinationID string) (*Destination, error) {
	return call[Destination](ctx, c, request{method: "DELETE", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/destinations/" + url.PathEscape(destinationID) + "/deliveries", repeat: safe})
}

// ErasePerson: Erase a person.
//
// The answer means that the erasure will be done, also after a kill. Read its receipt until it is `done`. Then no file of the
// service has a byte of the person, except for backups; a restored backup is erased again. Events that come in later are
// recorded, unless `suppress` is true. The same request again, before the erasure has begun, returns the same receipt. At
// most 1,000 erasures may be open; more get 429.
func (c *Client) ErasePerson(ctx context.Context, body ErasureInput) (*Erasure, error) {
	return call[Erasure](ctx, c, request{method: "POST", path: "/v1/partners/erasures", repeat: safe, body: body})
}

// ExportEventsQuery: The parameters of ExportEvents.
type ExportEventsQuery struct {
	// Only events with this `event_time` or an earlier one. A date means the end of the day in UTC. A time without a fraction
	// means the end of the second. It must not be before `startDate`.
	EndDate string `json:"endDate,omitzero"`
	// Only events with one of these names, separated by commas. Their case matters; unknown names match nothing.
	Events string `json:"events,omitzero"`
	// The format of the file. NDJSON has one object a line. CSV has the names of the columns in its first line, and `raw_data` as
	// JSON in one cell. No cell is a formula for a spreadsheet, whether it splits at commas or semicolons: `raw_data` has
	// `\u003b` for `;`, which is the same JSON, and a part of a `muid` that would be a formula has an apostrophe before it.
	// Parquet has times in microseconds and `raw_data` as text.
	Format string `json:"format,omitzero"`
	// `true`: only events of programs that call themselves bots; `false`: only the others.
	IsBot *bool `json:"isBot,omitzero"`
	// The id of a merchant, in any case.
	MerchantID string `json:"merchantId"`
	// Only events with this `event_time` or a later one. A date (`2026-11-20`) is the beginning of the day in UTC. A time is as
	// in RFC 3339, with an offset of up to 23:59; send its `+` as `%2B`. Also accepted are `t` and `z`, a leap second
	// (`23:59:60Z`), and a comma before a fraction.
	StartDate string `json:"startDate,omitzero"`
	// Only the events of this tag. When it is not a tag of the merchant, there are none.
	TagID string `json:"tagId,omitzero"`
}

// ExportEvents: Export events.
//
// All events of a merchant as a file, in the order in which they were received. The columns are the fields of a
// ReceivedEvent. Columns may be added, so read them by their names. Events that come while you download are not in it. An
// export that fails is cut off in the middle, which HTTP clients report (`curl` with exit code 18): do not use such a file.
// NDJSON and CSV are compressed with zstd or gzip when `Accept-Encoding` allows it.
func (c *Client) ExportEvents(ctx context.Context, query ExportEventsQuery) (io.ReadCloser, error) {
	return c.do(ctx, request{method: "GET", path: "/v1/partners/events/export", repeat: safe, query: query, stream: true}, nil)
}

// GenerateTag: Generate a tag.
//
// Creates the merchant's tag of a type. If there is one, it is returned unchanged, whatever `domain` you send. So it is safe
// to send the request again. A client-side or preverified tag is active at once; for a server-side tag the merchant creates
// the DNS record, and then you verify. 403 also means that you have as many unverified domains (the message names `domain`)
// or tags with a record (`type`) as you may have; 400 that preverified access is not enabled for you; 503 that the service
// has hardly any `mtag-xxxx` names left.
func (c *Client) GenerateTag(ctx context.Context, body TagInput) (*Tag, error) {
	return call[Tag](ctx, c, request{method: "POST", path: "/v1/partners/tracktag/generate", repeat: safe, body: body})
}

// IssueKey: Issue an API key.
//
// You have at most 100 valid keys. An unknown field is an error.
func (c *Client) IssueKey(ctx context.Context, body KeyInput) (*IssuedKey, error) {
	return call[IssuedKey](ctx, c, request{method: "POST", path: "/v1/partners/key", repeat: keyed, body: body})
}

// ListDeliveriesQuery: The parameters of ListDeliveries.
type ListDeliveriesQuery struct {
	// Only those with this event.
	EventID string `json:"eventId,omitzero"`
	// How many at most.
	Limit *int64 `json:"limit,omitzero"`
	// Only those of this state.
	State string `json:"state,omitzero"`
}

// ListDeliveries: List deliveries.
//
// The last attempts, about 100, and all dead letters, the newest first.
func (c *Client) ListDeliveries(ctx context.Context, merchantID string, destinationID string, query ListDeliveriesQuery) (*DeliveryList, error) {
	return call[DeliveryList](ctx, c, request{method: "GET", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/destinations/" + url.PathEscape(destinationID) + "/deliveries", repeat: safe, query: query})
}

// ListDestinationTypes: List the types of destinations.
//
// What a destination of each type needs.
func (c *Client) ListDestinationTypes(ctx context.Context) (*DestinationTypes, error) {
	return call[DestinationTypes](ctx, c, request{method: "GET", path: "/v1/partners/destination-types", repeat: safe})
}

// ListDestinations: List destinations.
//
// The oldest comes first.
func (c *Client) ListDestinations(ctx context.Context, merchantID string) (*DestinationList, error) {
	return call[DestinationList](ctx, c, request{method: "GET", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/destinations", repeat: safe})
}

// ListErasuresQuery: The parameters of ListErasures.
type ListErasuresQuery struct {
	// How many erasures a page has.
	Limit *int64 `json:"limit,omitzero"`
	// The id of a merchant, in any case.
	MerchantID string `json:"merchantId"`
	// The number of the page.
	Page *int64 `json:"page,omitzero"`
}

// ListErasures: List erasures.
//
// The newest erasure of the merchant comes first.
func (c *Client) ListErasures(ctx context.Context, query ListErasuresQuery) (*ErasureList, error) {
	return call[ErasureList](ctx, c, request{method: "GET", path: "/v1/partners/erasures", repeat: safe, query: query})
}

// AllErasures lists what all pages of ListErasures have, 100 at a time unless query.Limit says otherwise.
func (c *Client) AllErasures(ctx context.Context, query ListErasuresQuery) iter.Seq2[Erasure, error] {
	if query.Limit == nil {
		limit := int64(100)
		query.Limit = &limit
	}
	return all(func(page int64) ([]Erasure, bool, error) {
		query.Page = &page
		answer, err := c.ListErasures(ctx, query)
		if err != nil {
			return nil, false, err
		}
		return answer.Erasures, answer.Pagination.HasNextPage, nil
	})
}

// ListEventsQuery: The parameters of ListEvents.
type ListEventsQuery struct {
	// Only events with this `event_time` or an earlier one. A date means the end of the day in UTC. A time without a fraction
	// means the end of the second. It must not be before `startDate`.
	EndDate string `json:"endDate,omitzero"`
	// Only events with one of these names, separated by commas. Their case matters; unknown names match nothing.
	Events string `json:"events,omitzero"`
	// `true`: only events of programs that call themselves bots; `false`: only the others.
	IsBot *bool `json:"isBot,omitzero"`
	// How many events a page has.
	Limit *int64 `json:"limit,omitzero"`
	// The id of a merchant, in any case.
	MerchantID string `json:"merchantId"`
	// The number of the page.
	Page *int64 `json:"page,omitzero"`
	// What the events are ordered by.
	SortBy string `json:"sortBy,omitzero"`
	// Newest first, or oldest first. For names from Z to A, or from A to Z.
	SortOrder string `json:"sortOrder,omitzero"`
	// Only events with this `event_time` or a later one. A date (`2026-11-20`) is the beginning of the day in UTC. A time is as
	// in RFC 3339, with an offset of up to 23:59; send its `+` as `%2B`. Also accepted are `t` and `z`, a leap second
	// (`23:59:60Z`), and a comma before a fraction.
	StartDate string `json:"startDate,omitzero"`
	// Only the events of this tag. When it is not a tag of the merchant, there are none.
	TagID string `json:"tagId,omitzero"`
}

// ListEvents: List events.
//
// One page of a merchant's events. An event is listed as soon as the tag host has answered 201 for it. Equal times are
// ordered by id. Equal names are ordered by time, newest first, for both orders. A page past the end is an empty list. In the
// default order each new event moves the others to later pages: to read a long list, use `sortOrder=asc` and an `endDate` in
// the past, and go on while `hasNextPage` is true. The answer is 404 for a merchant that has no tag yet, too.
func (c *Client) ListEvents(ctx context.Context, query ListEventsQuery) (*EventList, error) {
	return call[EventList](ctx, c, request{method: "GET", path: "/v1/partners/events", repeat: safe, query: query})
}

// AllEvents lists what all pages of ListEvents have, 100 at a time unless query.Limit says otherwise.
func (c *Client) AllEvents(ctx context.Context, query ListEventsQuery) iter.Seq2[Event, error] {
	if query.Limit == nil {
		limit := int64(100)
		query.Limit = &limit
	}
	return all(func(page int64) ([]Event, bool, error) {
		query.Page = &page
		answer, err := c.ListEvents(ctx, query)
		if err != nil {
			return nil, false, err
		}
		return answer.Events, answer.Pagination.HasNextPage, nil
	})
}

// ListKeys: List your API keys.
//
// The oldest key comes first.
func (c *Client) ListKeys(ctx context.Context) (*KeyList, error) {
	return call[KeyList](ctx, c, request{method: "GET", path: "/v1/partners/key", repeat: safe})
}

// ListMerchantsQuery: The parameters of ListMerchants.
type ListMerchantsQuery struct {
	// Only merchants that have this text in their domain, or in that of their server-side tag, in any case.
	Domain string `json:"domain,omitzero"`
	// How many merchants a page has.
	Limit *int64 `json:"limit,omitzero"`
	// Only merchants that have this text in their name, in any case.
	Name string `json:"name,omitzero"`
	// The number of the page.
	Page *int64 `json:"page,omitzero"`
}

// ListMerchants: List merchants.
//
// The oldest merchant comes first. A page past the end is an empty list.
func (c *Client) ListMerchants(ctx context.Context, query ListMerchantsQuery) (*MerchantList, error) {
	return call[MerchantList](ctx, c, request{method: "GET", path: "/v1/partners/merchant", repeat: safe, query: query})
}

// AllMerchants lists what all pages of ListMerchants have, 100 at a time unless query.Limit says otherwise.
func (c *Client) AllMerchants(ctx context.Context, query ListMerchantsQuery) iter.Seq2[Merchant, error] {
	if query.Limit == nil {
		limit := int64(100)
		query.Limit = &limit
	}
	return all(func(page int64) ([]Merchant, bool, error) {
		query.Page = &page
		answer, err := c.ListMerchants(ctx, query)
		if err != nil {
			return nil, false, err
		}
		return answer.Merchants, answer.Pagination.HasNextPage, nil
	})
}

// ListRefusedQuery: The parameters of ListRefused.
type ListRefusedQuery struct {
	// How many entries the answer has.
	Limit *int64 `json:"limit,omitzero"`
	// The id of a merchant, in any case.
	MerchantID string `json:"merchantId"`
	// Only what this tag of the merchant has refused.
	TagID string `json:"tagId,omitzero"`
}

// ListRefused: List refused and odd events.
//
// What the tags of a merchant have refused in the last 24 hours, and what they have recorded although it is odd. Events with
// the same tag, status, code, place and name are one entry. The entry with the latest event comes first. Odd events have the
// status 201: reports would miss them or get them wrong. Of recorded events up to 16 KiB, at most 10 a second of a merchant
// are checked, fewer when the service is busy. If the service runs on several nodes, the answer has what the node that gives
// it has refused: ask a few times, or send a wrong event again.
//
// Values of events are not kept, but for currency codes and a few words such as `server`. An entry has the names and types of
// the fields of its first event. A name that might be a person's is left out.
//
// An entry is kept for 24 hours from its first event. A merchant has at most 1,000 entries, of which 20 may differ only in
// their names; all together have 32 MiB. At a limit, the entry with the fewest events is removed, of the merchant that uses
// most. One address can make 20 entries of a merchant at once, and then one a minute.
//
// Not listed are events with a tag id that does not exist, requests over the rate of one address and those of more than 1
// MiB, which are refused before their tag is known, and what the browser has blocked.
func (c *Client) ListRefused(ctx context.Context, query ListRefusedQuery) (*RefusedList, error) {
	return call[RefusedList](ctx, c, request{method: "GET", path: "/v1/partners/debug/refused", repeat: safe, query: query})
}

// ReadConfig: Read your configuration.
func (c *Client) ReadConfig(ctx context.Context) (*Config, error) {
	return call[Config](ctx, c, request{method: "GET", path: "/v1/partners/config", repeat: safe})
}

// ReadDestination: Read a destination.
func (c *Client) ReadDestination(ctx context.Context, merchantID string, destinationID string) (*Destination, error) {
	return call[Destination](ctx, c, request{method: "GET", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/destinations/" + url.PathEscape(destinationID), repeat: safe})
}

// ReadErasure: Read the receipt of an erasure.
func (c *Client) ReadErasure(ctx context.Context, erasureID string) (*Erasure, error) {
	return call[Erasure](ctx, c, request{method: "GET", path: "/v1/partners/erasures/" + url.PathEscape(erasureID), repeat: safe})
}

// ReadFeedQuery: The parameters of ReadFeed.
type ReadFeedQuery struct {
	// The `cursor` of the answer before. Without it, the feed begins with the oldest event; `latest` begins with the next event
	// to come.
	After string `json:"after,omitzero"`
	// `true`: only events of programs that call themselves bots; `false`: only the others.
	IsBot *bool `json:"isBot,omitzero"`
	// How many events the answer has at most. It also ends at about 1 MiB.
	Limit *int64 `json:"limit,omitzero"`
	// Only the events of this merchant. Without it, those of all your merchants, new ones too.
	MerchantID string `json:"merchantId,omitzero"`
	// How many seconds to wait when there is no event yet. The answer comes as soon as there is one.
	Wait *int64 `json:"wait,omitzero"`
}

// ReadFeed: Follow the feed.
//
// Your events in the order in which they were received. To copy events use this: a listing by date misses events that arrive
// late with an old `event_time`. An event is in the feed as soon as the tag host has answered 201 for it.
//
// Who sends each answer's `cursor` as the next `after` gets every event exactly once, in an order that never changes: while
// events come in, with late events, after a restart or a crash of the service. Store the cursor together with what you made
// of the events, in one transaction: then nothing is lost or doubled on your side either. A cursor is good as long as the
// events after it are kept, and for any `merchantId`. Ask again at once while `hasMore` is true; an answer may have no events
// then, because it has looked through the events of others.
//
// A request that waits is answered early, with no events, when the service stops. It gets 401 or 404 within 15 seconds when
// the key is revoked or the merchant deleted.
//
// With `Accept: text/event-stream` the answer is a stream of server-sent events, which has no `limit` and no `wait`. The `id`
// of each is the cursor after it; `data` is the event. Every 15 seconds at least, the stream has a comment, and an `id`
// without an event. The header `Last-Event-ID` takes precedence over `after`. A connection that is silent for a minute is
// broken: open a new one. A client that does not read loses its connection after 10 seconds. A stream ends cleanly when the
// service stops, when the key ends, and when the merchant of `merchantId` is deleted; the next request says why.
func (c *Client) ReadFeed(ctx context.Context, query ReadFeedQuery) (*FeedPage, error) {
	return call[FeedPage](ctx, c, request{method: "GET", path: "/v1/partners/events/feed", repeat: safe, query: query})
}

// ReadHealth: Check that events can be accepted.
func (c *Client) ReadHealth(ctx context.Context) (*Health, error) {
	return call[Health](ctx, c, request{method: "GET", path: "/health", repeat: safe})
}

// ReadMerchant: Read a merchant.
func (c *Client) ReadMerchant(ctx context.Context, merchantID string) (*Merchant, error) {
	return call[Merchant](ctx, c, request{method: "GET", path: "/v1/partners/merchant/" + url.PathEscape(merchantID), repeat: safe})
}

// ReadPersonalData: Read what is held of a person.
//
// One JSON object a line: the links (`{"type":"link"}`), then the events in the order in which they were received
// (`{"type":"event"}`), and at last `{"type":"end"}` with the numbers of both, and with `claimedEvents`: how many events were
// left out because only claimed links lead to them. An answer without the last line is not complete. Only one such request of
// a partner runs at a time. Keys of scope `read` need `personalData`.
func (c *Client) ReadPersonalData(ctx context.Context, body Person) (io.ReadCloser, error) {
	return c.do(ctx, request{method: "POST", path: "/v1/partners/personal-data", repeat: safe, body: body, stream: true}, nil)
}

// ReadTag: Read a tag.
//
// Everything about a tag. `dns.detail` is a sentence that you can pass on to the merchant.
func (c *Client) ReadTag(ctx context.Context, tagID string) (*TagDetails, error) {
	return call[TagDetails](ctx, c, request{method: "GET", path: "/v1/partners/tracktag/" + url.PathEscape(tagID), repeat: safe})
}

// ReplayEvents: Send events again.
//
// Send one of `from` (with `to` or not), `deadLetters` and `deliveryId`. Events have the same ids again, so the receiver can
// drop repeats. An ad platform takes no event older than `maxAgeHours` of the destination.
func (c *Client) ReplayEvents(ctx context.Context, merchantID string, destinationID string, body ReplayInput) (*Destination, error) {
	return call[Destination](ctx, c, request{method: "POST", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/destinations/" + url.PathEscape(destinationID) + "/replay", repeat: once, body: body})
}

// ResolveMUIDQuery: The parameters of ResolveMUID.
type ResolveMUIDQuery struct {
	// `1`: the answer sets the cookie `_muid` of the request again, for 400 days, if its status is below 300, the page has an
	// `Origin`, and the cookies `_muid` have one value. The cookie's domain is the root domain of the `Origin`. Without `renew`
	// the service sets no cookie. Ask for it about once a day, and only in a request that you abort when the visitor withdraws
	// consent and on `pagehide`, never with `keepalive` or a beacon: a late answer would bring back the cookie of a visitor who
	// has withdrawn.
	Renew string `json:"renew,omitzero"`
}

// ResolveMUID: Look up a user.
//
// Returns the muid that belongs to identifiers. A `muid` in the body is linked to the identifiers beside it, and returned.
// You need no look-up before you send an event.
func (c *Client) ResolveMUID(ctx context.Context, tagID string, body Identifiers, query ResolveMUIDQuery) (*Resolved, error) {
	return call[Resolved](ctx, c, request{method: "POST", path: "/id/" + url.PathEscape(tagID), repeat: safe, body: body, query: query})
}

// RevokeKeyQuery: The parameters of RevokeKey.
type RevokeKeyQuery struct {
	// `true`: revoke the key even when it is your last one that can change anything. Then only the operator can help you.
	EvenLast *bool `json:"evenLast,omitzero"`
}

// RevokeKey: Revoke an API key.
//
// The key is refused from the next request on.
func (c *Client) RevokeKey(ctx context.Context, keyID string, query RevokeKeyQuery) (*Key, error) {
	return call[Key](ctx, c, request{method: "DELETE", path: "/v1/partners/key/" + url.PathEscape(keyID), repeat: safe, query: query})
}

// SummarizeEventsQuery: The parameters of SummarizeEvents.
type SummarizeEventsQuery struct {
	// Without it only the totals are counted.
	Bucket string `json:"bucket,omitzero"`
	// Counts for each name or tag, too: the 100 largest, and all others together.
	By string `json:"by,omitzero"`
	// Only events with this `event_time` or an earlier one. A date means the end of the day in UTC. A time without a fraction
	// means the end of the second. It must not be before `startDate`.
	EndDate string `json:"endDate,omitzero"`
	// Only events with one of these names, separated by commas. Their case matters; unknown names match nothing.
	Events string `json:"events,omitzero"`
	// `true`: only events of programs that call themselves bots; `false`: only the others.
	IsBot *bool `json:"isBot,omitzero"`
	// A merchant, or up to 100 separated by commas, which are counted together.
	MerchantID string `json:"merchantId"`
	// Only events with this `event_time` or a later one. A date (`2026-11-20`) is the beginning of the day in UTC. A time is as
	// in RFC 3339, with an offset of up to 23:59; send its `+` as `%2B`. Also accepted are `t` and `z`, a leap second
	// (`23:59:60Z`), and a comma before a fraction.
	StartDate string `json:"startDate,omitzero"`
	// Only the events of this tag. When it is not a tag of the merchant, there are none.
	TagID string `json:"tagId,omitzero"`
	// Whose hours, days and months the buckets are. A date in `startDate` or `endDate` is a day of this zone, too.
	Timezone string `json:"timezone,omitzero"`
}

// SummarizeEvents: Count events.
//
// All numbers are exact, and as of one moment. Each list of `counts` has one number for each of `buckets`. Buckets without
// events are among them; a bucket in which the range begins or ends has only the events of the range. Without `startDate` the
// first bucket is that of the merchants' first event, whatever the names and the tag, so charts of different names have the
// same axis; without `endDate` the last one is the current one.
//
// More than 10,000 buckets (400 days by the hour) are an error, and so is what would count too much, such as 300 names over
// two years in another time zone than UTC: the message says what to narrow. Without `startDate` there are fewer buckets
// instead, and the first one has all earlier events too.
//
// When visitors have made up thousands of names, a name may be in `other` although it has more events than one in `groups`:
// ask for the names that you need with `events`. The answer is 404 if none of the merchants has a tag yet, too.
func (c *Client) SummarizeEvents(ctx context.Context, query SummarizeEventsQuery) (*Summary, error) {
	return call[Summary](ctx, c, request{method: "GET", path: "/v1/partners/events/summary", repeat: safe, query: query})
}

// TestDestination: Test a destination.
//
// Sends the newest event that the destination would get, or an example when there is none, and answers with the exact request
// and its result. With `send: false` it shows what would be sent, or why not, for the 10 newest events, or for the one with
// `eventId`. Secrets are shown as `***`.
func (c *Client) TestDestination(ctx context.Context, merchantID string, destinationID string, body TestInput) (*TestResult, error) {
	return call[TestResult](ctx, c, request{method: "POST", path: "/v1/partners/merchant/" + url.PathEscape(merchantID) + "/destinations/" + url.PathEscape(destinationID) + "/test", repeat: once, body: body})
}

// TryEventsQuery: The parameters of TryEvents.
type TryEventsQuery struct {
	// The id of a tag. It is case-sensitive.
	TagID string `json:"tagId"`
	// `true`: the sender has a secret of the merchant. It makes a difference when the merchant has `identityRequiresSecret`.
	WithSecret *bool `json:"withSecret,omitzero"`
}

// TryEvents: Try an event, or a batch.
//
// What a tag host would answer to the same body at `POST /mark/{tagId}`, and what is wrong with the events. Nothing is
// recorded and nothing is linked. Keys of scope `read` may send this, too.
//
// The answer is 200 for any body; `status` is that of the tag host. The body may have 64 KiB. It is read as that of a sender
// without a cookie. Limits do not count, nor whether a person was erased with `suppress`. You may send it while you are
// suspended. One such request runs at a time; further ones wait for up to 15 seconds.
//
// Checked are the types of the fields of the pre-defined events and of their products, names of events and fields that are
// nearly right, identifiers that identify nobody, and times that are ignored. Events with names of your own may have any
// fields.
func (c *Client) TryEvents(ctx context.Context, body any, query TryEventsQuery) (*Trial, error) {
	return call[Trial](ctx, c, request{method: "POST", path: "/v1/partners/debug/mark", repeat: safe, body: body, query: query})
}

// VerifyTag: Verify the DNS of a tag.
//
// The service asks DNS while you wait, which takes seconds. When DNS is correct, the tag becomes active, and the certificate
// of its host is ordered. A tag that is already verified is checked again. The answer is 404 for a merchant that has neither
// a server-side nor a preverified tag, too. When the record is missing or points elsewhere, the answer is 400 with the
// message `Tag verification failed. Please check your DNS configuration`.
func (c *Client) VerifyTag(ctx context.Context, body Verification) (*Verified, error) {
	return call[Verified](ctx, c, request{method: "POST", path: "/v1/partners/tracktag/verify", repeat: safe, body: body})
}
