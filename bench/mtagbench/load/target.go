package load

import (
	"fmt"
	"net/netip"
	"net/url"
)

// Target is where load goes: the server's address, and the host and path that requests name.
type Target struct {
	Address netip.AddrPort
	TLS     bool
	Host    string // Host header and SNI
	Path    string
}

// ParseTarget reads a URL. Its address must be a loopback address, so that this program cannot load somebody else's
// server. A host that is not empty replaces the URL's own in requests.
func ParseTarget(text, host string) (Target, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Target{}, err
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return Target{}, fmt.Errorf("%s: must begin with http:// or https://", text)
	}
	t := Target{TLS: u.Scheme == "https", Host: host, Path: u.RequestURI()}
	if t.Address, err = netip.ParseAddrPort(u.Host); err != nil {
		return Target{}, fmt.Errorf("%s: must name a loopback address and a port, such as 127.0.0.1:8080", text)
	}
	if !t.Address.Addr().IsLoopback() {
		return Target{}, fmt.Errorf("%s: is not a loopback address", text)
	}
	if t.Host == "" {
		t.Host = u.Host
	}
	return t, nil
}
