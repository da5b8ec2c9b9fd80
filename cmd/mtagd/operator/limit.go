package operator

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"

	"mtagd/store"
)

type partnerLimit struct {
	Partner           store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
	RequestsPerSecond count           `placeholder:"N" help:"Requests to the partner API. N is a number, \"off\" or \"default\"."`
	WritesPerMinute   count           `placeholder:"N" help:"Requests that change something."`
	AnswerBytes       size            `placeholder:"SIZE" help:"Memory of answers that are being sent, such as 64MiB."`
	Merchants         count           `placeholder:"N" help:"Merchants of the partner."`
	Labels            count           `placeholder:"N" help:"Labels (mtag-xxxx) of the partner's tags."`
	UnverifiedClaims  count           `placeholder:"N" help:"Domains of tags that are not verified yet."`
}

func (partnerLimit) path() string { return "/partner/limit" }

func (c partnerLimit) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	p, err := findPartner(ctx, control, c.Partner)
	if err == nil && c != (partnerLimit{Partner: c.Partner}) {
		p, err = control.UpdatePartner(ctx, c.Partner, func(p store.Partner) store.Partner {
			c.RequestsPerSecond.set(&p.Limits.RequestsPerSecond)
			c.WritesPerMinute.set(&p.Limits.WritesPerMinute)
			c.AnswerBytes.set(&p.Limits.AnswerBytes)
			c.Merchants.set(&p.Limits.Merchants)
			c.Labels.set(&p.Limits.Labels)
			c.UnverifiedClaims.set(&p.Limits.UnverifiedClaims)
			return p
		})
		if err == nil {
			log.Info("limits of a partner set", "partner", p.ID)
		}
	}
	return struct {
		Partner store.PartnerID      `json:"partnerId"`
		Limits  map[string]limitView `json:"limits"`
	}{p.ID, map[string]limitView{
		"requestsPerSecond": viewLimit(p.Limits.RequestsPerSecond, store.DefaultRequestsPerSecond),
		"writesPerMinute":   viewLimit(p.Limits.WritesPerMinute, store.DefaultWritesPerMinute),
		"answerBytes":       viewLimit(p.Limits.AnswerBytes, store.DefaultAnswerBytes),
		"merchants":         viewLimit(p.Limits.Merchants, store.DefaultMerchants),
		"labels":            viewLimit(p.Limits.Labels, store.DefaultLabels),
		"unverifiedClaims":  viewLimit(p.Limits.UnverifiedClaims, store.DefaultUnverifiedClaims),
	}}, err
}

type merchantLimit struct {
	Merchant        store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
	EventsPerSecond count            `placeholder:"N" help:"Events that are accepted. N is a number, \"off\" or \"default\"."`
	BytesPerDay     size             `placeholder:"SIZE" help:"Raw bytes of events that are accepted in a day, such as 10GiB."`
}

func (merchantLimit) path() string { return "/merchant/limit" }

func (c merchantLimit) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	id := store.FoldMerchantID(string(c.Merchant))
	m, err := control.Merchant(ctx, id)
	if err == nil && c != (merchantLimit{Merchant: c.Merchant}) {
		m, err = control.UpdateMerchant(ctx, id, func(m store.Merchant) store.Merchant {
			c.EventsPerSecond.set(&m.Limits.EventsPerSecond)
			c.BytesPerDay.set(&m.Limits.BytesPerDay)
			return m
		})
		if err == nil {
			log.Info("limits of a merchant set", "partner", m.Partner, "merchant", m.ID)
		}
	}
	return struct {
		Merchant store.MerchantID     `json:"merchantId"`
		Limits   map[string]limitView `json:"limits"`
	}{m.ID, map[string]limitView{
		"eventsPerSecond": viewLimit(m.Limits.EventsPerSecond, store.DefaultEventsPerSecond),
		"bytesPerDay":     viewLimit(m.Limits.BytesPerDay, "a share of the free disk space"),
	}}, err
}

// limitView is a limit: what an operator has set (null: nothing), and the default.
type limitView struct {
	Set     *store.Limit `json:"set"`
	Default any          `json:"default"`
}

func viewLimit(l store.Limit, def any) limitView {
	if l == 0 {
		return limitView{nil, def}
	}
	return limitView{&l, def}
}

// setting is the value of a flag that sets a limit.
type setting struct {
	Given bool
	Limit store.Limit
}

func (s setting) set(l *store.Limit) {
	if s.Given {
		*l = s.Limit
	}
}

// decode reads the flag's value: "off", "default", or what parse accepts.
func (s *setting) decode(ctx *kong.DecodeContext, parse func(text string) (store.Limit, error)) (err error) {
	var text string
	if err := ctx.Scan.PopValueInto("limit", &text); err != nil {
		return err
	}
	s.Given = true
	switch text {
	case "off":
		s.Limit = store.NoLimit
	case "default":
		s.Limit = 0
	default:
		s.Limit, err = parse(text)
	}
	return err
}

// count is a limit that is a number.
type count struct{ setting }

// Decode reads the flag's value.
func (c *count) Decode(ctx *kong.DecodeContext) error { return c.decode(ctx, parseCount) }

func parseCount(text string) (store.Limit, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("must be a positive number, off or default, not %q", text)
	}
	return store.Limit(n), nil
}

// size is a limit in bytes.
type size struct{ setting }

// Decode reads the flag's value.
func (s *size) Decode(ctx *kong.DecodeContext) error { return s.decode(ctx, parseSize) }

func parseSize(text string) (store.Limit, error) {
	n, err := humanize.ParseBytes(text)
	// A number without a unit is more likely a mistake than a number of bytes. A comma would separate thousands, but some
	// write it for the decimal point.
	unit := strings.TrimLeft(text, "0123456789.")
	if err != nil || n == 0 || n > math.MaxInt64 || unit == "" || unit[0] == ',' {
		return 0, fmt.Errorf("must be a size such as 64MiB or 1.5GiB, off or default, not %q", text)
	}
	return store.Limit(n), nil
}
