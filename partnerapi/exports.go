package partnerapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/valyala/fasthttp"

	"mtagd/edge/asset"
	"mtagd/partnerapi/export"
	"mtagd/store"
)

// exportEvents answers with all events of a merchant that the filters select, in the order of receipt. Events that come
// while it is sent are not in it. An export that cannot be finished is cut off, for example when the service stops: its
// client must not take it for complete. One that fails before its first byte gets an error.
func (a *api) exportEvents(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	p := params{args: r.QueryArgs()}
	format := export.Format(p.word("format", export.Formats...))
	merchantID := p.required("merchantId")
	q := store.FeedQuery{Tag: store.TagID(p.id("tagId")), Names: p.list("events"), Bot: p.flag("isBot")}
	q.From, q.To = p.timeRange("startDate", "endDate")
	if p.err != nil {
		return p.err
	}
	m, has, err := a.merchantWithTag(ctx, partner, merchantID, q.Tag)
	if err != nil {
		return err
	}
	if has {
		q.Merchants = []store.MerchantID{m.ID}
	}
	var encoding export.Encoding
	if !format.IsCompressed() {
		encoding = export.Encoding(asset.Negotiate(string(r.Request.Header.Peek(fasthttp.HeaderAcceptEncoding)), string(export.Zstd), string(export.Gzip)))
	}
	if !r.IsHead() { // fasthttp would end the body with bytes that HEAD does not have
		release, err := a.exports.acquire(ctx, partner.ID)
		if err != nil {
			return err
		}
		a.metrics.exports.Inc()
		if err := a.stream(r, func(ctx context.Context, w io.Writer) error {
			return a.writeExport(ctx, w, partner.ID, q, format, encoding)
		}, a.metrics.exports.Dec, release); err != nil {
			return err
		}
	}
	r.SetStatusCode(fasthttp.StatusOK)
	r.SetContentType(format.ContentType())
	r.Response.Header.Set(fasthttp.HeaderContentDisposition, `attachment; filename="events-`+string(m.ID)+`.`+string(format)+`"`)
	r.Response.Header.Set(fasthttp.HeaderVary, fasthttp.HeaderAcceptEncoding)
	if encoding != "" {
		r.Response.Header.Set(fasthttp.HeaderContentEncoding, string(encoding))
	}
	return nil
}

// Bounds of a batch of an export. Its events are in memory, and nothing else is sent meanwhile.
const (
	batchEvents = 1000
	batchBytes  = 1 << 20
)

// writeExport writes an export batch by batch: it makes no batch while it sends one. Events that come later are not in the
// export.
func (a *api) writeExport(
	ctx context.Context, w io.Writer, partner store.PartnerID, q store.FeedQuery, format export.Format, encoding export.Encoding,
) error {
	var batch bytes.Buffer
	encoder, err := export.Encode(encoding, &batch)
	if err != nil {
		return err
	}
	if q.UpTo, err = a.Engine.Latest(ctx); err != nil {
		return err
	}
	to := export.NewWriter(format, encoder)
	for more := true; more; {
		var events int
		if events, more, err = a.nextBatch(ctx, partner, &q, to, encoder); err != nil {
			return err
		}
		if batch.Len() > 0 {
			if _, err := w.Write(batch.Bytes()); err != nil {
				return err
			}
			batch.Reset()
		}
		a.metrics.events.WithLabelValues("export").Add(float64(events))
	}
	return nil
}

// nextBatch writes the next batch to a file when it is the export's turn, and moves the query behind it. After the last one
// it closes the file. When a merchant was deleted meanwhile, some of its events may be missing: then it fails instead.
func (a *api) nextBatch(
	ctx context.Context, partner store.PartnerID, q *store.FeedQuery, to export.Writer, encoder io.Closer,
) (events int, more bool, err error) {
	if err := a.takeTurn(ctx, partner); err != nil {
		return 0, false, err
	}
	defer a.endTurn(partner)
	size := 0
	var failed error
	end, err := a.Engine.Feed(ctx, *q, func(e *store.Received) bool {
		failed = to.Write(e)
		events++
		size += len(e.Raw)
		return failed == nil && events < batchEvents && size < batchBytes
	})
	if err = cmp.Or(err, failed); err != nil {
		return 0, false, err
	}
	if q.After = end.Cursor; end.More {
		return events, true, nil
	}
	for _, id := range q.Merchants {
		if _, err := a.Engine.Merchant(ctx, id); err != nil {
			return 0, false, fmt.Errorf("the file is not complete: merchant %s: %w", id, err)
		}
	}
	return events, false, errors.Join(to.Close(), encoder.Close())
}
