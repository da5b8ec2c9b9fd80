package tlsmgr

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zapcore"

	"mtagd/store"
)

// logCore takes certmagic's warnings and errors into the service's own log. Fields that could carry an email
// or a client's address stay behind, so only those that are known to be harmless are taken.
type logCore struct {
	log            *slog.Logger
	withoutContact func(string) string // of a Certificates
	fields         []zapcore.Field
}

var harmlessFields = []string{"identifier", "identifiers", "subjects", "server_name", "issuer", "ca", "error",
	"expiration", "remaining", "url", "method", "status_code", "challenge_type", "explanation_url"}

// withoutContact is a text without the contact of the ACME account, which certmagic puts into some errors, in lower
// case.
func (c *Certificates) withoutContact(text string) string {
	if c.Email == "" {
		return text
	}
	return strings.NewReplacer(c.Email, "(contact)", strings.ToLower(c.Email), "(contact)").Replace(text)
}

// Enabled leaves out what is said when all is well: issuing and renewing are logged elsewhere, once.
func (l *logCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (l *logCore) With(fields []zapcore.Field) zapcore.Core {
	return &logCore{l.log, l.withoutContact, slices.Concat(l.fields, fields)}
}

func (l *logCore) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if l.Enabled(entry.Level) {
		return to.AddCore(entry, l)
	}
	return to
}

// Write logs errors as warnings: each is one host's trouble and is tried again.
func (l *logCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(l.fields, fields) {
		if slices.Contains(harmlessFields, f.Key) {
			f.AddTo(values)
		}
	}
	attrs := []slog.Attr{slog.String("event", l.withoutContact(entry.Message))}
	for _, key := range harmlessFields {
		if v, ok := values.Fields[key]; ok {
			attrs = append(attrs, slog.String(key, l.withoutContact(fmt.Sprint(v))))
		}
	}
	l.log.LogAttrs(context.Background(), slog.LevelWarn, "certificates", attrs...)
	return nil
}

func (l *logCore) Sync() error { return nil }

// certMetrics are counted where things happen; the states are read when they are asked for.
type certMetrics struct {
	issued, failed, unknown prometheus.Counter
}

func (c *Certificates) register(registry prometheus.Registerer) error {
	orders := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_certificate_orders_total",
		Help: "Certificates ordered and renewed, by outcome.",
	}, []string{"outcome"})
	c.metrics = &certMetrics{
		issued: orders.WithLabelValues("issued"),
		failed: orders.WithLabelValues("failed"),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mtagd_tls_unknown_names_total",
			Help: "Handshakes refused because their name is none of the service's.",
		}),
	}
	if registry == nil {
		return nil
	}
	for _, collector := range []prometheus.Collector{orders, c.metrics.unknown, certStates{c}} {
		if err := registry.Register(collector); err != nil {
			return err
		}
	}
	return nil
}

// certStates counts hosts by the state of their certificates.
type certStates struct{ *Certificates }

var (
	certStatesDesc = prometheus.NewDesc("mtagd_certificates",
		"Hosts by the state of their certificate.", []string{"status"}, nil)
	certExpiryDesc = prometheus.NewDesc("mtagd_certificate_first_expiry_timestamp_seconds",
		"When the first of the certificates in use expires.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s certStates) Describe(to chan<- *prometheus.Desc) {
	to <- certStatesDesc
	to <- certExpiryDesc
}

// Collect implements prometheus.Collector.
func (s certStates) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	hosts := make([]string, 0, len(s.hosts))
	for host := range s.hosts {
		hosts = append(hosts, host)
	}
	s.mu.Unlock()
	count := map[store.CertificateStatus]int{}
	var first float64
	for _, host := range hosts {
		cert := s.Certificate(host)
		count[cert.Status]++
		if expires := float64(cert.NotAfter.Unix()); cert.Status == store.CertificateValid && (first == 0 || expires < first) {
			first = expires
		}
	}
	for _, status := range []store.CertificateStatus{
		store.CertificateNone, store.CertificatePending, store.CertificateValid, store.CertificateFailed,
	} {
		to <- prometheus.MustNewConstMetric(certStatesDesc, prometheus.GaugeValue, float64(count[status]), string(status))
	}
	if first > 0 {
		to <- prometheus.MustNewConstMetric(certExpiryDesc, prometheus.GaugeValue, first)
	}
}
