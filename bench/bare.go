package bench

import "github.com/valyala/fasthttp"

var bareBody = []byte(`{"message":"Event accepted"}`)

// NewBareServer is the ceiling: what fasthttp alone can do on this machine. It reads a request and answers 201 with the
// body that /mark answers with.
func NewBareServer() *fasthttp.Server {
	return &fasthttp.Server{
		Handler: func(ctx *fasthttp.RequestCtx) {
			ctx.SetStatusCode(fasthttp.StatusCreated)
			ctx.SetContentType("application/json")
			ctx.SetBody(bareBody)
		},
		NoDefaultServerHeader: true,
	}
}
