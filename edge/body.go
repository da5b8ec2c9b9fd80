package edge

import (
	"net"
	"unsafe"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// fasthttp allocates a body, or a chunk of one, as soon as its length is announced: a few bytes of a request's
// head would hold a MiB for as long as a client cares to wait. So bodies that are not small
// share a budget, each from its announcement until its answer is written. Who finds the budget spent is told
// to come again; small bodies never need it.
const (
	smallBody  = 16 << 10 // bytes: as much as the buffer that a request's head is read into
	bodyBudget = 64 << 20 // bytes, of all connections together
)

// limitBody is asked by fasthttp how long a body may be, once it has read the head of a request.
func limitBody(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	n := h.ContentLength()
	if n == chunked {
		n = store.MaxBatchBytes // one chunk can announce as much
	}
	if n <= smallBody || n > store.MaxBatchBytes { // too large a one is refused before it is allocated
		return fasthttp.RequestConfig{}
	}
	if c := connOf(contextOf(h).Conn()); c == nil || c.holdBody(int64(n)) {
		return fasthttp.RequestConfig{}
	}
	return fasthttp.RequestConfig{MaxRequestBodySize: smallBody}
}

// contextOf is the context that a request's header is a part of. fasthttp shows limitBody nothing but the
// header, and the context has the connection.
func contextOf(h *fasthttp.RequestHeader) *fasthttp.RequestCtx {
	const offset = unsafe.Offsetof(fasthttp.RequestCtx{}.Request) + unsafe.Offsetof(fasthttp.Request{}.Header)
	return (*fasthttp.RequestCtx)(unsafe.Add(unsafe.Pointer(h), -int(offset)))
}

// settleBody gives back what a chunked body was expected to need, when it has turned out to be small.
func settleBody(ctx *fasthttp.RequestCtx) {
	if ctx.Request.Header.ContentLength() != chunked || len(ctx.Request.Body()) > smallBody {
		return
	}
	if c := connOf(ctx.Conn()); c != nil {
		c.releaseBody()
	}
}

// bodyDone hears from fasthttp what becomes of a connection: when the answer is written or the connection
// closed, the body is no longer held.
func bodyDone(nc net.Conn, state fasthttp.ConnState) {
	if state != fasthttp.StateIdle && state != fasthttp.StateClosed {
		return
	}
	if c := connOf(nc); c != nil {
		c.releaseBody()
	}
}

// bodyRefused reports whether the body of a request found the budget spent.
func bodyRefused(ctx *fasthttp.RequestCtx) bool {
	c := connOf(ctx.Conn())
	return c != nil && c.bodyRefused
}

// holdBody takes a body's bytes from the budget, or reports false when there are not as many left.
func (c *conn) holdBody(bytes int64) bool {
	if c.open.bodies.Add(bytes) > bodyBudget {
		c.open.bodies.Add(-bytes)
		c.bodyRefused = true
		return false
	}
	c.bodyHeld = bytes
	return true
}

func (c *conn) releaseBody() {
	if c.bodyHeld > 0 { // seldom: all processors share the sum
		c.open.bodies.Add(-c.bodyHeld)
	}
	c.bodyHeld, c.bodyRefused = 0, false
}
