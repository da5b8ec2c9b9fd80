package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mtagd/edge/limit"
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

// exportGauge adds a metric whose value is found when somebody looks.
func exportGauge(metrics prometheus.Registerer, name, help string, value func() float64) {
	metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
}

// defaultAdmin is the address without --admin. It is optional; an address that --admin names is not. It is not Prometheus'
// own port, 9090: Prometheus usually runs on the same machine.
const defaultAdmin = "127.0.0.1:8095"

// adminOff is the address that switches the admin pages off.
const adminOff = "off"

// The admin pages that probes request.
const (
	healthPage = "/healthz" // the process runs
	readyPage  = "/readyz"  // events are accepted; 503: store.Engine.Ready returns why not, or the service stops
)

// adminPages are the admin pages. guardAdmin decides who may see them. impaired is what is wrong with the data nevertheless.
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
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace) // no cmdline: it may have secrets
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

// guardAdmin decides who may see the admin pages, because profiles expose the program's memory: if a token is set, who has
// it, on loopback too; else who is on this machine. Without the token it shows only whether the service runs and is ready,
// without the reason: so probes of load balancers need no secret. A token cannot be guessed, so wrong ones are only counted.
func guardAdmin(pages http.Handler, ready func() error, token string, refusals *limit.Refusals) http.Handler {
	if token == "" {
		return onlyLoopbackHosts(pages)
	}
	want := sha256.Sum256([]byte(token)) // comparing hashes takes a time that does not even tell the length
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization := r.Header.Get("Authorization")
		scheme, sent, _ := strings.Cut(authorization, " ")
		if got := sha256.Sum256([]byte(sent)); subtle.ConstantTimeCompare(got[:], want[:]) == 1 && strings.EqualFold(scheme, "Bearer") {
			pages.ServeHTTP(w, r)
			return
		}
		// Who announces a body and does not send it, or does not read the answers, must not keep one of the few connections.
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second)) // fails if the connection has ended
		switch {
		case authorization == "" && r.URL.Path == healthPage:
			writeHealth(w, r)
		case authorization == "" && r.URL.Path == readyPage:
			writeReady(w, ready())
		default:
			refusals.Count(limit.AdminToken, limit.Tenant{})
			w.Header().Set("WWW-Authenticate", `Bearer realm="mtagd admin"`)
			http.Error(w, "the admin pages need the token of --admin-token", http.StatusUnauthorized)
		}
	})
}

// onlyLoopbackHosts refuses requests whose Host is not a loopback address or localhost. A page in a browser on this
// machine can reach the admin pages, but it cannot read them: they are of another origin. If its own name leads to a
// loopback address (DNS rebinding), they have the same origin, but the Host is that name.
func onlyLoopbackHosts(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := store.HostName(r.Host)
		if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.Unmap().IsLoopback()) {
			http.Error(w, "without --admin-token, the admin pages are served at localhost and loopback addresses only", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// tokenPattern is what an Authorization header can carry (RFC 6750), in a length that nobody guesses.
var tokenPattern = regexp.MustCompile(`^[A-Za-z0-9._~+/-]{32,512}=*$`)

// checkAdminToken accepts a token, or none. It drops the line end of a file that the token is from.
func checkAdminToken(token *string) error {
	*token = strings.TrimSpace(*token)
	if *token != "" && !tokenPattern.MatchString(*token) {
		return errors.New("must have 32 to 512 letters, digits or characters of ._~+/-, as from: openssl rand -hex 32") // without the secret
	}
	return nil
}

// healthCommand is "mtagd health", for container images that contain no HTTP client.
type healthCommand struct {
	Admin      string `default:"${admin}" placeholder:"ADDR" help:"Address of the server's admin pages (default ${default})."`
	AdminToken string `name:"admin-token" placeholder:"TOKEN" help:"Bearer token of the admin pages. Without it, a server that has a token does not say why it is not ready. It is a secret: set it in the environment or in the config file."`
}

// healthTimeout limits the request. It is shorter than the 30 s after which Docker gives up.
const healthTimeout = 10 * time.Second

// Run asks /readyz. It returns an error if no server answers, or if the server does not accept events.
func (c *healthCommand) Run(p *process) error {
	if c.Admin == adminOff {
		return errors.New("the health is unknown: the admin pages are off")
	}
	if err := checkAddr(c.Admin); err != nil {
		return &usageError{where: p.origin.of("admin"), err: err}
	}
	if err := checkAdminToken(&c.AdminToken); err != nil {
		return &usageError{where: p.origin.of("admin-token"), err: err}
	}
	status, text, err := askAdmin(p.ctx, c.Admin, c.AdminToken, readyPage)
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	if status != http.StatusOK {
		return errors.New(text)
	}
	_, err = fmt.Fprintln(p.stdout, text)
	return err
}

func askAdmin(ctx context.Context, address, token, path string) (status int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // without the proxy of the environment
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(body)), err
}
