// Package store is the vocabulary of mtagd: partners, API keys, merchants, tags, identities and events, the rules that
// belong to each of them, and the contract of a storage engine.
//
// Comments here and in the other packages name "the spec": the Tracking Tag Partner Service Specification, which the
// service implements. Customers rely on its words, formats and rules. So what a comment marks with the spec's name
// does not change with the code.
//
// An engine stores the JSON of Partner, Key, Merchant, Tag and DNSFinding on disk. A field may be added; none may be
// renamed or get another meaning. Customers see types of their own, in partnerapi.
//
// The package imports no engine. Read in this order:
//
//	engine.go       the contract of every engine
//	hosts.go        Hosts: which names may have a TLS certificate
//	directory.go    the in-memory look-ups of the hot path, which an engine fills
//	event.go        Mark (an event on its way in), Event (as listed), Query
//	identity.go     who an event belongs to: muid, email, phone, deviceId
//	merchant.go     Merchant
//	tag.go          Tag: types, states, transitions
//	partner.go      Partner and its API Key
//	ids.go          one type per kind of id, so that the compiler tells them apart
//	domain.go       root domains and host names
//	dns.go          the result of checking a tag host's DNS
//	certificate.go  the state of a host's TLS certificate
//	time.go         times as clients write them
//	errors.go       the kinds of error, which each protocol has its own codes for
package store
