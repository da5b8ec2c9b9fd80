package tag

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/check"
	"mtagd/edge/refused"
	"mtagd/edge/tag/eventjson"
	"mtagd/store"
)

// reporter tells package refused of events that were refused, and of odd ones that were not. A nil reporter does nothing.
type reporter struct {
	memory    *refused.Memory
	addresses bool // tell senders apart by their addresses
	pace      pace
}

// result reports an event that was not recorded. A recorded one it reports only when something about it is odd.
func (r *reporter) result(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender, result *answer, f *fields, object []byte) {
	if result == accepted {
		r.accepted(ctx, tag, from, f, object)
	} else {
		r.refused(ctx, tag, from, result, f, object)
	}
}

// event returns what is known of an event when its request is, and of its sender. f is nil when its fields were not read.
func (r *reporter) event(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender, f *fields) refused.Event {
	e := refused.Event{
		Merchant: tag.Merchant,
		Tag:      tag.ID,
		Origin:   view(ctx.Request.Header.PeekCanonical(originKey)),
	}
	if r.addresses {
		e.Address = from.address
	}
	e.Identifiers[0] = from.cookie
	if f == nil {
		return e
	}
	e.Name, _ = eventjson.Text(f.nameField())
	for i, v := range [...][]byte{f.MUID, f.Email, f.Phone, f.DeviceID} {
		e.Identifiers[i+1], _ = eventjson.Text(v)
	}
	return e
}

// refused reports an event that was refused. f and object are nil when it was not read.
func (r *reporter) refused(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender, why *answer, f *fields, object []byte) {
	if r == nil {
		return
	}
	because := explain(why)
	if because.unread {
		f, object = nil, nil
	}
	e := r.event(ctx, tag, from, f)
	e.Status, e.Code, e.Message, e.Reason = why.status, because.code, why.message, because.reason
	e.Path, e.Object = because.path, object
	if f != nil {
		e.Path = f.place(because.path)
	}
	r.memory.Add(&e)
}

// maxJudged is the largest event that is judged, in bytes.
const maxJudged = 16 << 10

// accepted reports an accepted event if it is odd. It judges only some, because that takes long; all of a merchant with few.
func (r *reporter) accepted(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender, f *fields, object []byte) {
	if r == nil || len(object) > maxJudged || !r.pace.isDue(tag.Merchant, from.now) {
		return
	}
	began := time.Now()
	defer func() { r.pace.took(time.Since(began), from.now) }()
	for _, found := range check.Event(decodeObject(object), from.now.Add(-from.behind)) {
		if found.Level == check.Info {
			continue
		}
		e := r.event(ctx, tag, from, f)
		e.Status, e.Code, e.Message, e.Reason = accepted.status, found.Code, accepted.message, sentence(found.Message)
		e.Path, e.Suggests, e.Object = found.Path, found.Suggestion, object
		r.memory.Add(&e)
	}
}

// sentence makes a sentence of the message of a finding.
func sentence(message string) string {
	message = "It " + message
	if strings.HasSuffix(message, "?") {
		return message
	}
	return message + "."
}

// decodeObject returns an event's fields; none when it is not an object that encoding/json reads.
func decodeObject(event []byte) map[string]any {
	var object map[string]any
	if json.Unmarshal(event, &object) != nil {
		return nil
	}
	return object
}

// pace limits how many accepted events are judged. Judging one takes some 20 µs, and a few milliseconds when a stranger has
// made it for that. The limits are one in 100 ms for a merchant, one in 1 ms for all, and a twentieth of one processor. The
// gate costs a few nanoseconds, because every accepted event passes it: merchants with the same index share a place.
type pace struct {
	all       atomic.Int64 // when the next event may be judged, in nanoseconds since 1970
	merchants [4096]atomic.Int64
}

const (
	betweenJudged           = time.Millisecond
	betweenJudgedOfMerchant = 100 * time.Millisecond
	restAfterJudged         = 20 // times as long as it took
	longestRest             = time.Second
)

// took lets nothing be judged for a while, when judging an event took long.
func (p *pace) took(d time.Duration, now time.Time) {
	if rest := min(restAfterJudged*d, longestRest); rest > betweenJudged {
		p.all.Store(now.UnixNano() + int64(rest))
	}
}

// isDue reports whether an event of a merchant may be judged now.
func (p *pace) isDue(id store.MerchantID, now time.Time) bool {
	at := now.UnixNano()
	var index uint32 // FNV-1a; merchants do not choose their ids, which are random
	for i := max(0, len(id)-8); i < len(id); i++ {
		index = (index ^ uint32(id[i])) * 16777619
	}
	next := &p.merchants[index>>20]
	was := next.Load()
	if wait := was - at; wait > 0 && wait <= int64(betweenJudgedOfMerchant) { // a longer wait: the clock was set back
		return false
	}
	all := p.all.Load()
	wait := all - at
	return (wait <= 0 || wait > int64(longestRest)) && next.CompareAndSwap(was, at+int64(betweenJudgedOfMerchant)) &&
		p.all.CompareAndSwap(all, at+int64(betweenJudged))
}
