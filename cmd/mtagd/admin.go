package main

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mtagd/store"
)

// newMetrics returns a registry with the metrics of the Go runtime, of the process and of the build.
func newMetrics() *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "mtagd_build_info",
			Help:        "1; the labels say which version of mtagd this is.",
			ConstLabels: prometheus.Labels{"version": version(), "goversion": runtime.Version()},
		}, func() float64 { return 1 }),
	)
	return metrics
}

// exportReady adds whether /readyz answers 200.
func exportReady(metrics *prometheus.Registry, ready func() error) {
	metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mtagd_ready",
		Help: "1 while events are accepted, else 0; /readyz says why.",
	}, func() float64 {
		if ready() != nil {
			return 0
		}
		return 1
	}))
}

// exportLabels adds the number of labels in use, which is bounded for the whole service.
func exportLabels(metrics *prometheus.Registry, directory *store.Directory) {
	metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mtagd_labels_used",
		Help: "Labels of the form mtag-xxxx that tags have.",
	}, func() float64 { return float64(directory.Labels()) }))
}

// defaultAdmin is the address without --admin. It is optional; an address that --admin names is not. It is not Prometheus'
// own port, 9090: Prometheus usually runs on the same machine.
const defaultAdmin = "127.0.0.1:8095"

// adminOff is the address that switches the admin pages off.
const adminOff = "off"

// listenAdmin opens a listener for the admin pages. It returns nil if they are off, or if the address is optional and taken.
func listenAdmin(address string, optional bool, log *slog.Logger) (net.Listener, error) {
	if address == adminOff {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if optional && errors.Is(err, syscall.EADDRINUSE) {
		log.Warn("no admin pages: another program uses their default address; choose another address with --admin", "address", address)
		return nil, nil
	}
	return l, err
}

// The admin pages that probes request.
const (
	healthPage = "/healthz" // the process runs
	readyPage  = "/readyz"  // events are accepted
)

// adminPages are the admin pages. guardAdmin decides who may see them. impaired says what is wrong with the data while events are accepted.
func adminPages(metrics prometheus.Gatherer, ready, impaired func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET "+healthPage, writeHealth)
	mux.HandleFunc("GET "+readyPage, func(w http.ResponseWriter, _ *http.Request) {
		err := ready()
		writeReady(w, err)
		if err != nil {
			io.WriteString(w, checkNamed(checkNotReady).reason(err))
		}
		if err := impaired(); err != nil {
			io.WriteString(w, checkNamed(checkDamage).reason(err))
		}
	})
	mux.HandleFunc("GET /debug/pprof/{name...}", serveProfile) // no cmdline: it may have secrets
	return mux
}

func writeHealth(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") }

func writeReady(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, "not ready", http.StatusServiceUnavailable)
		return
	}
	io.WriteString(w, "ready\n")
}
