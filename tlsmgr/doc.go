// Package tlsmgr looks after the names that tags live on: it checks that a tag host's DNS reaches the
// service, and gets the host a certificate.
//
// DNS:
//
//	verify.go    Verifier: what all resolvers together say about a host
//	look.go      what one resolver sees: a chain of CNAME records, or a flattened record
//	resolver.go  one question to one resolver, and when its answer may be believed
//
// A verification changes no tag: its caller keeps the finding and applies the transition.
//
// Certificates:
//
//	cert.go       Certificates: what it is made of, how it starts and stops
//	certhost.go   what is known of a host; whether it may have a certificate
//	certgate.go   a handshake: names that are not the service's end here
//	certorder.go  from an order to a certificate, and the waits after failures
//	certsweep.go  at start, and once an hour for every host
//	certstore.go  files for certificates, locks in memory
//	certlog.go    what is logged and counted
//
// A certificate is ordered as soon as verify has found DNS correct, so that no visitor waits for it. All
// certificates stay in memory, where certmagic renews them with visitors or without, unless
// their host's DNS leads elsewhere by then.
package tlsmgr
