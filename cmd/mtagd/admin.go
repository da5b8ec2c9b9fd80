package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// newMetrics returns a registry with the runtime's and the process's own metrics in it.
func newMetrics() *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return metrics
}

// listenAdmin takes the admin address, or returns nil where there shall be none.
func listenAdmin(cfg config) (net.Listener, error) {
	if cfg.Admin == adminOff {
		return nil, nil
	}
	l, err := net.Listen("tcp", cfg.Admin)
	if cfg.AdminOptional && errors.Is(err, syscall.EADDRINUSE) {
		// Nobody asked for this very address, and another program on the machine may have it.
		cfg.Log.Warn("no admin pages: the default address is taken; choose one with --admin", "address", cfg.Admin)
		return nil, nil
	}
	return l, err
}

// adminHandler answers whoever watches over the process. It is for loopback only: profiles tell
// what is in memory.
func adminHandler(metrics *prometheus.Registry, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{Registry: metrics}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "ready\n")
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
