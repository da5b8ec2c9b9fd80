package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"time"

	"mtagd/bench"
)

// bareCommand serves the ceiling, for this client.
type bareCommand struct {
	HTTP string `name:"http" default:"127.0.0.1:0" placeholder:"ADDR" help:"Loopback address to listen on (default ${default})."`
	TLS  bool   `name:"tls" help:"Serve HTTPS, with a certificate made for the occasion."`
}

// Run serves until a signal ends it; the address is the one line on standard output.
func (c *bareCommand) Run(p *program) error {
	if _, err := parseTarget("http://"+c.HTTP, ""); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.HTTP)
	if err != nil {
		return err
	}
	if c.TLS {
		certificate, err := selfSigned()
		if err != nil {
			return err
		}
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}})
	}
	server := bench.NewBareServer()
	stop := context.AfterFunc(p.ctx, func() { _ = server.Shutdown() }) // Serve returns what there is to say
	defer stop()
	fmt.Fprintln(p.stdout, listener.Addr())
	return server.Serve(listener)
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
