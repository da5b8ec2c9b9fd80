// Package dnstest runs DNS servers on loopback, for tests.
package dnstest

import (
	"errors"
	"net"
	"testing"

	miekg "github.com/miekg/dns"
)

// Server is a DNS server that listens on UDP and TCP at the same address.
type Server struct {
	Address  string // host:port
	udp, tcp *miekg.Server
	ended    chan error // gets the error of each of the two
}

// Run runs a server at a free port of 127.0.0.1 until the test ends.
func Run(t testing.TB, handler miekg.Handler) *Server {
	t.Helper()
	s, err := Start("127.0.0.1:0", handler)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Start runs a server at an address until Stop is called. For port 0 it chooses a port that is free for both protocols.
func Start(address string, handler miekg.Handler) (*Server, error) {
	udp, tcp, err := listen(address)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Address: udp.LocalAddr().String(),
		udp:     &miekg.Server{PacketConn: udp, Handler: handler},
		tcp:     &miekg.Server{Listener: tcp, Handler: handler},
		ended:   make(chan error, 2),
	}
	for _, server := range []*miekg.Server{s.udp, s.tcp} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() { s.ended <- server.ActivateAndServe() }()
		<-started
	}
	return s, nil
}

// attempts limits the search for a port. Nearly always the first one is free for both protocols.
const attempts = 20

func listen(address string) (net.PacketConn, net.Listener, error) {
	var errs []error
	for range attempts {
		udp, err := net.ListenPacket("udp", address)
		if err != nil {
			return nil, nil, err
		}
		tcp, err := net.Listen("tcp", udp.LocalAddr().String())
		if err == nil {
			return udp, tcp, nil
		}
		errs = append(errs, err, udp.Close())
	}
	return nil, nil, errors.Join(errs...)
}

// StopTCP closes the TCP port. The server goes on over UDP.
func (s *Server) StopTCP() error {
	tcp := s.tcp
	s.tcp = nil
	return errors.Join(tcp.Shutdown(), <-s.ended)
}

// Stop ends the server. Call it once.
func (s *Server) Stop() error {
	var errs []error
	if s.tcp != nil {
		errs = append(errs, s.StopTCP())
	}
	return errors.Join(append(errs, s.udp.Shutdown(), <-s.ended)...)
}
