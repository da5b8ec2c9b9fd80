// Package certs gets the TLS certificates of the service's hosts from an ACME CA, renews them, and answers handshakes.
//
// A certificate is ordered as soon as verify has found the host's DNS correct, so that no visitor waits for it. All
// certificates stay in memory. Certmagic renews them there, with visitors or without, as long as the host's DNS does
// not lead elsewhere. The package learns where DNS leads (Config.CheckDNS, DNSFound) and never updates tags.
//
// Read in this order:
//
//	handshake.go  a TLS handshake: names of other services end here
//	certs.go      Certificates: start, stop, and the calls of other packages
//	order.go      from an order to a certificate, with retries
//	certmagic.go  certmagic, configured
//	storage.go    its files, and its locks in memory
//	log.go        its log messages, in the service's log
//	metrics.go    what is counted
//	failure.go    what a failed order means for the next attempt and for the merchant
//	host.go       what is known of each host
//	config.go     Config; intervals, timeouts and limits
package certs
