package main

import (
	"errors"
	"log/slog"
	"net/netip"

	"mtagd/edge"
	"mtagd/edge/limit"
	"mtagd/store"
)

// devCommand is "mtagd dev": the whole service on one loopback address, to try it out.
type devCommand struct {
	HTTP string `name:"http" default:"127.0.0.1:8080" placeholder:"ADDR" help:"Address for everything (default ${default})."`
}

// devCNAMETarget is a name that no DNS record can point at: in development mode, no tag host can be verified.
const devCNAMETarget = "cname.mtagd.localhost"

func (c *devCommand) Run(p *process) error {
	if p.store != "" {
		return &usageError{where: p.origin.of("store"), err: errors.New("is not for mtagd dev")}
	}
	if err := checkAddr(c.HTTP); err != nil {
		return &usageError{where: p.origin.of("http"), err: err}
	}
	host := devHost(c.HTTP)
	return serve(p.ctx, config{
		serveCommand: serveCommand{
			HTTP: c.HTTP, TLS: "off", BaseHost: host, ClientTagHost: host, CNAMETarget: devCNAMETarget, Admin: adminOff,
			Limits: "on", AddressEvents: limit.DefaultAddressEvents, AddressConnections: edge.DefaultConnectionsPerAddress,
			reachable: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
		},
		Data:    p.data,
		Aliases: []string{"localhost", "127.0.0.1", "::1"}, // names that a developer may type into a browser
		Log:     slog.New(throttle(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
		Dev:     p.stdout,
	})
}

// devHost returns the host at which this machine reaches a listening address.
func devHost(address string) string {
	host := store.HostName(address)
	if ip, err := netip.ParseAddr(host); host == "" || (err == nil && ip.IsUnspecified()) {
		return "127.0.0.1"
	}
	return host
}
