package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"mtagd/edge/limit"
	"mtagd/store"
)

// guardAdmin decides who may see the admin pages, because profiles expose the program's memory: if a token is set, who has
// it; else who is on this machine.
func guardAdmin(pages http.Handler, ready func() error, token string, refusals *limit.Refusals) http.Handler {
	if token == "" {
		return onlyLoopbackHosts(pages)
	}
	return &tokenGuard{pages: pages, status: statusPages(ready), want: sha256.Sum256([]byte(token)), refusals: refusals}
}

// tokenGuard asks for the token, on loopback too. Without a token it shows only whether the service runs and is ready,
// without the reason: probes of Kubernetes and of load balancers then need no secret. A token cannot be guessed, so wrong ones are only
// counted.
type tokenGuard struct {
	pages    http.Handler
	status   http.Handler
	want     [sha256.Size]byte
	refusals *limit.Refusals
}

func (g *tokenGuard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	authorization := r.Header.Get("Authorization")
	if g.isToken(authorization) {
		g.pages.ServeHTTP(w, r)
		return
	}
	g.endSoon(w)
	if authorization == "" && (r.URL.Path == healthPage || r.URL.Path == readyPage) {
		g.status.ServeHTTP(w, r)
		return
	}
	g.refusals.Count(limit.AdminToken, limit.Tenant{})
	w.Header().Set("WWW-Authenticate", `Bearer realm="mtagd admin"`)
	http.Error(w, "the admin pages need the token of --admin-token", http.StatusUnauthorized)
}

// endSoon ends the connection after the answer. Without it, whoever announces a body and does not send it, or does not read the
// answers, would have one of the few connections for ever.
func (g *tokenGuard) endSoon(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second)) // fails if the connection has ended
}

// isToken compares hashes: so the time that it takes says nothing about the token, not even its length.
func (g *tokenGuard) isToken(authorization string) bool {
	scheme, token, _ := strings.Cut(authorization, " ")
	got := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(got[:], g.want[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// statusPages says whether the service runs and is ready, and no more.
func statusPages(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+healthPage, writeHealth)
	mux.HandleFunc("GET "+readyPage, func(w http.ResponseWriter, _ *http.Request) { writeReady(w, ready()) })
	return mux
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
