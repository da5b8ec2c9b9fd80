package tag

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/check"
	"mtagd/edge/tag/eventjson"
	"mtagd/store"
)

// Trial is what POST /mark would do with a body.
type Trial struct {
	Status   int
	Answer   []byte // the body of the answer
	Findings []check.Finding
}

// After maxTrialFindings findings, the further events of a batch are not checked.
const maxTrialFindings = 200

// Try takes the body of a request to the partner API. It returns what POST /mark would answer to that body, and what is
// wrong with the events. It records nothing and links nothing. It reads the body as POST /mark does, without a cookie.
// withSecret: the sender has the merchant's secret. Try knows neither limits nor suppressed persons.
func Try(ctx context.Context, r *fasthttp.RequestCtx, engine store.Engine, tag store.Tag, withSecret bool, now time.Time) (Trial, error) {
	settings := engine.Directory().Settings(&tag)
	t := trial{
		engine: engine,
		tag:    tag,
		from:   sender{now: now, mayIdentify: withSecret || !settings.IdentityRequiresSecret, withSecret: withSecret, bots: new(bots)},
		linked: map[store.IdentityKey]bool{},
	}
	if err := t.body(ctx, r); err != nil {
		return Trial{}, err
	}
	before := refusalByState(&tag, settings)
	if before == nil && engine.Ready() != nil {
		before = unavailable
	}
	if before != nil { // it comes before the body is read
		t.Status, t.Answer = before.status, before.body
		t.Findings = append([]check.Finding{refusalFinding(before, nil)}, t.Findings...)
	}
	return t.Trial, nil
}

type trial struct {
	Trial
	engine store.Engine
	tag    store.Tag
	from   sender
	linked map[store.IdentityKey]bool // by the events before
}

func (t *trial) body(ctx context.Context, r *fasthttp.RequestCtx) error {
	body := trim(r.PostBody())
	if len(body) == 0 || body[0] != '[' {
		result, err := t.event(ctx, r, "", body)
		if err == nil {
			t.Status, t.Answer = result.status, result.body
		}
		return err
	}
	elements, refused := splitBatch(nil, body)
	if refused != nil {
		refused = refusalOf(r, refused)
		t.Status, t.Answer = refused.status, refused.body
		t.Findings = append(t.Findings, refusalFinding(refused, nil))
		return nil
	}
	results := make([]*answer, len(elements))
	for i, element := range elements {
		var err error
		if results[i], err = t.event(ctx, r, "/"+strconv.Itoa(i), element); err != nil {
			return err
		}
	}
	t.Status, t.Answer = fasthttp.StatusOK, batchAnswer(results)
	return nil
}

// event tries one event, adds its findings, and returns its answer. path is that of the event in the body.
func (t *trial) event(ctx context.Context, r *fasthttp.RequestCtx, path string, object []byte) (*answer, error) {
	var f fields
	var m store.Mark
	result := f.readMark(&m, &t.tag, object, &t.from)
	if result == nil {
		var err error
		if result, err = t.resolve(ctx, &m.Identity); err != nil {
			return nil, err
		}
	} else {
		result = refusalOf(r, result)
	}
	if len(t.Findings) >= maxTrialFindings {
		return result, nil
	}
	var found []check.Finding
	if result != accepted {
		found = append(found, refusalFinding(result, &f))
	}
	if result == accepted || !explain(result).unread {
		found = append(found, check.Event(decodeObject(object), t.from.now)...)
	}
	for _, one := range found {
		one.Path = path + one.Path
		t.Findings = append(t.Findings, one)
	}
	return result, nil
}

// resolve returns the answer to an event of an identity that can be read. It notes the links that the event would make,
// because they count for the events behind it.
func (t *trial) resolve(ctx context.Context, id *store.Identity) (*answer, error) {
	if id.MUID != "" {
		for _, k := range id.Keys() {
			t.linked[k] = true
		}
		return accepted, nil
	}
	if slices.ContainsFunc(id.Keys(), func(k store.IdentityKey) bool { return t.linked[k] }) {
		return accepted, nil
	}
	muid, err := t.engine.Resolve(ctx, t.tag.Merchant, *id)
	if muid == "" {
		return noMUIDFound, err
	}
	return accepted, err
}

// refusalFinding returns a refusal as a finding. f is nil when no fields were read.
func refusalFinding(refused *answer, f *fields) check.Finding {
	because := explain(refused)
	found := check.Finding{Level: check.Error, Code: because.code, Path: because.path, Message: because.reason}
	if f != nil {
		found.Path = f.place(because.path)
	}
	if refused == eventMalformed {
		name, _ := eventjson.Text(f.nameField())
		found.Suggestion = check.SuggestName(name)
	}
	return found
}
