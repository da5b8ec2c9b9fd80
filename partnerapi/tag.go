package partnerapi

import (
	"context"
	"fmt"
	"html"
	"net/url"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

func (a *api) tagResources() map[string]resource {
	generate := resource{"POST": op("generate_tag", a.generateTag)}
	return map[string]resource{
		"/v1/partners/tracktag":          generate,
		"/v1/partners/tracktag/generate": generate,
		"/v1/partners/tracktag/verify":   {"POST": op("verify_tag", a.verifyTag)},
		"/v1/partners/tracktag/{tagId}":  {"GET": op("read_tag", a.readTag)},
	}
}

// tagJSON is the JSON of a tag (spec, Resources: Tracking tag).
type tagJSON struct {
	TagID   store.TagID     `json:"tagId"`
	Type    store.TagType   `json:"type"`
	Status  store.TagStatus `json:"status"`
	Message string          `json:"message,omitempty"` // only from generateTag: what it did
	Record  *recordJSON     `json:"record,omitempty"`
}

// recordTTL is how long resolvers may cache the record, in seconds (spec, Limits).
const recordTTL = 300

// recordJSON is the DNS record of a tag: the merchant creates it for a server-side tag, the partner has created it for
// its preverified ones.
type recordJSON struct {
	Type  string `json:"type"`
	Name  string `json:"name"`
	Value string `json:"value"`
	TTL   int    `json:"ttl"` // seconds
}

func (a *api) showTag(t store.Tag) tagJSON {
	shown := tagJSON{TagID: t.ID, Type: t.Type, Status: t.Status()}
	if t.Type.NeedsRecord() {
		shown.Record = &recordJSON{Type: "CNAME", Name: t.Label, Value: a.CNAMETarget, TTL: recordTTL}
	}
	return shown
}

// host returns the host that serves a tag.
func (a *api) host(t store.Tag) string {
	if t.Type == store.ClientSide {
		return a.ClientTagHost
	}
	return t.Host
}

// detailsJSON is the JSON of everything about a tag (spec, Get tag by identifier).
type detailsJSON struct {
	tagJSON
	MerchantID  store.MerchantID   `json:"merchantId"`
	Host        string             `json:"host"`
	CreatedAt   time.Time          `json:"createdAt"`
	IsConnected bool               `json:"isConnected"`
	IsVerified  bool               `json:"isVerified"`
	DomainLost  bool               `json:"domainLost"`
	Lifecycle   store.Lifecycle    `json:"lifecycle"`
	Suspended   bool               `json:"suspended,omitzero"` // the tag, its merchant or its partner is
	LastEventAt time.Time          `json:"lastEventAt"`        // null before the first
	Snippet     string             `json:"snippet"`
	DNS         *store.DNSFinding  `json:"dns"`
	Certificate *store.Certificate `json:"certificate"`
}

// readTag answers with everything about a tag: its state, its last DNS check, the certificate of its host, and the
// snippet that installs it.
func (a *api) readTag(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	t, err := a.tag(ctx, partner, pathParam(r, "tagId"))
	if err != nil {
		return hide(err, errNoTag)
	}
	newest, err := a.Engine.Events(ctx, store.Query{Merchant: t.Merchant, Tag: t.ID, SortBy: store.ByTime, Limit: 1})
	if err != nil {
		return err
	}
	host := a.host(t)
	shown := detailsJSON{
		tagJSON:     a.showTag(t),
		MerchantID:  t.Merchant,
		Host:        host,
		CreatedAt:   t.CreatedAt,
		IsConnected: t.Connected,
		IsVerified:  t.Verified,
		DomainLost:  t.ClaimLost,
		Suspended:   a.Engine.Directory().Settings(&t).Suspended,
		Snippet:     Snippet(a.TagURL(host), t.ID),
		DNS:         t.DNS,
	}
	if len(newest.Events) > 0 {
		shown.LastEventAt = newest.Events[0].Time
	}
	shown.Lifecycle = t.Lifecycle(shown.LastEventAt)
	if a.Certificates != nil {
		shown.Certificate = new(a.Certificates.Certificate(host))
	}
	return Reply(r, fasthttp.StatusOK, shown)
}

// Snippet returns the two script elements that install a tag in the head of a page (spec, Browser installation
// contract). tagURL is the address of the tag's host. Consent is false, because only the site knows what its visitors have
// agreed to.
func Snippet(tagURL string, id store.TagID) string {
	return fmt.Sprintf(`<script>
  window.mtrem = window.mtrem || []; window.mtag = window.mtag || function () { mtrem.push(arguments); };
  mtag('init', '%s', { consent: false }); /* true when this visitor has agreed */
</script>
<script async src="%s"></script>
`, inScript.Replace(tagURL+"?tagId="+url.QueryEscape(string(id))), html.EscapeString(tagURL+"/script"))
}

// inScript escapes what would end a JavaScript string in single quotes, or the script element around it.
var inScript = strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`, "\r", `\r`, `<`, `\x3C`)
