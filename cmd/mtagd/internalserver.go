package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	internalStopTimeout   = 2 * time.Second // for requests in progress at a stop
	internalHeaderTimeout = 5 * time.Second
	internalIdleTimeout   = time.Minute // of a connection between requests
	internalHeaderBytes   = 16 << 10

	// maxAdminConnections is how many connections the admin pages have: the others of the process are for tags.
	maxAdminConnections = 256
)

// internalServer is a small HTTP server beside the public one: for operator commands, or for admin pages.
type internalServer struct {
	listener net.Listener
	server   *http.Server
	log      *slog.Logger
}

func newInternalServer(l net.Listener, h http.Handler, log *slog.Logger) *internalServer {
	return &internalServer{listener: l, log: log, server: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: internalHeaderTimeout,
		IdleTimeout:       internalIdleTimeout,
		MaxHeaderBytes:    internalHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}
}

// accept answers requests until close is called. The error is never nil: it says why it ended.
func (d *internalServer) accept() error { return d.server.Serve(d.listener) }

// close stops accepting requests, and gives those in progress a moment to finish.
func (d *internalServer) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), internalStopTimeout)
	defer cancel()
	if err := d.server.Shutdown(ctx); err != nil {
		d.log.Warn("requests were cut off", "address", d.listener.Addr().String(), "error", errors.Join(err, d.server.Close()))
	}
	return nil
}
