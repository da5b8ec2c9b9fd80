// Package clientaddr names the clients for which the service counts: connections, handshakes, memory, events.
package clientaddr

import (
	"net"
	"net/netip"
)

// Of returns the address under which a client is counted: its IPv4 address, or its IPv6 /64 network, because one
// client usually has all addresses of that. It is the zero Addr when the address has no IP.
func Of(address net.Addr) netip.Addr {
	ip := Exact(address)
	if ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().Addr()
	}
	return ip
}

// Site returns the network of a client's whole site: the IPv6 /48 network of an address that Of has returned, which one
// customer of a provider usually has. An IPv4 address is its own site.
func Site(client netip.Addr) netip.Addr {
	if client.Is6() {
		return netip.PrefixFrom(client, 48).Masked().Addr()
	}
	return client
}

// Exact returns the IP address of a client; the zero Addr when the address has none.
func Exact(address net.Addr) netip.Addr {
	if tcp, ok := address.(*net.TCPAddr); ok { // without an allocation
		ip, _ := netip.AddrFromSlice(tcp.IP)
		return ip.Unmap()
	}
	at, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}
