package main

import (
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"mtagd/store"
	"mtagd/store/local/backup"
)

// config is what the service runs with. All values were checked.
type config struct {
	Data               string
	Store              string     // PostgreSQL database; empty: everything is in Data
	StoreSize          int64      // bytes of Store that events may take; 0: the default
	HTTP               string     // listening address
	TLS                *tlsConfig // nil: everything is served on HTTP
	BaseHost           string
	ClientTagHost      string
	CNAMETarget        string
	Resolvers          []string        // empty: the system's
	DNSPort            int             // of the zones' own name servers
	DNSPrivate         bool            // ask name servers at private addresses too
	Limits             bool            // on rates
	AddressEvents      int             // a second from one address; 0: no limit
	AddressConnections int             // open ones of one address; 0: no limit
	Proxies            []netip.Prefix  // their connections begin with a PROXY protocol header
	Backup             *backupConfig   // nil: no backups by the clock
	Retention          store.Retention // of events, by default; 0: as before
	SecretKeys         string          // file of keys; empty: in Data
	Reachable          []netip.Prefix  // that deliveries may reach besides public addresses
	Admin              adminConfig
	Log                *slog.Logger

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
		AllowPrivate: c.DNSPrivate || c.Dev != nil,
	}
}

// tlsConfig is what HTTPS is served with.
type tlsConfig struct {
	HTTPS           string // listening address
	HandshakesPerIP int
	HSTS            bool

	CA                   string         // URL of the ACME directory
	Roots                *x509.CertPool // of the CA's own certificate; nil: the system's
	Email                string
	EABKeyID, EABHMACKey string
}

// backupConfig is the schedule of backups.
type backupConfig struct {
	To           backup.Destination
	Every        time.Duration
	Keep         time.Duration // 0: for ever
	Recipients   []string
	Certificates bool
}
