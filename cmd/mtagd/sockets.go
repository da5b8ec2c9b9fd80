package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/coreos/go-systemd/v22/activation"
)

// The names of the listening sockets (FileDescriptorName= of a systemd socket unit).
const (
	socketHTTP  = "http"
	socketHTTPS = "https"
	socketAdmin = "admin"
)

// inheritSockets takes the listening sockets that systemd has opened for the service (sd_listen_fds(3)). systemd keeps
// them open while the service restarts, so no connection is refused: it waits in its socket. The addresses of the flags
// are not used for these sockets.
func inheritSockets(cfg config) (map[string]net.Listener, error) {
	inherited := map[string]net.Listener{}
	for _, file := range activation.Files(true) {
		name := file.Name()
		listener, err := inherit(cfg, name, file)
		if err == nil && inherited[name] != nil {
			err = errors.New("the name is given twice: a socket unit must have one ListenStream=")
		}
		if err != nil {
			return nil, &usageError{where: fmt.Sprintf("socket %q of systemd", name), err: err}
		}
		inherited[name] = listener
	}
	return inherited, nil
}

// inherit checks a socket and takes it. It refuses what the service would not use: connections would wait in such a
// socket for ever.
func inherit(cfg config, name string, file *os.File) (net.Listener, error) {
	switch {
	case name != socketHTTP && name != socketHTTPS && name != socketAdmin:
		return nil, errors.New("the name is unknown: set FileDescriptorName= to http, https or admin")
	case name == socketHTTPS && !cfg.hasTLS():
		return nil, errors.New("HTTPS is off (--tls off): disable the socket unit")
	case name == socketAdmin && cfg.Admin == adminOff:
		return nil, errors.New("the admin pages are off (--admin off): disable the socket unit")
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	file.Close() // the listener has a copy
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, errors.New("not a TCP socket")
	}
	if at, err := netip.ParseAddrPort(tcp.Addr().String()); name == socketAdmin && cfg.AdminToken == "" && (err != nil || !at.Addr().Unmap().IsLoopback()) {
		return nil, fmt.Errorf("without --admin-token, the admin pages are served at loopback addresses only, not at %s", tcp.Addr())
	}
	return listener, nil
}

// copyListener returns another listener of the same socket. Closing one of them leaves the socket open.
func copyListener(l net.Listener) (net.Listener, error) {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("not a TCP socket: %s", l.Addr())
	}
	file, err := tcp.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return net.FileListener(file)
}
