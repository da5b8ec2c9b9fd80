package main

import (
	"log/slog"
	"net/netip"

	"mtagd/store"
)

// devCommand is "mtagd dev": the whole service on one loopback address, ready to be tried.
type devCommand struct {
	HTTP string `name:"http" default:"127.0.0.1:8080" placeholder:"ADDR" help:"Where to answer (default ${default})."`
}

// devCNAMETarget can be in nobody's DNS: in development mode, verify finds no tag host connected.
const devCNAMETarget = "cname.mtagd.localhost"

// Run serves until a signal ends it.
func (c *devCommand) Run(p *process) error {
	if err := checkAddr(c.HTTP); err != nil {
		return &usageError{where: p.origin.of("http"), err: err}
	}
	host := devHost(c.HTTP)
	return serve(p.ctx, config{
		Data:          p.data,
		HTTP:          c.HTTP,
		BaseHost:      host,
		ClientTagHost: host,
		CNAMETarget:   devCNAMETarget,
		Aliases:       []string{"localhost", "127.0.0.1", "::1"}, // what a browser may be told to open
		Admin:         adminAddress{Address: adminOff},
		Log:           slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Dev:           p.stdout,
	})
}

// devHost is the host under which a listening address is reached from this machine.
func devHost(address string) string {
	host := store.HostName(address)
	if ip, err := netip.ParseAddr(host); host == "" || (err == nil && ip.IsUnspecified()) {
		return "127.0.0.1"
	}
	return host
}
