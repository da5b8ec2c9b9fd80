package certs

import (
	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
)

// metrics are the counters.
type metrics struct {
	outcomes       *prometheus.CounterVec // of orders and renewals
	issued, failed prometheus.Counter     // the values of outcomes
	unknown        prometheus.Counter     // handshakes for unknown names
}

func newMetrics() *metrics {
	outcomes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_certificate_orders_total",
		Help: "Certificates ordered and renewed, by outcome.",
	}, []string{"outcome"})
	return &metrics{
		outcomes: outcomes,
		issued:   outcomes.WithLabelValues("issued"),
		failed:   outcomes.WithLabelValues("failed"),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mtagd_tls_unknown_names_total",
			Help: "Handshakes refused because their name is none of the service's.",
		}),
	}
}

// register registers the counters and the gauges. all returns the state of every host's certificate.
func (m *metrics) register(registry prometheus.Registerer, all func() []store.Certificate) error {
	for _, collector := range []prometheus.Collector{m.outcomes, m.unknown, gauges{all}} {
		if err := registry.Register(collector); err != nil {
			return err
		}
	}
	return nil
}

// gauges are computed from the state of all certificates at each collection.
type gauges struct{ all func() []store.Certificate }

var (
	statusDesc = prometheus.NewDesc("mtagd_certificates",
		"Hosts by the state of their certificate.", []string{"status"}, nil)
	expiryDesc = prometheus.NewDesc("mtagd_certificate_first_expiry_timestamp_seconds",
		"When the first of the certificates in use expires.", nil, nil)
)

// Describe implements prometheus.Collector.
func (g gauges) Describe(to chan<- *prometheus.Desc) {
	to <- statusDesc
	to <- expiryDesc
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	count := map[store.CertificateStatus]int{}
	var first float64
	for _, cert := range g.all() {
		count[cert.Status]++
		if expires := float64(cert.NotAfter.Unix()); cert.Status == store.CertificateValid && (first == 0 || expires < first) {
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
}
