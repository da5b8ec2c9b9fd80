package operator

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"mtagd/store"
)

// Suspension takes effect with the next request. A suspended tag accepts no events; a suspended merchant or partner has
// none that does. Everything can still be read.

type partnerSuspend struct {
	Partner store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
	Reason  reason          `placeholder:"TEXT" help:"Why, for the audit log."`
}

func (partnerSuspend) path() string { return "/partner/suspend" }

func (c partnerSuspend) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	return setPartnerSuspended(c.Reason.in(ctx), control, log, c.Partner, true)
}

type partnerResume struct {
	Partner store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
}

func (partnerResume) path() string { return "/partner/resume" }

func (c partnerResume) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	return setPartnerSuspended(ctx, control, log, c.Partner, false)
}

func setPartnerSuspended(
	ctx context.Context, control store.Control, log *slog.Logger, id store.PartnerID, suspended bool,
) (any, error) {
	p, err := control.UpdatePartner(ctx, id, func(p store.Partner) store.Partner {
		p.Suspended = suspended
		return p
	})
	if err == nil {
		log.Info("partner "+suspendedOrResumed(suspended), "partner", p.ID)
	}
	return viewPartner(p), err
}

type merchantSuspend struct {
	Merchant store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
	Reason   reason           `placeholder:"TEXT" help:"Why, for the audit log."`
}

func (merchantSuspend) path() string { return "/merchant/suspend" }

func (c merchantSuspend) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	return setMerchantSuspended(c.Reason.in(ctx), control, log, c.Merchant, true)
}

type merchantResume struct {
	Merchant store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
}

func (merchantResume) path() string { return "/merchant/resume" }

func (c merchantResume) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	return setMerchantSuspended(ctx, control, log, c.Merchant, false)
}

func setMerchantSuspended(
	ctx context.Context, control store.Control, log *slog.Logger, id store.MerchantID, suspended bool,
) (any, error) {
	m, err := control.UpdateMerchant(ctx, store.FoldMerchantID(string(id)), func(m store.Merchant) store.Merchant {
		m.Suspended = suspended
		return m
	})
	if err != nil {
		return nil, err
	}
	log.Info("merchant "+suspendedOrResumed(suspended), "partner", m.Partner, "merchant", m.ID)
	return showMerchant(ctx, control, m)
}

type tagSuspend struct {
	Tag    store.TagID `arg:"" name:"tag-id" help:"Id of the tag."`
	Reason reason      `placeholder:"TEXT" help:"Why, for the audit log."`
}

func (tagSuspend) path() string { return "/tag/suspend" }

func (c tagSuspend) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	return setTagSuspended(c.Reason.in(ctx), control, log, c.Tag, true)
}

type tagResume struct {
	Tag store.TagID `arg:"" name:"tag-id" help:"Id of the tag."`
}

func (tagResume) path() string { return "/tag/resume" }

func (c tagResume) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	return setTagSuspended(ctx, control, log, c.Tag, false)
}

func setTagSuspended(
	ctx context.Context, control store.Control, log *slog.Logger, id store.TagID, suspended bool,
) (any, error) {
	t, err := control.UpdateTag(ctx, id, func(t store.Tag) store.Tag {
		t.Suspended = suspended
		return t
	})
	if err != nil {
		return nil, err
	}
	log.Info("tag "+suspendedOrResumed(suspended), "partner", t.Partner, "merchant", t.Merchant, "tag", t.ID)
	return showTag(ctx, control, t)
}

func suspendedOrResumed(suspended bool) string {
	if suspended {
		return "suspended"
	}
	return "resumed"
}

// reason is why an operator makes a change, in one line.
type reason string

const maxReason = 500 // characters

// in returns a context whose changes are made for this reason.
func (r reason) in(ctx context.Context) context.Context { return store.WithReason(ctx, string(r)) }

// Decode reads the flag's value.
func (r *reason) Decode(ctx *kong.DecodeContext) error {
	var text string
	if err := ctx.Scan.PopValueInto("text", &text); err != nil {
		return err
	}
	text = strings.TrimSpace(text)
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	if utf8.RuneCountInString(text) > maxReason || strings.ContainsFunc(text, unprintable) {
		return fmt.Errorf("must be one line of at most %d printable characters", maxReason)
	}
	*r = reason(text)
	return nil
}
