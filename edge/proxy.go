package edge

import (
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"
)

// proxyHeaderTimeout is how long a proxy may take for its header.
const proxyHeaderTimeout = 5 * time.Second

// behindProxies lets the connections of some addresses begin with a PROXY protocol header, version 1 or
// 2, which names the client. They must: where the header is optional, a client behind a proxy that
// sends none could write one itself. Connections of all other addresses are what they seem.
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
