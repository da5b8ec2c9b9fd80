package edge

import (
	"container/list"
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"github.com/valyala/fasthttp"

	"mtagd/edge/budget"
	"mtagd/store"
)

// fasthttp allocates a body, or a chunk of a body, as soon as the client announces its length. With a few bytes, a
// client could make it allocate a MiB until the body times out. So all large bodies share a budget: a body reserves its
// bytes when it is announced, and releases them when its answer is written. Small bodies do not count; the number of
// connections limits them.
//
// One client may reserve an eighth of the budget. A body that does not fit waits. If the whole budget is reserved, it
// also makes room: bodies that are still arriving give way, the oldest first, but only those of clients that have at
// least as much reserved as its own client then has. So clients that announce bodies and do not send them cannot keep
// out the bodies of others.
const (
	smallBody   = 16 << 10 // bytes: as large as the buffer for a request's head
	bodyBudget  = 64 << 20 // bytes, of all clients together
	clientShare = bodyBudget / 8
	bodyWait    = 2 * time.Second // for room in the budget
)

// bodies is the budget of large bodies.
type bodies struct {
	budget *budget.Budget[netip.Addr]

	mu       sync.Mutex
	arriving list.List // the *conn of each body that has reserved bytes and has not arrived, the oldest first
}

func newBodies() *bodies {
	return &bodies{budget: budget.New(bodyBudget, func(netip.Addr) int64 { return clientShare })}
}

// Why a body is not read.
var (
	errManyOfClient = errors.New("the client has too many large requests under way")
	errManyOfAll    = errors.New("too many large requests are under way")
)

// headReceived returns the function that fasthttp calls when it has read the head of a request, before it allocates the
// body. The function says how long the body may be, and reserves the bytes of a large one. When the answer does not
// depend on the body, it is not read: needsBody tells.
func (b *bodies) headReceived(needsBody func(*fasthttp.RequestCtx) bool) func(*fasthttp.RequestHeader) fasthttp.RequestConfig {
	return func(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
		ctx := contextOf(h)
		c := connOf(ctx.Conn())
		if c == nil {
			return fasthttp.RequestConfig{}
		}
		c.bareLine = c.buffer.hasBareRequestLine(h)
		n := h.ContentLength()
		if n == chunked {
			n = store.MaxBatchBytes // its length is not known yet, and one chunk can be that long
		}
		if n <= smallBody || n > store.MaxBatchBytes { // fasthttp refuses a body over MaxBatchBytes without allocating it
			return fasthttp.RequestConfig{}
		}
		if h.ContentLength() == chunked {
			c.keepHead(h)
		}
		if !needsBody(ctx) {
			c.headDecides = true
			return unreadBody
		}
		if c.bodyRefused = b.reserve(c, int64(n)); c.bodyRefused != nil {
			return unreadBody
		}
		return fasthttp.RequestConfig{}
	}
}

// unreadBody makes fasthttp call its ErrorHandler instead of reading a large or chunked body.
var unreadBody = fasthttp.RequestConfig{MaxRequestBodySize: 1, ReadTimeout: 1}

// reserve reserves the bytes of a connection's body.
func (b *bodies) reserve(c *conn, bytes int64) error {
	err := b.budget.TryReserve(c.client, bytes)
	if err == budget.ErrTotal {
		b.makeRoom(c.client, bytes)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), bodyWait)
		defer cancel()
		err = b.budget.Reserve(ctx, c.client, bytes)
	}
	switch err {
	case nil:
	case budget.ErrShare:
		return errManyOfClient
	default:
		return errManyOfAll
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c.body = reservation{b, bytes, b.arriving.PushBack(c)}
	return nil
}

// makeRoom ends the arrival of other bodies, until a body of the client fits when they have released their bytes.
func (b *bodies) makeRoom(client netip.Addr, bytes int64) {
	then := b.budget.Held(client) + bytes
	b.mu.Lock()
	defer b.mu.Unlock()
	var next *list.Element
	for e := b.arriving.Front(); e != nil && bytes > 0; e = next {
		next = e.Next()
		if c := e.Value.(*conn); b.budget.Held(c.client) >= then {
			b.arriving.Remove(e)
			c.body.arriving = nil
			c.gaveWay.Store(true)
			c.stopReading()
			bytes -= c.body.bytes
		}
	}
}

// arrived notes that the body of a connection has arrived: it no longer gives way to others. A chunked body that has
// reserved bytes but turned out to be small releases them.
func (b *bodies) arrived(c *conn, length int) {
	if b.stopWaiting(c); length <= smallBody {
		b.release(c)
	}
}

// release releases what a body has reserved.
func (b *bodies) release(c *conn) {
	b.stopWaiting(c)
	b.budget.Release(c.client, c.body.bytes)
	c.body = reservation{}
}

func (b *bodies) stopWaiting(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.body.arriving != nil {
		b.arriving.Remove(c.body.arriving)
		c.body.arriving = nil
	}
}

// contextOf returns the RequestCtx that a request's header is a part of. headReceived needs the connection, which is in
// the RequestCtx, but fasthttp passes only the header.
func contextOf(h *fasthttp.RequestHeader) *fasthttp.RequestCtx {
	const offset = unsafe.Offsetof(fasthttp.RequestCtx{}.Request) + unsafe.Offsetof(fasthttp.Request{}.Header)
	return (*fasthttp.RequestCtx)(unsafe.Add(unsafe.Pointer(h), -int(offset)))
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
