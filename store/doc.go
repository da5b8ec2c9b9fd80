// Package store is the vocabulary of mtagd: partners, API keys, merchants, tags, identities and
// events, the rules that belong to each of them, and the contract of a storage engine.
//
// Where comments name the spec, here and in the other packages, they mean the Tracking Tag Partner Service
// Specification, which the service implements, and a section of it: the spec has the words, formats and
// rules that customers rely on, so what carries its name does not change with the code.
//
// The JSON of Partner, Key, Merchant, Tag and DNSFinding is how an engine keeps them on disk: a field may be
// added, but none renamed and none given another meaning. Customers see types of partnerapi's own.
//
// It imports no engine. Read in this order:
//
//	ids.go          one type per kind of id, so that the compiler tells them apart
//	partner.go      Partner and its API Key
//	merchant.go     Merchant
//	tag.go          Tag: types, states, transitions
//	domain.go       root domains and host names
//	dns.go          DNSFinding: the result of a DNS check of a tag host
//	certificate.go  Certificate: the state of a host's TLS certificate
//	identity.go     who an event belongs to: muid, email, phone, deviceId
//	event.go        Mark (an event on its way in), Event (as listed), Query
//	time.go         times as clients write them
//	errors.go       the kinds of error, which each protocol has its own codes for
//	engine.go       the contract that every engine keeps
//	directory.go    the in-memory look-ups of the hot path, fed by an engine's committed changes
//	hosts.go        Hosts: which names may have a TLS certificate
package store
