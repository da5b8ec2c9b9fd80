package partnerapi

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// client is the client of every request. goes ends the context of its requests.
type client struct {
	context.Context
	goes     context.CancelFunc
	released atomic.Int32 // how many contexts
}

func newClient(t *testing.T) *client {
	c := new(client)
	c.Context, c.goes = context.WithCancel(t.Context())
	return c
}

func (c *client) requestContext(*fasthttp.RequestCtx) (context.Context, context.CancelFunc) {
	return c, func() { c.released.Add(1) }
}

// blockedEngine is an engine whose queries run until the client has gone.
type blockedEngine struct {
	store.Engine
	asked chan struct{} // closed when a query has begun
}

func (s blockedEngine) Events(ctx context.Context, _ store.Query) (store.Page, error) {
	close(s.asked)
	<-ctx.Done()
	return store.Page{}, fmt.Errorf("query stopped: %w", ctx.Err())
}

func TestAClientThatHasGoneCancelsItsQuery(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	p.generate(id, "client-side", "")
	engine := blockedEngine{s.engine, make(chan struct{})}
	c := newClient(t)
	s.context = c.requestContext
	s.serve(engine, &s.dns)

	go func() {
		<-engine.asked
		c.goes()
	}()
	p.get(events+"?merchantId="+id).fails(499, "VALIDATION_ERROR", "The client closed the connection")
	if n := c.released.Load(); n != 1 {
		t.Errorf("%d contexts were released, want 1", n)
	}
	if log := s.log.String(); strings.Contains(log, "level=ERROR") || strings.Contains(log, "level=WARN") || !strings.Contains(log, "level=DEBUG") {
		t.Errorf("a client that has gone must be logged at debug level only: %s", log)
	}
}

// The error of a context other than the request's is a failure of the service.
func TestTheErrorOfAnotherContextIsAFailure(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	s.serve(failingEngine{s.engine, context.DeadlineExceeded}, &s.dns)
	p.get(merchants).fails(500, "SERVICE_ERROR", "Unable to process request")
	if !strings.Contains(s.log.String(), "level=ERROR") {
		t.Errorf("the failure is not logged as an error: %s", s.log.String())
	}
}

func TestEveryRequestReleasesItsContext(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	c := newClient(t)
	s.context = c.requestContext
	s.serve(s.engine, &s.dns)
	p.get(config).is(200)
	p.get(merchants + "?page=0").is(400)
	p.get(merchants + "?x=0").is(400)
	if n := c.released.Load(); n != 3 {
		t.Errorf("%d contexts were released, want 3", n)
	}
}

// slowDNS is a Verifier whose client goes during the check. Its finding says whether the check was cut short.
type slowDNS struct{ client *client }

func (d slowDNS) Verify(ctx context.Context, _ string) store.DNSFinding {
	d.client.goes()
	if ctx.Err() != nil {
		return store.DNSFinding{Verdict: store.DNSPending, Code: "cut_short"}
	}
	return store.DNSFinding{Verdict: store.DNSCorrect, Code: "ok", CheckedAt: time.Now()}
}

func TestAVerificationIsFinishedWhenItsClientHasGone(t *testing.T) {
	s := newService(t)
	certs := &certificates{}
	s.certificates = certs
	p := s.partner("Agency")
	tag := p.generate(p.merchant("Shop"), "server-side", "example.com")
	host := tag.str("record.name") + ".example.com"

	c := newClient(t)
	s.context = c.requestContext
	s.serve(s.engine, slowDNS{c})
	p.postf(verify, `{"tagId":%q,"subdomain":%q}`, tag.str("tagId"), host)

	s.context = endless
	s.serve(s.engine, &s.dns)
	p.get(tracktag+"/"+tag.str("tagId")).is(200).
		has("dns.code", "ok").has("status", "active").has("isVerified", true)
	if got := fmt.Sprint(certs.ordered); got != "["+host+"]" {
		t.Errorf("ordered certificates for %s, want one for %s", got, host)
	}
}
