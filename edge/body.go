package edge

import (
	"net"
	"unsafe"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// fasthttp allocates a body, or a chunk of a body, as soon as its length is announced. A client could make it hold a
// MiB with a few bytes, for as long as the read timeout. So all large bodies share a budget: each takes its bytes when
// it is announced and returns them when its answer is written. Bodies over the budget are refused with 503. Small
// bodies do not need the budget.
const (
	smallBody  = 16 << 10 // bytes: as large as the buffer for a request's head
	bodyBudget = 64 << 20 // bytes, of all connections together
)

// limitBody returns how long a body may be. fasthttp calls it after the head of a request.
func limitBody(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	n := h.ContentLength()
	if n == chunked {
		n = store.MaxBatchBytes // a single chunk can announce that much
	}
	if n <= smallBody || n > store.MaxBatchBytes { // fasthttp refuses a longer body before it allocates
		return fasthttp.RequestConfig{}
	}
	if c := connOf(contextOf(h).Conn()); c == nil || c.holdBody(int64(n)) {
		return fasthttp.RequestConfig{}
	}
	return fasthttp.RequestConfig{MaxRequestBodySize: smallBody}
}

// contextOf returns the RequestCtx that contains a request's header. fasthttp passes only the header to limitBody, but
// the connection is in the context.
func contextOf(h *fasthttp.RequestHeader) *fasthttp.RequestCtx {
	const offset = unsafe.Offsetof(fasthttp.RequestCtx{}.Request) + unsafe.Offsetof(fasthttp.Request{}.Header)
	return (*fasthttp.RequestCtx)(unsafe.Add(unsafe.Pointer(h), -int(offset)))
}

// releaseSmallBody returns what a chunked body took from the budget, when the body is small after all.
func releaseSmallBody(ctx *fasthttp.RequestCtx) {
	if ctx.Request.Header.ContentLength() != chunked || len(ctx.Request.Body()) > smallBody {
		return
	}
	if c := connOf(ctx.Conn()); c != nil {
		c.releaseBody()
	}
}

// connStateChanged releases the body of a request when its answer is written or its connection closed. fasthttp calls
// it.
func connStateChanged(nc net.Conn, state fasthttp.ConnState) {
	if state != fasthttp.StateIdle && state != fasthttp.StateClosed {
		return
	}
	if c := connOf(nc); c != nil {
		c.releaseBody()
	}
}

// bodyRefused reports whether the budget was spent when the body of a request was announced.
func bodyRefused(ctx *fasthttp.RequestCtx) bool {
	c := connOf(ctx.Conn())
	return c != nil && c.overBudget
}

// holdBody takes a body's bytes from the budget, and returns false when the budget has not that many left.
func (c *conn) holdBody(bytes int64) bool {
	if c.open.bodies.Add(bytes) > bodyBudget {
		c.open.bodies.Add(-bytes)
		c.overBudget = true
		return false
	}
	c.bodyHeld = bytes
	return true
}

func (c *conn) releaseBody() {
	if c.bodyHeld > 0 { // most bodies are small; all processors share the sum
		c.open.bodies.Add(-c.bodyHeld)
	}
	c.bodyHeld, c.overBudget = 0, false
}
