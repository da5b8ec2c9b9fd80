package edge

import (
	"time"
	"unsafe"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// front passes requests from one of the fasthttp servers to its handler.
type front struct {
	*Server
	// answer answers a request. began is when the request had been read.
	answer func(ctx *fasthttp.RequestCtx, began time.Time)
	// needsBody reports whether the answer may depend on the body, of which nothing has arrived yet.
	needsBody func(*fasthttp.RequestCtx) bool
}

// serve answers a request that was read to the end. The answer must not alias the body.
func (f *front) serve(ctx *fasthttp.RequestCtx) {
	c := connOf(ctx)
	if c.body != nil {
		c.body.arrived()
	}
	if c.readingStopped.Load() {
		ctx.SetConnectionClose() // the client's next request would not be read
	}
	if c.head != nil {
		f.checkChunks(ctx, c)
	}
	f.answer(ctx, ctx.Time())
	if c.body != nil {
		// The client's next body needs this one's memory, perhaps as soon as the client has the answer.
		ctx.Request.ResetBody()
		c.body.release()
		c.body = nil
	}
}

// checkChunks is for a request with a chunked body.
func (f *front) checkChunks(ctx *fasthttp.RequestCtx, c *conn) {
	if len(ctx.Request.Body()) <= smallBody && c.body != nil {
		c.body.release() // it has reserved a MiB, because its length was not known
		c.body = nil
	}
	if !c.buffer.ended {
		ctx.SetConnectionClose() // a proxy in front may read the end of this request in another way
	}
}

// headReceived says how long the body of a request may be, and reserves the bytes of a large one. When the answer does
// not depend on the body, a large body is not read. fasthttp calls it before it allocates the body.
func (f *front) headReceived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	ctx := contextOf(h)
	c := connOf(ctx)
	c.headRead = true
	c.bareLine = c.buffer.hasBareRequestLine(h)
	n := h.ContentLength()
	if n == chunked {
		n = store.MaxBatchBytes // its length is not known yet, and one chunk can be that long
	}
	if n <= smallBody || n > store.MaxBatchBytes { // fasthttp refuses a body over MaxBatchBytes without allocating it
		return fasthttp.RequestConfig{}
	}
	if h.ContentLength() == chunked {
		c.head = new(fasthttp.RequestHeader)
		h.CopyTo(c.head)
	}
	if !f.needsBody(ctx) {
		c.headDecides = true
		return unreadBody
	}
	if c.body, c.bodyRefused = f.bodies.reserve(c.client, int64(n), c.stopReading); c.bodyRefused != nil {
		return unreadBody
	}
	return fasthttp.RequestConfig{}
}

// unreadBody makes fasthttp call its ErrorHandler instead of reading a large or chunked body.
var unreadBody = fasthttp.RequestConfig{MaxRequestBodySize: 1, ReadTimeout: 1}

// contextOf returns the RequestCtx that a request's header is a part of. headReceived needs the connection, which is in
// the RequestCtx, but fasthttp passes only the header.
func contextOf(h *fasthttp.RequestHeader) *fasthttp.RequestCtx {
	const offset = unsafe.Offsetof(fasthttp.RequestCtx{}.Request) + unsafe.Offsetof(fasthttp.Request{}.Header)
	return (*fasthttp.RequestCtx)(unsafe.Add(unsafe.Pointer(h), -int(offset)))
}
