package console

import (
	"cmp"

	"github.com/valyala/fasthttp"

	"mtagd/edge/clientaddr"
	"mtagd/edge/limit"
)

// Signing in is limited. Nobody guesses 160 bits, and a wrong key costs little: the limit keeps the cost of many wrong keys
// small. Like the limit of the partner API, it never refuses a valid key: other people may share the guesser's address, and
// the guesser may know the id of their key. A sign-in with a valid key costs a synced write and an audit entry, so each key
// has a rate of sign-ins.
//
// Links are not in memory: the engine must look each up, perhaps in a database. So a link takes a token before the look-up,
// whether it is valid or not.
var (
	addressRate = limit.Rate{PerSecond: 0.5, Burst: 30}     // of wrong keys and links from one address
	keyRate     = limit.Rate{PerSecond: 0.1, Burst: 10}     // of wrong secrets for one key id
	beginRate   = limit.Rate{PerSecond: 1. / 60, Burst: 20} // of sessions that are begun with one key
)

// The kinds of buckets in Console.ofKeys.
const (
	kindKey byte = iota
	kindBegin
)

// takeAttempt takes a token for a wrong key or link. It returns an error when there is none. id is the key's id, or empty.
func (c *Console) takeAttempt(r *fasthttp.RequestCtx, id string) error {
	wait := c.ofAddresses.Take(clientaddr.Of(r.RemoteAddr()), 1, c.Now())
	if wait == 0 && id != "" {
		wait = c.ofKeys.TakeOne(kindKey, id, keyRate, c.Now())
	}
	if wait > 0 {
		return tooMany{wait, "Too many wrong keys or links"}
	}
	return nil
}

// refuse returns the error of a wrong key, or of a text that is no link. id is that of the key, if it has one.
func (c *Console) refuse(r *fasthttp.RequestCtx, id string) error {
	c.Refusals.Count(limit.Authentication, limit.Tenant{})
	return cmp.Or(c.takeAttempt(r, id), error(unauthenticated))
}
