package edge

import (
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"
)

// proxyHeaderTimeout is how long a proxy may take to send its header.
const proxyHeaderTimeout = 5 * time.Second

// behindProxies reads a PROXY protocol header, version 1 or 2, at the start of each connection from a trusted address.
// The header names the client. It is required: behind a proxy that sends none, a client could send its own and name any
// address. On connections from all other addresses no header is read.
func behindProxies(ln net.Listener, trusted []netip.Prefix) net.Listener {
	if len(trusted) == 0 {
		return ln
	}
	return &proxyproto.Listener{
		Listener:          ln,
		ReadHeaderTimeout: proxyHeaderTimeout,
		ConnPolicy: func(c proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if at, err := netip.ParseAddrPort(c.Upstream.String()); err == nil {
				for _, network := range trusted {
					if network.Contains(at.Addr().Unmap().WithZone("")) {
						return proxyproto.REQUIRE, nil
					}
				}
			}
			return proxyproto.SKIP, nil
		},
	}
}
