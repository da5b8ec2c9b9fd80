// Package store is the vocabulary of mtagd: partners, API keys, merchants, tags, identities and events, the rules that
// belong to each of them, and the contract of a storage engine.
//
// "The spec" in comments is the Tracking Tag Partner Service Specification, which the service implements. Customers rely
// on its words, formats and rules. So a change of the code must not change what a comment quotes from the spec.
//
// Engines store Partner, Key, Merchant, Tag and DNSFinding as JSON on disk. A field may be added; none may be renamed or
// get another meaning. Customers never see this JSON: partnerapi has its own types for responses.
//
// The package imports no engine. Read in this order:
//
//	engine.go       the contract of every engine
//	hosts.go        Hosts: which names may have a TLS certificate
//	directory.go    the in-memory look-ups of the hot path, which an engine fills
//	event.go        Mark (an event to record), Event (as listed), Query and Page
//	identity.go     who an event belongs to: muid, email, phone, deviceId
//	merchant.go     Merchant
//	tag.go          Tag: types, states, transitions
//	partner.go      Partner and its API Key
//	ids.go          one type per kind of id, so that the compiler tells them apart
//	domain.go       root domains and host names
//	dns.go          the result of checking a tag host's DNS
//	certificate.go  the state of a host's TLS certificate
//	time.go         times as clients write them
//	errors.go       the kinds of error; each protocol maps them to its own codes
package store
