// Package dns checks whether the DNS of tag hosts leads to the service's CNAME target: when a merchant verifies a
// tag, and once an hour for every host.
//
// A verification asks several sides at the same time:
//
//   - each configured resolver, because visitors use resolvers
//   - the authoritative name servers of the host's zone, here called the zone's own, because a resolver may have an
//     old answer in its cache
//
// On each side it follows the CNAME records from the host to their end. Then it weighs what the sides see into one
// finding. Meanwhile it checks CAA records, which can forbid the CA to issue a certificate.
//
// Read in this order:
//
//	recheck.go    Recheck: the hourly check of every host, which updates tags
//	verify.go     Verifier: one verification, which asks all sides
//	finding.go    what one side sees, and one finding from what all sides see, in sentences for merchants
//	chain.go      what one side sees: a chain of CNAME records, or a flattened record
//	addresses.go  which addresses are public, or of proxies, and what findings must not say of the operator's network
//	caa.go        CAA records, and the names that they use for the CA
//	zone.go       a zone's own name servers: which they are, and which may be asked
//	lookup.go     questions to all resolvers
//	view.go       what one server says about one name
//	ask.go        one question to one server, and which answers count
//
// # Findings
//
// A finding has a verdict and a code. Codes of a correct host: ok; flattened (it has the target's addresses);
// ok_server_failing (one of its zone's name servers gives no answer); ok_caa_forbids and ok_caa_servfail (the CA may
// not issue a certificate for it).
//
// Codes of a pending host, when the sides differ: partly_propagated (some see the right record); record_changed (its
// zone's name servers no longer have the right record); servers_disagree (these servers differ).
// When a side gives no usable answer: timeout, silent_name_server, servfail, refused, lame_delegation,
// no_server_address (none of the zone's name servers has a public address), dnssec_bogus (there is an answer only when signatures are not checked),
// no_tcp, bad_answer, target_unknown (the host has addresses, but the target's are unknown).
//
// Codes of a wrong host: no_record, no_domain, appended_name and appended_value (the DNS provider appended the domain
// once more), wrong_target, chain_ends_elsewhere, wrong_address, proxied, loop, too_many_hops, several_cnames.
//
// Code when no resolver can be reached: unreachable.
//
// # Which name servers are asked
//
// The resolvers are asked for a zone's name servers. When that fails for the merchant's domain, the name servers of the
// zone above it are asked instead. At most four name servers of a zone are asked about the host, without recursion.
//
// A stranger controls the zone, and could make its name servers point into the operator's network. So servers at
// addresses that are not public are asked only if Config.AllowPrivate is set. When none of a zone's name servers can be
// found or asked, the resolvers decide alone. Then findings say little about the names that a host's record leads to:
// see addresses.go.
package dns
