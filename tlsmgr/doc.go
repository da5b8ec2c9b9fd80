// Package tlsmgr looks after the names that tags live on: it checks that a tag host's DNS reaches the
// service, and gets the host a certificate.
//
// # DNS
//
// A host is looked at from all sides at once: by every configured resolver, since visitors are behind resolvers,
// and by the name servers of the host's own zone, since they know what resolvers do not know yet. Each
// side follows the CNAME records from the host to wherever they lead; what all of them see is then
// weighed. Beside that, CAA records are looked for that would keep the CA from issuing a certificate.
//
//	verify.go  Verifier: whom to ask, and the way in
//	lookup.go  one verification: all sides at once
//	weigh.go   from what all sides see to one finding
//	chain.go   what one side sees: a chain of CNAME records, or a flattened record
//	zone.go    a zone's own name servers: who they are, and which may be asked
//	view.go    what one server says about one name
//	ask.go     one question to one server, and when its answer may be believed
//	words.go   findings in words
//	proxy.go   the addresses and names of proxies in between
//	caa.go     CAA records
//	ca.go      the names by which CAA records admit the CA
//
// # Findings
//
// Codes of a correct host: ok; flattened (it has the target's addresses); ok_server_failing (one of its zone's name
// servers has no answer); ok_caa_forbids, ok_caa_servfail (the CA may not issue a certificate for it).
//
// Of a pending one, where sides differ: partly_propagated (right at some), record_changed (right no more at
// its zone's name servers), servers_disagree (those differ among themselves). Where nobody settles it: timeout,
// silent_name_server, servfail, refused, lame_delegation, no_server_address, private_name_server,
// dnssec_bogus (an answer comes only when signatures are left unchecked), no_tcp, bad_answer, target_unknown
// (it has addresses, which cannot be compared).
//
// Of a wrong one: no_record, no_domain, appended_name and appended_value (the provider added the domain
// once more), wrong_target, chain_ends_elsewhere, wrong_address, proxied, loop, too_many_hops,
// several_cnames. And when no resolver can be reached: unreachable.
//
// # Whom it asks
//
// A zone's name servers are found through the resolvers; where these fail for the domain, from the servers of the
// zone above. At most four of a zone are asked, without recursion, and none at an address that is not
// public unless that is allowed: a zone is a stranger's, and could point anywhere in the operator's
// network. When they cannot be found or may not be asked, the resolvers decide alone.
//
// A verification changes no tag: its caller keeps the finding and applies the transition.
//
// # Certificates
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
