package edge

import (
	"net"
	"unsafe"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// fasthttp allocates a body, or a chunk of a body, as soon as the client announces its length. With a few bytes, a
// client could make it allocate a MiB until the read timeout. So all large bodies share a budget: a body reserves its
// bytes when it is announced, and releases them when its answer is written. When the budget is spent, large bodies get
// 503. Small bodies do not count.
const (
	smallBody  = 16 << 10 // bytes: as large as the buffer for a request's head
	bodyBudget = 64 << 20 // bytes, of all connections together
)

// limitBody returns how long the body of a request may be, and reserves the bytes of a large one. fasthttp calls it
// when it has read the head, before it allocates the body.
func limitBody(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	n := h.ContentLength()
	if n == chunked {
		n = store.MaxBatchBytes // its length is not known yet, and one chunk can be that long
	}
	if n <= smallBody || n > store.MaxBatchBytes { // fasthttp refuses a body over MaxBatchBytes without allocating it
		return fasthttp.RequestConfig{}
	}
	c := connOf(contextOf(h).Conn())
	if c == nil {
		return fasthttp.RequestConfig{}
	}
	if h.ContentLength() == chunked {
		c.keepHead(h)
	}
	if c.reserveBody(int64(n)) {
		return fasthttp.RequestConfig{}
	}
	return fasthttp.RequestConfig{MaxRequestBodySize: smallBody}
}

// contextOf returns the RequestCtx that a request's header is a part of. limitBody needs the connection, which is in
// the RequestCtx, but fasthttp passes only the header.
func contextOf(h *fasthttp.RequestHeader) *fasthttp.RequestCtx {
	const offset = unsafe.Offsetof(fasthttp.RequestCtx{}.Request) + unsafe.Offsetof(fasthttp.Request{}.Header)
	return (*fasthttp.RequestCtx)(unsafe.Add(unsafe.Pointer(h), -int(offset)))
}

// releaseSmallBody releases what a chunked body has reserved when the body turned out to be small.
func releaseSmallBody(ctx *fasthttp.RequestCtx) {
	if ctx.Request.Header.ContentLength() != chunked || len(ctx.Request.Body()) > smallBody {
		return
	}
	if c := connOf(ctx.Conn()); c != nil {
		c.releaseBody()
	}
}

// connStateChanged releases the reservation of a body when the answer is written or the connection closed. fasthttp
// calls it.
func connStateChanged(nc net.Conn, state fasthttp.ConnState) {
	if state != fasthttp.StateIdle && state != fasthttp.StateClosed {
		return
	}
	if c := connOf(nc); c != nil {
		c.releaseBody()
	}
}

// bodyRefused reports whether the body of a request was refused because the budget was spent.
func bodyRefused(ctx *fasthttp.RequestCtx) bool {
	c := connOf(ctx.Conn())
	return c != nil && c.overBudget
}

// reserveBody reserves the bytes of a body. It returns false when the budget does not have that many left.
func (c *conn) reserveBody(bytes int64) bool {
	if c.open.reserved.Add(bytes) > bodyBudget {
		c.open.reserved.Add(-bytes)
		c.overBudget = true
		return false
	}
	c.bodyReserved = bytes
	return true
}

func (c *conn) releaseBody() {
	if c.bodyReserved > 0 { // rare: most requests do not touch the counter that all connections share
		c.open.reserved.Add(-c.bodyReserved)
	}
	c.bodyReserved, c.overBudget, c.head = 0, false, nil
}

// keepHead keeps a copy of the head of a request with a chunked body.
func (c *conn) keepHead(h *fasthttp.RequestHeader) {
	c.head = new(fasthttp.RequestHeader)
	h.CopyTo(c.head)
}

// restoreHead gives a request back the head that keepHead has kept. fasthttp empties a request when it cannot read the
// chunked body, but the answer depends on the head.
func restoreHead(ctx *fasthttp.RequestCtx) {
	if c := connOf(ctx.Conn()); c != nil && c.head != nil {
		c.head.CopyTo(&ctx.Request.Header)
	}
}
