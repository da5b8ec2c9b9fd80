package main

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
	"mtagd/store/local/backup"
)

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

// checkAddr accepts a listening address: an optional host, a colon and a port. Port 0 stands for any free port.
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

// checkAdmin accepts an address for the admin pages, or "off". Without a token it must be a loopback address.
func checkAdmin(s, token string) error {
	if s == adminOff {
		return nil
	}
	if err := checkAddr(s); err != nil || token != "" {
		return err
	}
	host, _, err := net.SplitHostPort(s)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("must be a loopback address such as %s, or off, not %q: other machines may see the admin pages only with an --admin-token", defaultAdmin, s)
	}
	return nil
}

var hostPattern = regexp.MustCompile(`^[a-z0-9.-]+$`)

// checkHost accepts any host name, also an IP address or a label. It changes it to lower case, without a final dot.
func checkHost(host *string) error {
	h := strings.ToLower(strings.TrimSuffix(*host, "."))
	if h == "" {
		return errors.New("is required: a host name such as tags.example.com")
	}
	if _, err := netip.ParseAddr(h); err != nil {
		last := h[strings.LastIndexByte(h, '.')+1:]
		if _, err := strconv.Atoi(last); err == nil || len(h) > 253 || !hostPattern.MatchString(h) || !store.IsDNSName(h) {
			return fmt.Errorf("must be a host name without protocol, port or path, not %q", *host)
		}
	}
	*host = h
	return nil
}

// checkCNAMETarget accepts a full host name, because a CNAME record points at it.
func checkCNAMETarget(host *string) error {
	if *host == "" {
		return errors.New("is required: a full host name such as cname.example.com")
	}
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

// readRoots reads root certificates. Without a file, roots stays nil.
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
		return errors.New("needs an --acme-eab-hmac-key in base64url, without padding") // the key is a secret: it is not quoted
	}
	return nil
}

func checkNotNegative(n int) error {
	if n < 0 {
		return fmt.Errorf("must be at least 0, not %d", n)
	}
	return nil
}

// readSize reads a size in bytes, such as 500GB; an empty one stands for the default.
func readSize(s string, size *int64) (err error) {
	if s != "" {
		*size, err = operator.ParseSize(s)
	}
	return err
}

// checkRetention checks a number of days, where 0 is for ever.
func checkRetention(days int) error {
	if days < 0 || days > store.MaxRetention {
		return fmt.Errorf("must be from 1 to %d, or 0 for ever, not %d", store.MaxRetention, days)
	}
	return nil
}

// retention returns the retention of a number of days that was checked.
func retention(days int) store.Retention {
	if days == 0 {
		return store.Forever
	}
	return store.Retention(days)
}

// checkProxyProtocol refuses one of the two flags without the other. --proxy-protocol alone would let anybody send the
// header; --trusted-proxy alone would have no effect.
func checkProxyProtocol(on bool, trusted []string) error {
	if on != (len(trusted) > 0) {
		return errors.New("goes together with --trusted-proxy")
	}
	return nil
}

// readNetworks parses networks. A bare IP address is the network with that one address.
func readNetworks(written []string, networks *store.Networks) error {
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

// checkResolvers adds the DNS port to a bare IP address.
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

// readDuration reads a duration such as 5s, 6h or 30d, which is at least least.
func readDuration(s string, least time.Duration, d *time.Duration) (err error) {
	if *d, err = operator.ParseLifetime(s); err == nil && *d < least {
		err = fmt.Errorf("must be at least %s, not %s", least, s)
	}
	return err
}

// readDestination opens the destination of backups by the clock; an empty name stands for none. A directory that is missing
// is not created, because it may be on a disk that is not mounted: backups fail until it is there.
func readDestination(data, name string, to *backup.Destination) (err error) {
	if name == "" {
		return nil
	}
	*to, err = openDestination(data, name, false)
	return err
}

// openDestination opens a destination, which must not be inside the data directory: a lost disk would take both.
func openDestination(data, name string, create bool) (backup.Destination, error) {
	dest, err := backup.Open(name, create)
	if err != nil || strings.Contains(name, "://") {
		return dest, err
	}
	from, err := filepath.Abs(data)
	if err != nil {
		return nil, err
	}
	to, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	if inside, err := filepath.Rel(from, to); err == nil && filepath.IsLocal(inside) {
		return nil, fmt.Errorf("%s is inside the data directory %s", name, data)
	}
	return dest, nil
}

// readIdentities reads age identities from a file; an empty name stands for none.
func readIdentities(file string) ([]age.Identity, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	identities, err := age.ParseIdentities(f)
	return identities, errors.Join(err, f.Close())
}
