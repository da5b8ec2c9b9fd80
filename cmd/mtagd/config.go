package main

import (
	"io"
	"log/slog"
	"net"
	"time"

	"mtagd/store"
	"mtagd/store/local/backup"
)

// config configures the service, for serve and dev.
type config struct {
	serveCommand         // already checked
	Data, Store   string // as in process
	AdminOptional bool   // run without admin pages if their address is taken
	Log           *slog.Logger

	// Sockets are the listening sockets that stay open when the service goes on with a database; nil at the start.
	Sockets map[string]net.Listener

	// Aliases are other names of the base host. Only development mode has any.
	Aliases []string

	// Dev receives the text that development mode prints at its start; nil in production.
	Dev io.Writer
}

// claimable says which domains partners can claim. In development mode, names such as shop.test are among them.
func (c config) claimable() store.Claimable {
	return store.Claimable{
		Reserved:     []string{c.BaseHost, c.ClientTagHost, c.CNAMETarget},
		AllowPrivate: c.DNSAllowPrivate || c.Dev != nil,
	}
}

// backupConfig is the schedule of backups.
type backupConfig struct {
	To           backup.Destination
	Every        time.Duration
	Keep         time.Duration // 0: for ever
	Recipients   []string
	Certificates bool
}
