package main

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mtagd/store"
)

// serveCommand is "mtagd serve". After check, its values are complete and in the form that the
// parts take.
type serveCommand struct {
	HTTP  string `name:"http" default:":80" placeholder:"ADDR" help:"Where to answer plain HTTP (default ${default})."`
	HTTPS string `name:"https" default:":443" placeholder:"ADDR" help:"Where to answer HTTPS (default ${default})."`
	TLS   string `name:"tls" default:"acme" placeholder:"acme|off" help:"Certificates from an ACME CA, or off: everything answers on --http (default ${default})."`

	BaseHost      string `placeholder:"HOST" help:"Host of the partner API."`
	ClientTagHost string `placeholder:"HOST" help:"Shared host of client-side tags."`
	CNAMETarget   string `name:"cname-target" placeholder:"HOST" help:"Name that merchants point their CNAME records at."`

	ACMECA     string `name:"acme-ca" default:"https://acme-v02.api.letsencrypt.org/directory" placeholder:"URL" help:"Directory of the ACME CA (default Let's Encrypt)."`
	ACMECARoot string `name:"acme-ca-root" placeholder:"FILE" help:"PEM file of the roots that vouch for the ACME CA itself (default the system's)."`
	ACMEEmail  string `name:"acme-email" placeholder:"ADDRESS" help:"Contact that the ACME CA may write to."`

	ACMEEABKeyID   string `name:"acme-eab-key-id" placeholder:"ID" help:"Key id of the account's external binding, where the ACME CA wants one."`
	ACMEEABHMACKey string `name:"acme-eab-hmac-key" placeholder:"KEY" help:"HMAC key of the external binding, in base64url. It is a secret: better in the environment or the configuration file."`

	HandshakesPerIP int      `name:"handshakes-per-ip" default:"1024" placeholder:"N" help:"Most TLS handshakes under way for one client address, 0 for any number (default ${default})."`
	HSTS            bool     `name:"hsts" help:"Tell browsers to use nothing but HTTPS for the base host, for a year."`
	ProxyProtocol   bool     `help:"Connections from --trusted-proxy begin with a PROXY protocol header."`
	TrustedProxy    []string `placeholder:"CIDR" help:"Network of the load balancers in front; repeatable."`

	DNSResolver     []string `name:"dns-resolver" placeholder:"HOST:PORT" help:"Resolver asked when a tag host is verified; repeatable (default those of /etc/resolv.conf)."`
	DNSPort         int      `name:"dns-port" default:"53" placeholder:"N" help:"Port asked at a zone's own name servers (default ${default})."`
	DNSAllowPrivate bool     `name:"dns-allow-private" help:"Ask name servers at private addresses too."`

	Admin     string `default:"${admin}" placeholder:"ADDR" help:"Loopback address of /metrics, /healthz, /readyz and /debug/pprof, or off (default ${default})."`
	LogFormat string `default:"text" placeholder:"text|json" help:"Form of the log (default ${default})."`
	LogLevel  string `default:"info" placeholder:"LEVEL" help:"Least level logged: debug, info, warn or error (default ${default})."`

	// What check reads from the flags of the same meaning.
	roots   *x509.CertPool
	proxies []netip.Prefix
	level   slog.Level
}

// defaultAdmin is taken when it is free; an address that was asked for has to be.
const defaultAdmin = "127.0.0.1:9090"

// adminOff is the word for no admin pages.
const adminOff = "off"

// check completes the values, or names the first one that cannot be served with.
func (c *serveCommand) check(from origin) error {
	for _, step := range []struct {
		flag string
		err  error
	}{
		{"tls", oneOf(c.TLS, "acme", "off")},
		{"http", checkAddr(c.HTTP)},
		{"https", checkAddr(c.HTTPS)},
		{"base-host", checkHost(&c.BaseHost)},
		{"client-tag-host", checkHost(&c.ClientTagHost)},
		{"cname-target", checkCNAMETarget(&c.CNAMETarget)},
		{"acme-ca", checkURL(c.ACMECA)},
		{"acme-ca-root", readRoots(c.ACMECARoot, &c.roots)},
		{"acme-email", checkEmail(c.ACMEEmail)},
		{"acme-eab-key-id", checkEAB(c.ACMEEABKeyID, c.ACMEEABHMACKey)},
		{"handshakes-per-ip", checkLeast(c.HandshakesPerIP, 0)},
		{"proxy-protocol", checkProxyProtocol(c.ProxyProtocol, c.TrustedProxy)},
		{"trusted-proxy", readNetworks(c.TrustedProxy, &c.proxies)},
		{"dns-resolver", checkResolvers(c.DNSResolver)},
		{"dns-port", checkPort(strconv.Itoa(c.DNSPort), 1)},
		{"admin", checkAdmin(c.Admin)},
		{"log-format", oneOf(c.LogFormat, "text", "json")},
		{"log-level", readLevel(c.LogLevel, &c.level)},
	} {
		if step.err != nil {
			return &usageError{where: from.of(step.flag), err: step.err}
		}
	}
	return nil
}

// logger is the log that the checked flags ask for.
func (c *serveCommand) logger(w io.Writer) *slog.Logger {
	opt := slog.HandlerOptions{Level: c.level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, &opt))
	}
	return slog.New(slog.NewTextHandler(w, &opt))
}

func oneOf(s string, words ...string) error {
	if !slices.Contains(words, s) {
		return fmt.Errorf("must be one of %s, not %q", strings.Join(words, ", "), s)
	}
	return nil
}

func readLevel(s string, level *slog.Level) error {
	if err := oneOf(s, "debug", "info", "warn", "error"); err != nil {
		return err
	}
	return level.UnmarshalText([]byte(s))
}

// checkAddr accepts what a listener takes: a host or nothing, a colon, a port. Port 0 is any free one.
func checkAddr(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("must be an address such as :8080 or 127.0.0.1:8080, not %q", s)
	}
	if host != "" {
		if err := checkHost(&host); err != nil {
			return err
		}
	}
	return checkPort(port, 0)
}

func checkPort(s string, least int) error {
	if n, err := strconv.Atoi(s); err != nil || n < least || n > 65535 {
		return fmt.Errorf("must have a port from %d to 65535, not %q", least, s)
	}
	return nil
}

// checkAdmin accepts an address that cannot be reached from elsewhere, or "off".
func checkAdmin(s string) error {
	if s == adminOff {
		return nil
	}
	if err := checkAddr(s); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(s)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("must be a loopback address such as %s, or off, not %q", defaultAdmin, s)
	}
	return nil
}

var hostPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

// checkHost accepts any host by which a server is reached, an IP address and a bare name such as
// localhost too, and leaves it in lower case without a trailing dot.
func checkHost(host *string) error {
	h := strings.ToLower(strings.TrimSuffix(*host, "."))
	if h == "" {
		return errors.New("is required: a host name such as tags.example.com")
	}
	if _, err := netip.ParseAddr(h); err != nil {
		last := h[strings.LastIndexByte(h, '.')+1:]
		if _, err := strconv.Atoi(last); err == nil || len(h) > 253 || !hostPattern.MatchString(h) {
			return fmt.Errorf("must be a host name without protocol, port or path, not %q", *host)
		}
	}
	*host = h
	return nil
}

// checkCNAMETarget accepts what a CNAME record can point at.
func checkCNAMETarget(host *string) error {
	h, err := store.CheckHostName("", strings.TrimSuffix(*host, "."))
	if err != nil {
		return fmt.Errorf("must be a full host name such as cname.example.com, not %q", *host)
	}
	*host = h
	return nil
}

func checkURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return fmt.Errorf("must be an https:// URL, not %q", s)
	}
	return nil
}

// readRoots leaves the roots nil where there is no file.
func readRoots(file string, roots **x509.CertPool) error {
	if file == "" {
		return nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	*roots = x509.NewCertPool()
	if !(*roots).AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no PEM certificate", file)
	}
	return nil
}

func checkEmail(s string) error {
	if s == "" {
		return nil
	}
	if a, err := mail.ParseAddress(s); err != nil || a.Address != s {
		return errors.New("must be an email address")
	}
	return nil
}

func checkEAB(keyID, hmacKey string) error {
	if (keyID == "") != (hmacKey == "") {
		return errors.New("goes together with --acme-eab-hmac-key")
	}
	if _, err := base64.RawURLEncoding.DecodeString(hmacKey); err != nil {
		return errors.New("needs an --acme-eab-hmac-key in base64url, without padding") // the key is not repeated
	}
	return nil
}

func checkLeast(n, least int) error {
	if n < least {
		return fmt.Errorf("must be at least %d, not %d", least, n)
	}
	return nil
}

// checkProxyProtocol refuses half of the pair: a header that anybody may send, or trust without a use.
func checkProxyProtocol(on bool, trusted []string) error {
	if on != (len(trusted) > 0) {
		return errors.New("goes together with --trusted-proxy")
	}
	return nil
}

// readNetworks takes a bare IP address for the network of itself alone.
func readNetworks(written []string, networks *[]netip.Prefix) error {
	for _, s := range written {
		network, err := netip.ParsePrefix(s)
		if ip, ipErr := netip.ParseAddr(s); ipErr == nil {
			network, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		if err != nil {
			return fmt.Errorf("must be a network such as 10.0.0.0/8 or an IP address, not %q", s)
		}
		*networks = append(*networks, network)
	}
	return nil
}

// checkResolvers gives a bare IP address the port of DNS.
func checkResolvers(resolvers []string) error {
	for i, r := range resolvers {
		if ip, err := netip.ParseAddr(r); err == nil {
			resolvers[i] = net.JoinHostPort(ip.String(), "53")
			continue
		}
		host, port, err := net.SplitHostPort(r)
		if err != nil || host == "" || checkHost(&host) != nil || checkPort(port, 1) != nil {
			return fmt.Errorf("must be HOST:PORT or an IP address, not %q", r)
		}
	}
	return nil
}
