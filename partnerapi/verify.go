package partnerapi

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// verifyTag checks the DNS of a tag's host and stores the finding. When DNS is correct, it activates the tag and
// orders the host's certificate (spec, Verify server-side tag DNS). A tag that has lost its domain gets it again when DNS
// is correct and the domain is free.
func (a *api) verifyTag(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	var in struct {
		MerchantID string `json:"merchantId"`
		TagID      string `json:"tagId"`
		Subdomain  string `json:"subdomain"`
	}
	if err := decode(r, &in); err != nil {
		return err
	}
	if in.MerchantID == "" && in.TagID == "" {
		return store.Invalid("merchantId", "is required")
	}
	host, err := store.CheckHostName("subdomain", in.Subdomain)
	if err != nil {
		return err
	}
	t, err := a.tagToVerify(ctx, partner, in.MerchantID, in.TagID, host)
	if err != nil {
		return err
	}
	if a.Engine.Directory().Settings(&t).Suspended {
		return errTagSuspended
	}
	var former store.TagID
	if t.ClaimLost {
		if err := a.Claimable.Check("subdomain", host); err != nil {
			return err
		}
		if former, err = a.checkClaim(ctx, partner, t.Domain, t.Merchant); err != nil {
			return err
		}
	}

	release, err := a.verifications.acquire(ctx, partner.ID)
	if err != nil {
		return err
	}
	defer release()
	found := a.DNS.Verify(ctx, host)
	a.Log.Info("tag host checked", "tag", t.ID, "host", host,
		"verdict", found.Verdict, "code", found.Code, "detail", found.Detail)

	t, err = a.Engine.UpdateTag(ctx, t.ID, func(t store.Tag) store.Tag { return t.AfterVerify(found) })
	if err != nil {
		return err
	}
	if found.Verdict == store.DNSCorrect {
		a.logNewHolder(t, former)
		if a.Certificates != nil {
			a.Certificates.Order(host)
		}
	}
	switch found.Verdict {
	case store.DNSCorrect:
		return Reply(r, fasthttp.StatusOK, map[string]any{"verified": true})
	case store.DNSPending:
		return a.replyPending(r)
	case store.DNSWrong:
		WriteError(r, fasthttp.StatusBadRequest, "Tag verification failed. Please check your DNS configuration")
		return nil
	}
	return fmt.Errorf("verify %s: %s: %s", host, found.Code, found.Detail)
}

// tagToVerify returns the tag of the partner that has the host and belongs to merchantID or has tagID. One of the two
// ids may be empty. If both are given, the tag must be one of the merchant's.
func (a *api) tagToVerify(
	ctx context.Context, partner store.Partner, merchantID, tagID, host string,
) (store.Tag, error) {
	var tags []store.Tag
	if merchantID != "" {
		m, err := a.merchant(ctx, partner, merchantID)
		if err != nil {
			return store.Tag{}, err
		}
		tags = m.Tags
	}
	if tagID != "" {
		t, err := a.tag(ctx, partner, tagID)
		if err != nil {
			return store.Tag{}, err
		}
		if merchantID != "" && t.Merchant != store.FoldMerchantID(merchantID) {
			return store.Tag{}, store.Invalid("tagId", "must be a tag of the merchant in merchantId")
		}
		tags = []store.Tag{t}
	}
	var hosts []string
	for _, t := range tags {
		if !t.Type.NeedsRecord() {
			continue
		}
		if t.Host == host {
			return t, nil
		}
		hosts = append(hosts, t.Host)
	}
	if hosts == nil {
		return store.Tag{}, notFound("no server-side or preverified tag to verify")
	}
	return store.Tag{}, store.Invalid("subdomain", "must be the tag's host: %s", strings.Join(hosts, " or "))
}

// replyPending answers that the DNS record has not reached every server yet. It is the only error with a wrapped body
// (spec, Errors: formats, 2).
func (a *api) replyPending(r *fasthttp.RequestCtx) error {
	type pending struct {
		Code       string    `json:"code"`
		Message    string    `json:"message"`
		StatusCode int       `json:"statusCode"`
		Timestamp  time.Time `json:"timestamp"`
		Path       string    `json:"path"`
		Method     string    `json:"method"`
	}
	const status = fasthttp.StatusUnprocessableEntity
	return Reply(r, status, struct {
		Success bool    `json:"success"`
		Error   pending `json:"error"`
	}{Error: pending{
		Code:       code(status),
		Message:    "DNS verification pending. Please allow time for DNS propagation and try again",
		StatusCode: status,
		Timestamp:  a.Now(),
		Path:       string(r.Path()),
		Method:     string(r.Method()),
	}})
}
