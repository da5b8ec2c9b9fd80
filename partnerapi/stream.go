package partnerapi

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi/export"
	"mtagd/store"
)

const (
	// heartbeat is the time between two heartbeats of a stream, which come between its events too. Proxies end connections
	// that are silent for longer, many after 60 s. Within this time, a stream or a request that waits ends when its key is
	// revoked or its merchant is deleted; it sends no event from then on.
	heartbeat = 15 * time.Second
	// streamPause is the time between two reads of a stream that has reached the end of the feed. A busy merchant has news
	// all the time, and a read costs more than its events.
	streamPause = 100 * time.Millisecond
	// busyPause is how long a stream waits when there was no memory for its next page.
	busyPause = time.Second
	// streamBytes is about how many bytes a stream writes at once.
	streamBytes = 256 << 10
)

// streamFeed answers with a stream of server-sent events, which lasts until the client closes it. It ends by itself when the
// key is revoked or expires, when its merchant is deleted, and when the service stops. The client then comes back with the
// last cursor that it got.
func (a *api) streamFeed(ctx context.Context, r *fasthttp.RequestCtx, f *reader) error {
	if _, err := a.Engine.Feed(ctx, store.FeedQuery{After: f.after}, nil); err != nil { // it may be no cursor
		return err
	}
	f.watch()
	release, err := a.readers.acquire(ctx, f.partner) // last: nothing that may panic comes before the body, which releases it
	if err != nil {
		f.stop()
		return err
	}
	a.metrics.streams.Inc()
	if err := a.stream(r, f.writeStream, f.stop, a.metrics.streams.Dec, release); err != nil {
		return err
	}
	r.SetStatusCode(fasthttp.StatusOK)
	r.SetContentType("text/event-stream")
	r.Response.Header.Set(fasthttp.HeaderCacheControl, "no-store")
	r.Response.Header.Set("X-Accel-Buffering", "no") // nginx then passes events on at once
	r.SetConnectionClose()                           // nothing can follow
	return nil
}

// writeStream writes events until the stream must end. The client then learns why when it comes back.
func (f *reader) writeStream(ctx context.Context, w io.Writer) (err error) {
	defer func() {
		if errors.Is(err, errKeyEnded) {
			err = nil
		}
	}()
	// The client waits this long before it comes back. It also gets the head of the answer now.
	if _, err := io.WriteString(w, "retry: 2000\n\n"); err != nil {
		return err
	}
	beat := time.Now()
	for ctx.Err() == nil {
		next, err := f.mayGoOn(ctx)
		if err != nil {
			return nil
		}
		if time.Since(beat) >= f.api.heartbeat {
			beat = time.Now()
			// The id without data moves the client's cursor past the events of others.
			if _, err := io.WriteString(w, ": still here\nid: "+string(f.after)+"\n\n"); err != nil {
				return err
			}
		}
		more, err := f.writePage(ctx, w)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case !more:
			f.await(ctx, min(next, f.api.heartbeat-time.Since(beat)))
		}
	}
	return nil
}

// writePage writes the next events, and reports whether there may be more now. It has waited a moment then, unless it
// has written events and there are more.
func (f *reader) writePage(ctx context.Context, w io.Writer) (more bool, err error) {
	page := feedPage{limit: maxRead, size: streamBytes, add: appendServerSent, inTurn: true}
	memory, err := f.readPage(ctx, &page)
	switch store.KindOf(err) {
	case store.KindBusy, store.KindUnavailable:
		return true, store.Sleep(ctx, busyPause)
	}
	if err != nil {
		return false, err
	}
	defer memory.release()
	if page.events == 0 {
		return page.more, store.Sleep(ctx, streamPause)
	}
	if _, err := w.Write(page.body); err != nil {
		return false, err
	}
	f.api.metrics.events.WithLabelValues("stream").Add(float64(page.events))
	if page.more {
		return true, nil
	}
	return false, store.Sleep(ctx, streamPause)
}

// appendServerSent appends an event as a server-sent event.
func appendServerSent(b []byte, e *store.Received) []byte {
	b = append(append(append(b, "id: "...), e.Cursor...), "\ndata: "...)
	return append(export.AppendJSON(b, e), "\n\n"...)
}
