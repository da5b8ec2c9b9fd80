package certs

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"mtagd/store"
)

// metrics are the counters.
type metrics struct {
	issued, failed, limited prometheus.Counter // orders and renewals, by outcome
	unknown                 prometheus.Counter // handshakes for unknown names
}

// newMetrics registers the counters and the gauges, unless registry is nil.
func newMetrics(registry prometheus.Registerer, g gauges) *metrics {
	registered := promauto.With(registry)
	outcomes := registered.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_certificate_orders_total",
		Help: "Certificates ordered and renewed, by outcome: issued, failed, or limited (refused because of the CA's rate limit).",
	}, []string{"outcome"})
	if registry != nil {
		registry.MustRegister(g)
	}
	return &metrics{
		issued:  outcomes.WithLabelValues("issued"),
		failed:  outcomes.WithLabelValues("failed"),
		limited: outcomes.WithLabelValues("limited"),
		unknown: registered.NewCounter(prometheus.CounterOpts{
			Name: "mtagd_tls_unknown_names_total",
			Help: "Handshakes refused because their name is none of the service's.",
		}),
	}
}

// gauges are computed from the state of all certificates at each collection.
type gauges struct {
	all     func() []store.Certificate // the state of every host's certificate
	missing func() int                 // own hosts without a valid certificate
	waiting func() (int, time.Time)    // how many orders wait for their turn, and since when the first of them does
}

var (
	statusDesc = prometheus.NewDesc("mtagd_certificates",
		"Hosts by the state of their certificate: none, pending, valid, failed.", []string{"status"}, nil)
	expiryDesc = prometheus.NewDesc("mtagd_certificate_first_expiry_timestamp_seconds",
		"When the first of the certificates in use expires, or has expired.", nil, nil)
	missingDesc = prometheus.NewDesc("mtagd_own_certificates_missing",
		"Hosts of the service itself (base host, client tag host) without a valid certificate.", nil, nil)
	waitingDesc = prometheus.NewDesc("mtagd_certificate_orders_waiting",
		"Orders of certificates that wait for their turn at the CA.", nil, nil)
	oldestDesc = prometheus.NewDesc("mtagd_certificate_orders_oldest_wait_seconds",
		"How long the first of the orders that wait has waited; 0 when none waits.", nil, nil)
)

func (g gauges) Describe(to chan<- *prometheus.Desc) {
	to <- statusDesc
	to <- expiryDesc
	to <- missingDesc
	to <- waitingDesc
	to <- oldestDesc
}

func (g gauges) Collect(to chan<- prometheus.Metric) {
	count := map[store.CertificateStatus]int{}
	var first float64
	for _, cert := range g.all() {
		count[cert.Status]++
		if expires := float64(cert.NotAfter.Unix()); cert.Status != store.CertificateNone && !cert.NotAfter.IsZero() && (first == 0 || expires < first) {
			first = expires
		}
	}
	for _, status := range []store.CertificateStatus{
		store.CertificateNone, store.CertificatePending, store.CertificateValid, store.CertificateFailed,
	} {
		to <- prometheus.MustNewConstMetric(statusDesc, prometheus.GaugeValue, float64(count[status]), string(status))
	}
	if first > 0 {
		to <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, first)
	}
	to <- prometheus.MustNewConstMetric(missingDesc, prometheus.GaugeValue, float64(g.missing()))
	waiting, since := g.waiting()
	var oldest time.Duration
	if waiting > 0 {
		oldest = time.Since(since)
	}
	to <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(waiting))
	to <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, oldest.Seconds())
}
