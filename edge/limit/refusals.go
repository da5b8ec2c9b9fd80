package limit

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"mtagd/store"
)

// Cause is why requests or connections are refused, a label of metrics and logs.
type Cause uint8

// The causes of refusals.
const (
	// Rates that this package limits.
	AddressEvents   Cause = iota // requests and events of one client address
	AddressBytes                 // stored bytes of one client address
	MerchantEvents               // events of one merchant
	MerchantBytes                // stored bytes of one merchant
	PartnerBytes                 // stored bytes of one partner's merchants
	PartnerRequests              // requests of one partner
	PartnerWrites                // a partner's requests that change control data
	Verifications                // of one partner, under way at the same time
	FeedReaders                  // of one partner: requests that follow its feed, and exports
	Authentication               // requests of one client address without a valid API key, or of a tag with a wrong secret
	AdminToken                   // requests for admin pages without the token of --admin-token

	// Memory and connections.
	BodyMemory   // of request bodies under way
	AnswerMemory // of answers under way
	Connections  // of one client address, or of all

	// What the service cannot do now.
	Unavailable // the engine: its disk is full, its queue is full, or it has failed

	// Who must not, and what nobody can serve.
	Suspended   // by an operator
	UnknownHost // no host of the service
	UnknownTag  // no tag of the host
	Malformed   // not readable as an HTTP request

	causes
)

var causeNames = [causes]string{
	"address_events", "address_bytes", "merchant_events", "merchant_bytes", "partner_bytes",
	"partner_requests", "partner_writes", "verifications", "feed_readers", "authentication", "admin_token",
	"body_memory", "answer_memory", "connections",
	"unavailable",
	"suspended", "unknown_host", "unknown_tag", "malformed",
}

func (c Cause) String() string { return causeNames[c] }

// isNoise reports whether refusals of this cause harm nobody: scanners and wrong installations cause them every day.
func (c Cause) isNoise() bool { return c >= Suspended || c == Authentication }

// Tenant is who is refused. The zero Tenant is a stranger. A tenant is a merchant or a partner, never an address.
type Tenant struct {
	class tenantClass
	id    string
}

// tenantClass is a label of metrics. The ids of tenants are no label: they are too many.
type tenantClass uint8

const (
	stranger tenantClass = iota
	merchant
	partner
	tenantClasses
)

var tenantNames = [tenantClasses]string{"none", "merchant", "partner"}

// Merchant is a merchant as the tenant of a refusal.
func Merchant(id store.MerchantID) Tenant { return Tenant{merchant, string(id)} }

// Partner is a partner as the tenant of a refusal.
func Partner(id store.PartnerID) Tenant { return Tenant{partner, string(id)} }

// Refusals counts what the service refuses, by cause. It logs the first refusal of a cause, and then once a minute how
// many there were since. A nil Refusals counts nothing.
type Refusals struct {
	log      *slog.Logger
	counters [causes][tenantClasses]prometheus.Counter

	mu      sync.Mutex
	windows [causes]window
}

// window is the refusals of a cause that are not logged yet.
type window struct {
	open    bool // a minute is running, and logs at its end
	count   int
	tenants map[Tenant]int // refusals of each tenant, of at most maxTenants
	reason  string         // of the last refusal that gave one
}

const (
	logInterval = time.Minute
	maxTenants  = 1000 // that a window counts one by one: its memory must be bounded
)

// NewRefusals makes the counter. reg may be nil: then no metrics are exported.
func NewRefusals(log *slog.Logger, reg prometheus.Registerer) *Refusals {
	total := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_refused_total",
		Help: "Requests and connections refused. The cause is a limit (address_…, merchant_…, partner_…, verifications, feed_readers, " +
			"body_memory, answer_memory, connections); authentication: no valid API key, or a wrong secret of a merchant; admin_token; " +
			"unavailable: the engine cannot accept it, the log has the reason; suspended; or what nobody can serve, as scanners " +
			"send every day (unknown_host, unknown_tag, malformed). The tenant is merchant, partner, or none for strangers.",
	}, []string{"cause", "tenant"})
	r := &Refusals{log: log}
	for c := range causes {
		for class, name := range tenantNames {
			r.counters[c][class] = total.WithLabelValues(c.String(), name)
		}
	}
	return r
}

// Count counts a refusal. It may be called from many goroutines at once.
func (r *Refusals) Count(c Cause, who Tenant) { r.CountReason(c, who, "") }

// CountReason is Count with a reason for the log, such as the engine's error. It must not contain what a client has sent.
func (r *Refusals) CountReason(c Cause, who Tenant, reason string) {
	if r == nil {
		return
	}
	r.counters[c][who.class].Inc()
	r.mu.Lock()
	w := &r.windows[c]
	w.add(who, reason)
	isFirst := !w.open
	w.open = true
	r.mu.Unlock()
	if isFirst {
		r.closeWindow(c)
	}
}

// Flush logs the refusals that are not logged yet. It is called when the service stops.
func (r *Refusals) Flush() {
	for c := range causes {
		r.closeWindow(c)
	}
}

func (w *window) add(who Tenant, reason string) {
	w.count++
	if reason != "" {
		w.reason = reason
	}
	if who.class == stranger {
		return
	}
	if _, counted := w.tenants[who]; counted || len(w.tenants) < maxTenants {
		if w.tenants == nil {
			w.tenants = map[Tenant]int{}
		}
		w.tenants[who]++
	}
}

// closeWindow logs the refusals of a cause since the last line, and begins the next window, which ends after a minute. When
// there were none, no window is open: the next refusal is logged at once.
func (r *Refusals) closeWindow(c Cause) {
	r.mu.Lock()
	w := r.windows[c]
	r.windows[c] = window{open: w.count > 0}
	r.mu.Unlock()
	if w.count > 0 {
		time.AfterFunc(logInterval, func() { r.closeWindow(c) })
		w.log(r.log, c)
	}
}

// log writes one line, with the tenant that was refused most often.
func (w *window) log(log *slog.Logger, c Cause) {
	level := slog.LevelWarn
	if c.isNoise() {
		level = slog.LevelInfo
	}
	attrs := []slog.Attr{slog.String("cause", c.String()), slog.Int("count", w.count)}
	if w.reason != "" {
		attrs = append(attrs, slog.String("reason", w.reason))
	}
	var worst Tenant
	for who, n := range w.tenants {
		if n > w.tenants[worst] {
			worst = who
		}
	}
	if worst != (Tenant{}) {
		attrs = append(attrs, slog.String(tenantNames[worst.class], worst.id), slog.Int("of_this_"+tenantNames[worst.class], w.tenants[worst]))
	}
	log.LogAttrs(context.Background(), level, "refused", attrs...)
}
