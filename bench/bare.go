package bench

import "github.com/valyala/fasthttp"

var bareBody = []byte(`{"message":"Event accepted"}`)

// NewBareServer makes the server that mtagd is compared with. It reads a request and answers 201 with the body of a
// POST /mark answer, so it shows what fasthttp alone can do on this machine.
func NewBareServer() *fasthttp.Server {
	return &fasthttp.Server{
		Handler:               answerBare,
		NoDefaultServerHeader: true,
	}
}

func answerBare(ctx *fasthttp.RequestCtx) {
	ctx.SetStatusCode(fasthttp.StatusCreated)
	ctx.SetContentType("application/json")
	ctx.SetBody(bareBody)
}
