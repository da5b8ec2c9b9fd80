package load

import (
	"fmt"
	"net/netip"
)

// Target is where load goes: the server's address, and the host and path that requests name.
type Target struct {
	Address netip.AddrPort
	Host    string
	Path    string
}

// NewTarget reads the address of a server, which must be a loopback address: this program cannot load somebody else's server.
func NewTarget(address, host, path string) (t Target, err error) {
	t = Target{Host: host, Path: path}
	if t.Address, err = netip.ParseAddrPort(address); err == nil && !t.Address.Addr().IsLoopback() {
		err = fmt.Errorf("%s is not a loopback address", address)
	}
	return t, err
}
