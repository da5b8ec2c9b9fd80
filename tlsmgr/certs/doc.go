// Package certs gets the TLS certificates of the service's hosts from an ACME CA, renews them, and answers handshakes.
//
// A host's certificate is ordered as soon as verify has found the host's DNS correct, so that no visitor has to wait
// for it. All certificates stay in memory, because certmagic's timer renews only those. A certificate is not renewed
// while the host's DNS leads elsewhere. Config.CheckDNS and DNSFound say where DNS leads. The package never updates
// tags.
//
// Several nodes can share their certificates: see store.Shared. Each answers the challenges of all, loads what another has got, and
// keeps to the same limits of the CA.
//
// Read in this order:
//
//	handshake.go  TLS handshakes: unknown names are refused here
//	certs.go      Certificates: start, stop, and the calls of other packages
//	order.go      from an order to a certificate, with retries
//	certmagic.go  certmagic, configured: it keeps the certificates, and renews them
//	log.go        certmagic's log messages, in the service's log
//	issuer.go     one attempt at the CA, by the ACME protocol
//	account.go    the service's account at the CA
//	challenge.go  the challenges by which the CA validates hosts
//	refusal.go    when a CA that refuses says to come back
//	limits.go     how often attempts for a host may fail, and their type of challenge
//	allowance.go  how many orders the CA's limit leaves to all nodes
//	turns.go      the queues in which orders wait: partners take turns
//	storage.go    certmagic's files, and its locks in memory
//	shared.go     or else both in the store that several nodes share
//	reads.go      reads of that store that many ask for at the same time
//	metrics.go    counters and gauges
//	failure.go    what a failed order means for the next attempt and for the merchant
//	host.go       the state of each host's certificate
//	config.go     Config; intervals, timeouts and limits
package certs
