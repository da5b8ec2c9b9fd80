package store

import (
	"net"
	"regexp"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// domainPattern covers both patterns of the spec, for root domains and for host names. These use look-aheads, which Go's
// regular expressions do not have. Here the character classes exclude "://", and CheckRootDomain refuses "www.".
var domainPattern = regexp.MustCompile(`^([a-zA-Z0-9-]+\.)+[a-zA-Z]{2,}$`)

// maxDomainLength leaves room for "mtag-xxxx." within the 253 characters of a DNS name.
const maxDomainLength = 253 - len("mtag-xxxx.")

// CheckRootDomain returns a root domain in lower case. A root domain is one label under a public suffix, without
// protocol, www or subdomain (spec, Generate tag: domain).
func CheckRootDomain(field, s string) (string, error) {
	d := strings.ToLower(s)
	switch {
	case d == "":
		return "", Invalid(field, "is required")
	case strings.Contains(d, "://"):
		return "", Invalid(field, "must not have a protocol: send example.com, not https://example.com")
	case strings.HasPrefix(d, "www."):
		return "", Invalid(field, "must not start with www.: send the root domain")
	case !domainPattern.MatchString(d) || !IsDNSName(d) || len(d) > maxDomainLength:
		return "", Invalid(field, "must be a domain name such as example.com")
	}
	root, err := publicsuffix.EffectiveTLDPlusOne(d)
	if err != nil {
		return "", Invalid(field, "must be a root domain such as example.com, not a public suffix")
	}
	if root != d {
		return "", Invalid(field, "must be the root domain %s, without a subdomain", root)
	}
	return d, nil
}

// CheckHostName returns a full host name in lower case (spec, Verify: subdomain).
func CheckHostName(field, s string) (string, error) {
	h := strings.ToLower(s)
	switch {
	case h == "":
		return "", Invalid(field, "is required")
	case !domainPattern.MatchString(h) || !IsDNSName(h) || len(h) > 253:
		return "", Invalid(field, "must be a full host name without protocol, such as mtag-ab12.example.com")
	}
	return h, nil
}

// IsDNSName reports whether each label of a name has 1 to 63 characters and neither begins nor ends with a hyphen. The
// spec's patterns leave that out.
func IsDNSName(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return true
}

// RootDomain returns the root domain of a host name: its public suffix and one more label. A name that has no root
// domain, such as a public suffix, is returned unchanged.
func RootDomain(host string) string {
	if root, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil {
		return root
	}
	return host
}

// HostName returns the host in a Host header or a configuration value, in lower case, without port and
// trailing dot.
func HostName(hostport string) string {
	h := hostport
	if strings.Contains(h, ":") {
		if host, _, err := net.SplitHostPort(h); err == nil {
			h = host
		} else {
			h = strings.Trim(h, "[]") // an IPv6 address without a port
		}
	}
	return strings.ToLower(strings.TrimSuffix(h, "."))
}
